#include "objects.h"

#include <algorithm>

#include "session.h"

using namespace session;
using loops::Own;

namespace {

// What `dnnl_memory_desc_query` is asked, and `dnnl_blocked`.
constexpr Word STRIDES = 14, RANK = 256, TYPE = 258, OFFSET = 259, PADDED = 260, FORMAT = 262, BLOCKS = 263,
               BLOCK_SIZES = 264;
constexpr Word BLOCK_AXES = 265, BLOCKED = 2, ARGUMENT = 255, SCRATCHPAD_OF = 136;
constexpr Word UNIMPLEMENTED = 3, NO_MORE_IMPLEMENTATIONS = 4;  // of `dnnl_status_t`

std::size_t size(Word count) { return static_cast<std::size_t>(count); }

loops::Array<Word> array(std::vector<Word>& values) { return {values.data(), static_cast<Word>(values.size())}; }

}  // namespace

// Handles are those of descriptors, then two of each attribute (itself, its post-operations), two of each primitive
// (itself, its descriptor), and those of memories; groups are in the same order.
Objects::Objects(const library::Onednn& library, const program::Program& program, void* memory)
    : library_(library),
      program_(program),
      facts_(program.facts()),
      places_(library.places()),
      handles_(size(facts_.descriptors + 2 * (facts_.attributes + facts_.primitives) + facts_.memories)),
      states_(size(facts_.descriptors + facts_.attributes + facts_.primitives + facts_.memories)),
      scratch_(size(facts_.scratch)),
      destroy_memory_(reinterpret_cast<loops::Four>(library.function("dnnl_memory_destroy"))),
      query_(reinterpret_cast<loops::Four>(library.function("dnnl_memory_desc_query"))),
      query_argument_(reinterpret_cast<Word (*)(Word, Word, Word)>(library.function("dnnl_primitive_desc_query_md"))),
      bytes_of_(reinterpret_cast<std::size_t (*)(Word)>(library.function("dnnl_memory_desc_get_size"))),
      bytes_of_type_(reinterpret_cast<std::size_t (*)(Word)>(library.function("dnnl_data_type_size"))) {
  places_.at_memory = loops::address(static_cast<char*>(memory));
  places_.at_constants = loops::address(program.rows<char>(format::CONSTANTS).from);
  const auto known = library.functions_of(program);
  const auto numbers = program.rows<Word>(format::FUNCTION_OF);
  for (Word k = 0; k < numbers.length; ++k) functions_.push_back(known[size(numbers[k])]);
  context_.places = &places_;
  context_.tape.kinds = program.rows<Word>(format::KINDS);
  context_.tape.functions = {functions_.data(), static_cast<Word>(functions_.size())};
  context_.tape.made = program.rows<Word>(format::MADE);
  context_.tape.roles = program.rows<loops::Role>(format::ROLES);
  context_.tape.values = program.rows<Word>(format::VALUES);
  context_.tape.floats = program.rows<float>(format::FLOATS);
  context_.tape.starts = program.rows<Word>(format::STARTS);
  context_.store.handles = array(handles_);
  context_.store.states = array(states_);
  context_.store.scratch = array(scratch_);
}

void Objects::ensure(Word group) {
  Own own{};
  if (loops::ensure(context_, own, group) != loops::DONE) fail(own);
}

void Objects::make(Word group) {
  std::vector<Word> met;
  make(group, met);
}

// By the operations themselves: tapes that refer to themselves fail when their objects are made.
void Objects::make(Word group, std::vector<Word>& met) {
  met.push_back(group);
  const loops::Tape& tape = context_.tape;
  for (Word at = loops::INTEGERS * tape.starts[group]; at < loops::INTEGERS * tape.starts[group + 1]; ++at) {
    if (tape.roles[at] != loops::HANDLE) continue;
    const Word other = group_of(tape.values[at]);
    if (std::find(met.begin(), met.end(), other) == met.end()) make(other, met);
  }
  ensure(group);
}

Word Objects::primitive(Word row) {
  make(facts_.descriptors + facts_.attributes + row);
  return facts_.descriptors + 2 * (facts_.attributes + row);
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
  const Word* given = &context_.tape.values[loops::INTEGERS * context_.tape.starts[group_of(handle)]];
  return {given[1], given[3]};
}

// The group that makes a handle.
Word Objects::group_of(Word handle) const {
  const Word pairs = facts_.attributes + facts_.primitives, beyond = handle - facts_.descriptors;
  if (beyond < 0) return handle;
  return facts_.descriptors + (beyond < 2 * pairs ? beyond / 2 : beyond - pairs);
}

// Say what the library refused.
void Objects::fail(const Own& own) const {
  const Word operation = own.operation;
  const std::string function =
      program_.text(program_.rows<Word>(format::FUNCTIONS)[program_.rows<Word>(format::FUNCTION_OF)[operation]]);
  const bool walked = context_.tape.kinds[operation] == loops::WALK;
  if (!walked && own.status != UNIMPLEMENTED && own.status != NO_MORE_IMPLEMENTATIONS)
    library_.failed(function, own.status);
  const std::string name = implementation(operation);
  throw Error{EP_DEVICE, "this oneDNN does not offer '" + (name.empty() ? function : name) + "'",
              std::string("model ") + program_.text(facts_.model) + ", oneDNN " + library_.version() + " (" +
                  library_.isa() + ")",
              plan_again(program_.header().kind)};
}

// The implementation that the group of an operation asks for; "" where it makes no primitive.
std::string Objects::implementation(Word operation) const {
  const loops::Tape& tape = context_.tape;
  const Word* end = std::upper_bound(tape.starts.from, tape.starts.from + tape.starts.length, operation);
  for (Word k = end[-1]; k < *end; ++k)
    if (tape.kinds[k] == loops::WALK)
      return reinterpret_cast<const char*>(places_.at_constants + tape.values[loops::INTEGERS * k + 1]);
  return "";
}

void Objects::destroy(const char* kind, Word first, Word last, Word apart) {
  const auto function =
      reinterpret_cast<loops::Four>(library_.function(("dnnl_" + std::string(kind) + "_destroy").c_str()));
  for (Word k = first; k < last; k += apart)
    if (Word& handle = handles_[size(k)]; handle != 0) function(handle, 0, 0, 0), handle = 0;
}

void Objects::free_makings() {
  const Word attributes = facts_.descriptors, primitives = attributes + 2 * facts_.attributes;
  destroy("primitive_desc", primitives + 1, primitives + 2 * facts_.primitives, 2);
  destroy("primitive_attr", attributes, primitives, 2);
  destroy("post_ops", attributes + 1, primitives, 2);
  for (Word k = 0; k < facts_.descriptors; ++k)  // what was asked of a primitive belongs to it
    if (context_.tape.kinds[context_.tape.starts[k]] == loops::ASK) handles_[size(k)] = 0;
  destroy("memory_desc", 0, attributes, 1);
}

void Objects::free() {
  const Word primitives = facts_.descriptors + 2 * facts_.attributes, memories = primitives + 2 * facts_.primitives;
  destroy("memory", memories, static_cast<Word>(handles_.size()), 1);
  destroy("primitive", primitives, memories, 2);
  free_makings();
  std::fill(states_.begin(), states_.end(), 0);
}
