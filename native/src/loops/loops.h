// What sessions of all kinds do: call the library, and execute steps. Whatever goes wrong is returned as a code.
//
// runtime/loops.py says what the words mean that Python shares; a test holds them equal.
#pragma once

#include "../base.h"

namespace loops {

constexpr Word INTEGERS = 18, FLOATS = 3, LANES = 4, BLOCK = 64;
enum Kind : Word { CALL, ASK, TELL, COPY, WALK };
enum Role : std::int8_t { NUMBER, HANDLE, RESULT, CONSTANT, SCRATCH, MEMORY, ENGINE };
enum Source : Word { NO_WEIGHTS, COPIED, MAPPED, RAW, SHARED };
enum Found : Word { DONE = 0, NONE = -1, FAILED = -2, LATE = -3 };

// Functions are called by address. In the C conventions of 64-bit Linux (System V on x86-64, AAPCS64)
// integers and floats are counted apart, each in order, and a function leaves alone what it does not take:
// one type fits all functions of at most so many arguments. A C `int` is the lower half of a word.
using Status = std::uint32_t;  // 0 where all went well
using Four = Status (*)(Word, Word, Word, Word);
using Function = Word (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word,
                          Word, Word, Word, Word, float, float, float);

struct Places {
  Word at_engine, at_memory, at_constants;
  Four fn_query, fn_next, fn_memory, fn_execute, fn_place;
  Word what_name;
};
struct Own {
  Word stream, operation, status, step;
  Word *counter, *other;
  Four together;
};
struct Head {
  Word source, segment, bytes, place, groups, slots, calls;
};
struct Call {
  Four function;
  Word primitive, count;
  Word* arguments;
};
struct Item {
  Word needed;
  Call *first, *end;
  Word* operands;
};

// Rows; those of several values count as so many.
template <class T>
struct Array {
  T* from;
  Word length;

  T& operator[](Word k) const { return from[k]; }
  T* begin() const { return from; }
  T* end() const { return from + length; }
};

template <class T>
Word address(T* place) {
  return reinterpret_cast<Word>(place);
}

// Run steps of a lane in order, then wait until the other lane's counter is at `last`. When each step began
// and ended is put into `times`, the step at hand into `own`. `NONE` before a step that is not prepared.
Found run_lane(const Places& places, Own& own, const Item* items, Word* times, Word first, Word end,
               Word last, Word limit_ns);

// Mix words into `LANES` states, in turn, so that multiplications overlap. A step can be undone: no change is lost.
void mix(const std::uint64_t* words, Word count, std::uint64_t* states);

}  // namespace loops
