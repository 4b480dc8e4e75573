// The library's objects, made by the operations of a tape.
#include <cstring>

#include "loops.h"
#include "threads.h"

using namespace loops;

namespace {

constexpr Status NO_OBJECT = 2;  // `dnnl_invalid_arguments`

// The last byte of a state; of one broken, operation and status are before it.
enum State : Word { NOT_MADE, BEING_MADE, MADE, BROKEN };

Word invoke(Function function, const Word* w, const float* f) {
  return function(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13],
                  w[14], w[15], w[16], w[17], f[0], f[1], f[2]);
}

// Move a primitive descriptor on until its implementation has the name wanted.
// By name: a warm primitive cache repeats implementations in the walk, so positions shift.
Status walk(const Places& places, Word described, const char* wanted) {
  for (;;) {
    const char* found = nullptr;
    if (const Status status = places.fn_query(described, places.what_name, 0, address(&found))) return status;
    if (std::strcmp(found, wanted) == 0) return 0;
    if (const Status status = places.fn_next(described, 0, 0, 0)) return status;
  }
}

Word argument(const Context& context, Role role, Word value) {
  switch (role) {
    case NUMBER: return value;
    case HANDLE: return context.store.handles[value];
    case RESULT: return address(&context.store.handles[value]);
    case CONSTANT: return context.places->at_constants + value;
    case SCRATCH: return address(&context.store.scratch[value]);
    case MEMORY: return context.places->at_memory + value;
    case ENGINE: return context.places->at_engine;
  }
  return value;
}

Status operate(const Context& context, Word operation) {
  const Tape& tape = context.tape;
  const Word kind = tape.kinds[operation], row = operation * INTEGERS;
  Word words[INTEGERS] = {};
  for (Word k = 0; k < INTEGERS; ++k) {
    words[k] = argument(context, tape.roles[row + k], tape.values[row + k]);
    if (tape.roles[row + k] == HANDLE && words[k] == 0) return NO_OBJECT;  // the library was asked for it, and has none
  }
  if (kind == COPY) {
    context.store.scratch[words[0]] = words[1];
    return 0;
  }
  if (kind == WALK) return walk(*context.places, words[0], reinterpret_cast<const char*>(words[1]));
  const Word given = invoke(tape.functions[operation], words, &tape.floats[operation * FLOATS]);
  if (kind == ASK) context.store.handles[tape.made[operation]] = given;
  return kind == CALL ? static_cast<Status>(given) : 0;
}

Found failed(Own& own, Word operation, Word status) {
  own.operation = operation;
  own.status = status;
  return FAILED;
}

Found make(const Context& context, Own& own, Word group, Word* state) {
  const Word end = context.tape.starts[group + 1];
  for (Word operation = context.tape.starts[group]; operation < end; ++operation) {
    if (const Word status = operate(context, operation)) {
      put<Word>(state, operation << 32 | status << 8 | BROKEN);
      return failed(own, operation, status);
    }
  }
  put<Word>(state, MADE);
  return DONE;
}

}  // namespace

// Nothing is waited for while a group is being made, so threads cannot wait for each other in a circle.
Found loops::ensure(const Context& context, Own& own, Word group) {
  Word* state = &context.store.states[group];
  Word found = load(state);
  if (found == NOT_MADE) {
    found = claim(state, NOT_MADE, BEING_MADE);
    if (found == NOT_MADE) return make(context, own, group, state);
  }
  const Word begun = found == BEING_MADE ? now_ns() : 0;
  for (; found == BEING_MADE; found = load(state)) rest(begun);
  if (found == MADE) return DONE;
  return failed(own, found >> 32, found >> 8 & 0xFFFFFF);  // what the thread said that was at it
}
