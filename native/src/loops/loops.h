// What a cold start does for every step: make the library's objects, fetch weights, execute. It decides
// nothing; whatever goes wrong is returned as a code, and Python does that step again in its own words.
//
// runtime/native/words.py says what the words mean that Python shares; a test holds them equal.
#pragma once

#include "../base.h"

namespace loops {

constexpr Word INTEGERS = 18, FLOATS = 3, LANES = 4, BLOCK = 64;
enum Kind : Word { CALL, ASK, TELL, COPY, WALK };
enum Role : std::int8_t { NUMBER, HANDLE, RESULT, CONSTANT, SCRATCH, MEMORY, ENGINE };
enum Source : Word { NO_WEIGHTS, COPIED, MAPPED, BY_PYTHON };
enum Found : Word { DONE = 0, NONE = -1, LEFT_TO_PYTHON = -2, FAILED = -3, LATE = -4 };
enum Failing : Word { BINDING = -1, EXECUTION = -2 };
enum Stage : Word { READ, CREATE };
enum Flag : Word { STOP, ARRIVED };

// Functions are called by address. In the C conventions of 64-bit Linux (System V on x86-64, AAPCS64)
// integers and floats are counted apart, each in order, and a function leaves alone what it does not take:
// one type fits all functions of at most so many arguments. A C `int` is the lower half of a word.
using Status = std::uint32_t;  // 0 where all went well
using Four = Status (*)(Word, Word, Word, Word);
using Function = Word (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word,
                          Word, Word, Word, Word, float, float, float);

struct Places {
  Word at_engine, at_memory, at_weights, at_map, at_constants, cache_file;
  Four fn_query, fn_next, fn_memory, fn_execute, fn_threads, fn_place;
  Word what_name;
};
struct Own {
  Word stream, operation, status, step, marks, ahead;
  Word *counter, *other;
};
struct Head {
  Word source, segment, bytes, place, groups, slots, calls, block;
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

// An array of the package; its length counts words where elements are rows.
template <class T>
struct Array {
  T* from;
  Word length;

  T& operator[](Word k) const { return from[k]; }
};

struct Tape {
  Array<Word> kinds;
  Array<Function> functions;
  Array<Word> made;
  Array<Role> roles;
  Array<Word> values;
  Array<float> floats;
  Array<Word> starts, records, record_starts;

  const Head& record(Word step) const { return reinterpret_cast<Head&>(records[record_starts[step]]); }
};

struct Store {
  Array<Word> handles, states, scratch, blocks;
  Array<Item> items;
  Array<Word> todo, bounds, flags;
  Array<Four> kernels;
};

struct Context {
  const Places* places;
  Tape tape;
  Store store;
  Word width;
};

// A thread that prepares: its own memory, and where it notes what was done when, four words each.
struct Worker {
  const Context& context;
  Own& own;
  Array<Word> marks;
};

template <class T>
Word address(T* place) {
  return reinterpret_cast<Word>(place);
}

inline Found failed(Own& own, Word operation, Word status) {
  own.operation = operation;
  own.status = status;
  return FAILED;
}

// Make a group's object, or wait for the thread that is at it. What it is made from must be there.
Found ensure(const Context& context, Own& own, Word group);

// Make what a step's calls need, as a part of its preparation.
Found create(const Worker& worker, const Head& record, Word step);

// Everything before a step's execution, if its weights come from the cache and all is well.
Found prepare(const Worker& worker, const Head& record, Word step, Call* block);

// Run steps of a lane in order, then wait until the other lane's counter is at `last`. When each step began
// and ended is put into `times`, the step at hand into `own`. `NONE` before a step that is not prepared.
Found run_lane(const Places& places, Own& own, const Item* items, Word* times, Word first, Word end,
               Word last, Word limit_ns);

}  // namespace loops
