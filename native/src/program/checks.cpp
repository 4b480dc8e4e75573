// Checks that programs of all kinds share: what they count, and the records of their calls.
#include "checks.h"

#include <cmath>

using namespace program;

namespace {

constexpr Word MOST_COUNTED = Word{1} << 31, MOST_BYTES = Word{1} << 47, MOST_THREADS = 1024;
constexpr Word HEAD_WORDS = sizeof(loops::Head) / sizeof(Word);
constexpr const char* NO_GROUP = "a record lacks a group that it needs";

}  // namespace

Held::Held(const Program& program)
    : program_(program),
      facts_(program.facts()),
      layout_(program.layout()),
      constants_(program.rows<char>(format::CONSTANTS)) {
  const format::Facts& f = facts_;
  for (const Word count : {f.descriptors, f.attributes, f.primitives, f.memories, f.scratch, f.steps})
    require(0 <= count && count < MOST_COUNTED, NO_NUMBER);
  for (const Word bytes : {f.arena_bytes, f.weights_bytes, f.cache_bytes})
    require(0 <= bytes && bytes < MOST_BYTES, NO_NUMBER);
  for (const double number : {f.little_ratio, f.bytes_per_ms, f.others}) require(std::isfinite(number), NO_NUMBER);
  require(1 <= f.threads && f.threads <= MOST_THREADS, NO_NUMBER);
  require(rows<Word>(format::STARTS).length == layout_.groups() + 1, "groups of operations lack a part");
  require(rows<Word>(format::STEP_NAMES).length >= f.steps, "a step has no name");
  require(constants_.length == 0 || constants_[constants_.length - 1] == 0, "a constant lies outside of it");
}

const char* Held::constant(Word offset, Word bytes) const {
  require_inside(offset, bytes, constants_.length, "a constant lies outside of it");
  require(offset % static_cast<Word>(sizeof(Word)) == 0, "a constant lies outside of it");
  return constants_.from + offset;
}

Records::Records(const Program& program)
    : Held(program),
      needs_(check_operations(program)),
      met_(size(layout_.groups()), format::NOTHING),
      words_(rows<Word>(format::RECORDS)),
      starts_(rows<Word>(format::RECORD_STARTS)),
      kernels_(rows<Word>(format::KERNELS)) {}

const loops::Head& Records::begin(Word number) {
  number_ = number;
  at_ = starts_[number];
  const auto& head = *reinterpret_cast<const loops::Head*>(take(HEAD_WORDS));
  require(head.groups <= layout_.groups() && head.slots <= MOST && 0 <= head.calls && head.calls <= MOST, WHOLE);
  const Word* groups = take(head.groups);
  for (Word k = 0; k < head.groups; ++k) list(groups[k]);
  return head;
}

const Word* Records::take(Word count) {
  require_inside(at_, count, words_.length, WHOLE);
  at_ += count;
  return words_.from + at_ - count;
}

Called Records::call() {
  const Word *head = take(2), primitive = head[0], count = head[1];
  require(0 <= count && count <= MOST, WHOLE);
  if (primitive >= 0) {
    require_made(primitive, Layout::PRIMITIVE);
    return {nullptr, nullptr, count};
  }
  require(-1 - primitive < kernels_.length, "a record names no kernel");
  const char* kernel = program_.text(kernels_[-1 - primitive]);
  return {kernel, block(*take(1), reads_rows(kernel)), count};
}

void Records::require_made(Word handle, Layout::Kind kind) const {
  require(layout_.kind(handle) == kind, "a record names no object of its kind");
  require(at(met_, layout_.group_of(handle)) == number_, NO_GROUP);
}

void Records::list(Word group) {
  require(0 <= group && group < layout_.groups(), NO_GROUP);
  for (Word k = at(needs_.begins, group); k < at(needs_.begins, group + 1); ++k)
    require(at(met_, at(needs_.groups, k)) == number_, NO_GROUP);
  at(met_, group) = number_;
}

// The first words of a block say how long it is, but for rows that are read from the file.
const Word* Records::block(Word offset, bool of_rows) const {
  constexpr Word FIRST = 3, ROWS = 4, BYTES = sizeof(Word);
  const auto* words = reinterpret_cast<const Word*>(constant(offset, BYTES * FIRST));
  const Word length = of_rows ? ROWS : block_words(words, MOST);
  require(length > 0, NO_PLACE);
  constant(offset, BYTES * length);
  return words;
}
