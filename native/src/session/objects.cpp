#include "objects.h"

#include <algorithm>

#include "../loops/threads.h"
#include "error.h"

using namespace session;

namespace {

// What `dnnl_memory_desc_query` is asked, and `dnnl_blocked`.
constexpr Word STRIDES = 14, RANK = 256, TYPE = 258, OFFSET = 259, PADDED = 260, FORMAT = 262, BLOCKS = 263,
               BLOCK_SIZES = 264;
constexpr Word BLOCK_AXES = 265, BLOCKED = 2, ARGUMENT = 255, SCRATCHPAD_OF = 136;
constexpr Word UNIMPLEMENTED = 3, NO_MORE_IMPLEMENTATIONS = 4;  // of `dnnl_status_t`

constexpr loops::Status NO_OBJECT = 2;                          // `dnnl_invalid_arguments`

// The last byte of a state; of one broken, operation and status are before it.
enum State : Word { NOT_MADE, BEING_MADE, MADE, BROKEN };

Word invoke(loops::Function function, const Word* w, const float* f) {
  return function(w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13],
                  w[14], w[15], w[16], w[17], f[0], f[1], f[2]);
}

}  // namespace

Objects::Objects(const library::Onednn& library, const program::Program& program, void* memory)
    : library_(library),
      program_(program),
      layout_(program.layout()),
      places_(library.places()),
      kinds_(program.rows<Word>(format::KINDS)),
      function_of_(program.rows<Word>(format::FUNCTION_OF)),
      made_(program.rows<Word>(format::MADE)),
      values_(program.rows<Word>(format::VALUES)),
      starts_(program.rows<Word>(format::STARTS)),
      roles_(program.rows<loops::Role>(format::ROLES)),
      floats_(program.rows<float>(format::FLOATS)),
      functions_(library.functions_of(program)),
      handles_(size(layout_.handles())),
      states_(size(layout_.groups())),
      scratch_(size(program.facts().scratch)),
      destroy_memory_(library.function("dnnl_memory_destroy")),
      query_(library.function("dnnl_memory_desc_query")),
      query_argument_(library.function<Word (*)(Word, Word, Word)>("dnnl_primitive_desc_query_md")),
      bytes_of_(library.function<std::size_t (*)(Word)>("dnnl_memory_desc_get_size")),
      bytes_of_type_(library.function<std::size_t (*)(Word)>("dnnl_data_type_size")) {
  places_.at_memory = loops::address(static_cast<char*>(memory));
  places_.at_constants = loops::address(program.rows<char>(format::CONSTANTS).from);
}

// Move a primitive descriptor on until its implementation has the name wanted.
// By name: a warm primitive cache repeats implementations in the walk, so positions shift.
loops::Status Objects::walk(Word described, const char* wanted) const {
  for (;;) {
    const char* found = nullptr;
    if (const auto status = places_.fn_query(described, places_.what_name, 0, loops::address(&found))) return status;
    if (std::strcmp(found, wanted) == 0) return 0;
    if (const auto status = places_.fn_next(described, 0, 0, 0)) return status;
  }
}

Word Objects::argument(loops::Role role, Word value) {
  switch (role) {
    case loops::NUMBER: return value;
    case loops::HANDLE: return handle(value);
    case loops::RESULT: return loops::address(&handles_[size(value)]);
    case loops::CONSTANT: return places_.at_constants + value;
    case loops::SCRATCH: return loops::address(&scratch_[size(value)]);
    case loops::MEMORY: return places_.at_memory + value;
    case loops::ENGINE: return places_.at_engine;
  }
  return value;
}

loops::Status Objects::operate(Word operation) {
  const Word kind = kinds_[operation], row = operation * loops::INTEGERS;
  Word words[loops::INTEGERS];
  for (Word k = 0; k < loops::INTEGERS; ++k) {
    words[k] = argument(roles_[row + k], values_[row + k]);
    if (roles_[row + k] == loops::HANDLE && words[k] == 0) return NO_OBJECT;  // the library was asked for it, and has none
  }
  if (kind == loops::COPY) {
    scratch_[size(words[0])] = words[1];
    return 0;
  }
  if (kind == loops::WALK) return walk(words[0], reinterpret_cast<const char*>(words[1]));
  const Word given = invoke(functions_[size(function_of_[operation])], words, &floats_[operation * loops::FLOATS]);
  if (kind == loops::ASK) handles_[size(made_[operation])] = given;
  return kind == loops::CALL ? static_cast<loops::Status>(given) : 0;
}

// Nothing is waited for while a group is being made, so threads cannot wait for each other in a circle.
void Objects::ensure(Word group) {
  Word* state = &states_[size(group)];
  Word found = loops::load(state);
  if (found == NOT_MADE) found = loops::claim(state, NOT_MADE, BEING_MADE);
  if (found == NOT_MADE) {
    for (Word operation = starts_[group]; operation < starts_[group + 1]; ++operation) {
      const Word status = operate(operation);
      if (status == 0) continue;
      loops::put<Word>(state, operation << 32 | status << 8 | BROKEN);
      fail(operation, status);
    }
    loops::put<Word>(state, MADE);
    return;
  }
  const Word begun = found == BEING_MADE ? loops::now_ns() : 0;
  for (; found == BEING_MADE; found = loops::load(state)) loops::rest(begun);
  if (found != MADE) fail(found >> 32, found >> 8 & 0xFFFFFF);  // what the thread said that was at it
}

// By the operations themselves: tapes that refer to themselves fail when their objects are made.
void Objects::make(Word group, std::vector<Word>&& met) {
  met.push_back(group);
  for (Word at = loops::INTEGERS * starts_[group]; at < loops::INTEGERS * starts_[group + 1]; ++at) {
    if (roles_[at] != loops::HANDLE) continue;
    const Word other = layout_.group_of(values_[at]);
    if (std::find(met.begin(), met.end(), other) == met.end()) make(other, std::move(met));  // which stays here
  }
  ensure(group);
}

Word Objects::primitive(Word row) {
  const Word found = layout_.first_primitive() + 2 * row;
  make(layout_.group_of(found));
  return found;
}

Word Objects::memory(Word descriptor, Word address) const {
  Word made = 0;
  const Word status = places_.fn_memory(loops::address(&made), descriptor, places_.at_engine, address);
  if (status != 0) library_.failed("dnnl_memory_create", status);
  return made;
}

Word Objects::reach(Word primitive, Word argument, Word descriptor) const {
  const Word told = query_argument_(handle(primitive + 1), ARGUMENT, argument);
  const Word reached = told == 0 ? 0 : reach(told);
  return reached > 0 ? reached : reach(handle(descriptor));
}

std::pair<Word, Word> Objects::scratchpad(Word primitive) const {
  const Word told = query_argument_(handle(primitive + 1), SCRATCHPAD_OF, 0);
  return {told, told == 0 ? 0 : static_cast<Word>(bytes_of_(told))};
}

void Objects::require_scratchpad(Word primitive, const Word* pairs, Word count) const {
  for (Word k = 0; k < count; ++k)
    if (pairs[2 * k] == SCRATCHPAD) return;
  if (scratchpad(primitive).second > 0) program_.damaged("a kernel has no memory to work in");
}

// A part of a memory keeps the strides of the whole: the library takes the end of the whole for its end.
Word Objects::reach(Word descriptor) const {
  const auto number = [&](Word what) {
    int found = 0;
    return query_(descriptor, what, loops::address(&found), 0) == 0 ? found : 0;
  };
  const auto list = [&](Word what) {
    const Word* found = nullptr;
    query_(descriptor, what, loops::address(&found), 0);
    return found;
  };
  if (number(FORMAT) != BLOCKED) return static_cast<Word>(bytes_of_(descriptor));
  Word offset = 0, inside = 1, last = 0;
  query_(descriptor, OFFSET, loops::address(&offset), 0);
  const Word *padded = list(PADDED), *strides = list(STRIDES), *sizes = list(BLOCK_SIZES), *axes = list(BLOCK_AXES);
  const int rank = number(RANK), blocks = number(BLOCKS);
  for (int axis = 0; axis < rank; ++axis) {
    Word count = padded[axis];
    for (int k = 0; k < blocks; ++k)
      if (axes[k] == axis) count /= sizes[k];
    if (count == 0) return 0;
    last += (count - 1) * strides[axis];
  }
  for (int k = 0; k < blocks; ++k) inside *= sizes[k];
  return (offset + last + inside) * static_cast<Word>(bytes_of_type_(number(TYPE)));
}

std::pair<Word, Word> Objects::memory_of(Word handle) const {
  const Word* given = &values_[loops::INTEGERS * starts_[layout_.group_of(handle)]];
  return {given[1], given[3]};
}

void Objects::fail(Word operation, Word status) const {
  const std::string function = program_.text(program_.rows<Word>(format::FUNCTIONS)[function_of_[operation]]);
  if (kinds_[operation] != loops::WALK && status != UNIMPLEMENTED && status != NO_MORE_IMPLEMENTATIONS)
    library_.failed(function, status);
  const std::string name = implementation(operation), model = program_.model();
  throw Error{EP_DEVICE, "this oneDNN does not offer '" + (name.empty() ? function : name) + "'",
              "model " + model + ", oneDNN " + library_.version() + " (" + library_.isa() + ")", program_.plan_again()};
}

// The implementation that the group of an operation asks for; "" where it makes no primitive.
std::string Objects::implementation(Word operation) const {
  const Word* end = std::upper_bound(starts_.begin(), starts_.end(), operation);
  for (Word k = end[-1]; k < *end; ++k)
    if (kinds_[k] == loops::WALK)
      return reinterpret_cast<const char*>(places_.at_constants + values_[loops::INTEGERS * k + 1]);
  return "";
}

void Objects::destroy(const char* kind, Word first, Word last, Word apart) {
  const auto function = library_.function(("dnnl_" + std::string(kind) + "_destroy").c_str());
  for (Word k = first; k < last; k += apart)
    if (Word& handle = handles_[size(k)]; handle != 0) function(handle, 0, 0, 0), handle = 0;
}

void Objects::free_makings() {
  const Word attributes = layout_.descriptors, primitives = layout_.first_primitive();
  destroy("primitive_desc", primitives + 1, layout_.first_memory(), 2);
  destroy("primitive_attr", attributes, primitives, 2);
  destroy("post_ops", attributes + 1, primitives, 2);
  for (Word k = 0; k < attributes; ++k)  // what was asked of a primitive belongs to it
    if (kinds_[starts_[k]] == loops::ASK) handles_[size(k)] = 0;
  destroy("memory_desc", 0, attributes, 1);
}

void Objects::free() {
  destroy("memory", layout_.first_memory(), layout_.handles(), 1);
  destroy("primitive", layout_.first_primitive(), layout_.first_memory(), 2);
  free_makings();
  std::fill(states_.begin(), states_.end(), NOT_MADE);
}
