#include "recipes.h"

#include <algorithm>
#include <cmath>
#include <cstring>

using namespace session;
using format::Recipe;

EP_EXPORT void ep_widen_f16(const char* halves, char* values, Word count);

namespace {

enum Stored : Word { FLOAT32, INT32, INT64, INT8, UINT8, BOOL, FLOAT16 };  // `format::STORED`
constexpr Word LINE = 64, LEAST_BYTES = 1 << 20;

template <class T>
void convert(const char* from, Word stride, float* to, Word count) {
  for (Word k = 0; k < count; ++k, from += stride) {
    T value;
    std::memcpy(&value, from, sizeof value);
    to[k] = static_cast<float>(value);
  }
}

void convert_halves(const char* from, Word stride, float* to, Word count) {
  char halves[2 * loops::BLOCK];
  for (Word k = 0; k < count; k += loops::BLOCK) {
    for (Word i = 0; i < std::min(loops::BLOCK, count - k); ++i)
      std::memcpy(halves + 2 * i, from + (k + i) * stride, 2);
    ep_widen_f16(halves, reinterpret_cast<char*>(to + k), loops::BLOCK);
  }
}

// a op b[(i / inner) % length of b], where a's values are put back.
template <class Operation>
void combine(const Values& a, const Values& b, Word inner, Operation operation) {
  float *to = a.numbers(), *end = to + a.count;
  for (Word k = 0; to < end; k = k + 1 < b.count ? k + 1 : 0) {
    const float by = b.numbers()[k];
    for (float* stop = to + std::min<Word>(end - to, inner); to < stop; ++to) *to = operation(*to, by);
  }
}

Values taken(Staging& staging, Word count) { return {staging.take(4 * count), count, 4 * count}; }

Values loaded(const Recipe& row, char* read, Staging& staging) {
  if (row.dtype == FLOAT32 && row.stride == format::SIZES[FLOAT32]) return {read, row.count, 4 * row.count};
  const Values made = taken(staging, row.count);
  const auto into = [&](auto function) { function(read, row.stride, made.numbers(), row.count); };
  switch (row.dtype) {
    case FLOAT32: into(convert<float>); break;
    case INT32: into(convert<std::int32_t>); break;
    case INT64: into(convert<std::int64_t>); break;
    case INT8: into(convert<std::int8_t>); break;
    case FLOAT16: into(convert_halves); break;
    default: into(convert<std::uint8_t>);
  }
  return made;
}

void run(const Recipe& row, std::vector<Values>& stack, Staging& staging, char* const*& read) {
  const auto each = [&](auto operation) {
    for (float *value = stack.back().numbers(), *end = value + stack.back().count; value < end; ++value)
      *value = operation(*value);
  };
  const auto both = [&](auto operation) {
    const Values b = stack.back();
    stack.pop_back();
    combine(stack.back(), b, row.count, operation);
  };
  const auto number = static_cast<float>(row.number);
  switch (row.operation) {
    case format::LOAD: return stack.push_back(loaded(row, *read++, staging));
    case format::BYTES: return stack.push_back({*read++, 0, row.count});
    case format::FILL: {
      const Values made = taken(staging, row.count);
      std::fill_n(made.numbers(), row.count, *stack.back().numbers());
      stack.back() = made;
      return;
    }
    case format::ADD: return both([](float a, float b) { return a + b; });
    case format::SUBTRACT: return both([](float a, float b) { return a - b; });
    case format::MULTIPLY: return both([](float a, float b) { return a * b; });
    case format::DIVIDE: return both([](float a, float b) { return a / b; });
    case format::ADD_NUMBER: return each([&](float value) { return value + number; });
    case format::MULTIPLY_NUMBER: return each([&](float value) { return value * number; });
    case format::ROOT: return each([](float value) { return std::sqrt(value); });
    default: return each([](float value) { return -value; });
  }
}

}  // namespace

char* Staging::take(Word bytes) {
  const Word room = rounded(bytes, LINE) + LINE * static_cast<Word>(sizeof(float));
  if (parts_.empty() || parts_.back().bytes() - used_ < room) {
    parts_.emplace_back(std::max({LEAST_BYTES, 2 * room, whole_}));
    whole_ += parts_.back().bytes();
    used_ = 0;
  }
  char* found = parts_.back().data() + used_;
  used_ += room;
  return found;
}

void Staging::clear() {
  if (parts_.size() > 1) {
    parts_.clear();
    parts_.emplace_back(whole_);
  }
  used_ = 0;
}

session::RecipePart session::part_of(const Recipe& row) {
  if (row.operation == format::BYTES) return {row.file, row.offset, row.count};
  if (row.operation != format::LOAD) return {0, 0, 0};
  return {row.file, row.offset, (row.count - 1) * row.stride + format::SIZES[row.dtype]};
}

Values session::made(const program::Program& program, const format::Raw& raw, Staging& staging, char* const*& read) {
  const auto rows = program.rows<Recipe>(format::RECIPES);
  std::vector<Values> stack;
  for (Word k = raw.first; k < raw.end; ++k) run(rows[k], stack, staging, read);
  return stack.back();
}
