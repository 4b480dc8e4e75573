// What kernels share: the blocks of numbers that they are told, the walk over operands, and exports.
//
// A kernel is called as a primitive is (dnnl_primitive_execute): its block, a pointer that says nothing, the
// number of operands, their addresses. It allocates nothing, and returns 0 or BAD_INDEX.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "../base.h"

// Places in a block, and in what it tells of each operand: see graph/blocks.py, which a test holds these to.
enum { AT_RANK, AT_OPERANDS, AT_ROW, AT_DIMS };
enum { BYTES, STARTS, REACH, STEP, STRIDES };
constexpr int BAD_INDEX = 100;  // beside the statuses of oneDNN

// Elements, as names of kernels end. Truth values are bytes of 0 and 1.
namespace of {
using float32 = float;
using int8 = std::int8_t;
using int32 = std::int32_t;
using int64 = std::int64_t;
using uint8 = std::uint8_t;
}  // namespace of

// All that a kernel calls is compiled into it; EP_WIDE is EP_CLONES or EP_CLONES_256 where loops gain by it.
#ifndef EP_WIDE
#define EP_WIDE
#endif
#define EP_COMPILED __attribute__((flatten)) EP_WIDE

// Of a loop: no element that it writes is read by it at another place.
#ifdef __clang__
#define EP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define EP_INDEPENDENT _Pragma("GCC ivdep")
#endif

// A kernel is an expression of `block`, `at` and the type `T` of its elements; below, one for each type.
#define EP_KERNEL(family, element, ...)                     \
  EP_EXPORT EP_COMPILED int ep_kernel_##family##_##element( \
      const Word* block, const void*, [[maybe_unused]] int operands, const Word* at) { \
    using T [[maybe_unused]] = of::element;                 \
    return __VA_ARGS__;                                     \
  }
// A kernel that computes what that of another type or family does, which is told of operands.
#define EP_BY(family, element, other, operands)                                                        \
  EP_EXPORT int ep_kernel_##family##_##element(const Word* block, const void*, int, const Word* at) { \
    return ep_kernel_##other(block, nullptr, operands, at);                                           \
  }
#define EP_FLOAT(family, ...) EP_KERNEL(family, float32, __VA_ARGS__)
#define EP_TRUTH(family, ...) EP_KERNEL(family, uint8, __VA_ARGS__)
#define EP_INTEGERS(family, ...) EP_KERNEL(family, int32, __VA_ARGS__) EP_KERNEL(family, int64, __VA_ARGS__)
#define EP_BYTES(family, ...) EP_KERNEL(family, int8, __VA_ARGS__) EP_KERNEL(family, uint8, __VA_ARGS__)
#define EP_WHOLE(family, ...) EP_INTEGERS(family, __VA_ARGS__) EP_BYTES(family, __VA_ARGS__)
#define EP_NUMBERS(family, ...) EP_FLOAT(family, __VA_ARGS__) EP_INTEGERS(family, __VA_ARGS__)
#define EP_ALL(family, ...) EP_NUMBERS(family, __VA_ARGS__) EP_BYTES(family, __VA_ARGS__)
// Of what is the same whether bytes have signs.
#define EP_SAME(family, ...) EP_KERNEL(family, int8, __VA_ARGS__) EP_BY(family, uint8, family##_int8, 0)
// Whatever is moved is taken for integers of its size: a float might be changed on its way if it is NaN.
#define EP_SIZES(family, ...) EP_KERNEL(family, int8, __VA_ARGS__) EP_INTEGERS(family, __VA_ARGS__)

template <class T>
T* elements(Word address) {
  return reinterpret_cast<T*>(address);
}

// The C library knows the widest vectors, but is called.
template <class T>
void copy(const T* x, T* y, Word count) {
  constexpr Word FEW = 16;
  if (count > FEW) std::memmove(y, x, sizeof(T) * static_cast<std::size_t>(count));
  else for (Word i = 0; i < count; i++) y[i] = x[i];
}

// What a block tells of an operand; of one that is not there, of the last.
inline const Word* told(const Word* block, Word operand) {
  const Word rank = block[AT_RANK], last = block[AT_OPERANDS] - 1;
  return block + AT_DIMS + rank + (operand < last ? operand : last) * (STRIDES + rank);
}

inline Word reach_of(const Word* block, Word operand) { return told(block, operand)[REACH]; }

// Goes from row to row of operands: the addresses where these begin, and the steps along them.
class Walk {
 public:
  static constexpr int MOST = 5;  // operands
  Word count, places[MOST], by[MOST];

  Walk(const Word* block, const Word* at, int operands);
  bool next();  // false behind the last row

 private:
  const Word *block_, *at_;
  const int operands_;
  Word inner_, left_, outer_ = 0, outers_ = 1, moves_[MOST];

  void locate();
};

// Calls a function for each row; the first status that is not 0, if it returns any.
template <int OPERANDS, class Function>
int walk(const Word* block, const Word* at, Function function) {
  Walk walk(block, at, OPERANDS);
  do {
    if constexpr (std::is_void_v<decltype(function(walk.count, walk.places, walk.by))>) {
      function(walk.count, walk.places, walk.by);
    } else if (const int status = function(walk.count, walk.places, walk.by)) {
      return status;
    }
  } while (walk.next());
  return 0;
}

// What is read along a row, by a step that compilers know, for they make vectors then, or by any.
constexpr Word ANY = -1;

template <class T, Word STEP>
struct Row {
  using Element = T;
  const T *first, one;
  Word step;

  Row(Word address, Word by) : first(elements<const T>(address)), one(*first), step(by) {}
  T operator[](Word i) const { return STEP == 0 ? one : first[i * (STEP == 1 ? 1 : step)]; }
};

// Which of the operands that are read go along a row by a step of 1, bit by bit, while the others stay where they are.
template <Word... ONES>
struct Cases {};

constexpr Cases<1> ONE;        // of one operand
constexpr Cases<1, 2, 3> TWO;  // of two

// By parts of known length from a place on; where the rest begins.
template <Word PART, class Y, class Function, class... Rows>
Word compute_parts(Word begin, Word count, Y* y, Function function, Rows... rows) {
  for (; begin + PART <= count; begin += PART) {
    EP_INDEPENDENT for (Word i = begin; i < begin + PART; i++) y[i] = Y(function(rows[i]...));
  }
  return begin;
}

template <class Y, class Function, class... Rows>
void compute(Word count, Y* y, Function function, Rows... rows) {
  Word i = 0;
  // Vectors of bytes are long: floats that become bytes would be computed one by one where a row is not.
  if constexpr (sizeof(Y) == 1 && (std::is_same_v<typename Rows::Element, float> || ...)) {
    i = compute_parts<64>(i, count, y, function, rows...);
    i = compute_parts<32>(i, count, y, function, rows...);
    i = compute_parts<16>(i, count, y, function, rows...);
  }
  EP_INDEPENDENT for (; i < count; i++) y[i] = Y(function(rows[i]...));
}

// By any steps: compiled once, since wide vectors gain little there.
template <class Y, class... X, class Function, std::size_t... K>
__attribute__((noinline))
void compute_any(Word count, const Word* places, const Word* by, Function function, std::index_sequence<K...>) {
  const Word step = by[sizeof...(X)];
  const auto along = [=](auto... rows) {
    Y* y = elements<Y>(places[sizeof...(X)]);
    for (Word i = 0; i < count; i++) y[i * step] = Y(function(rows[i]...));
  };
  along(Row<X, ANY>(places[K], by[K])...);
}

template <class Y, class... X, class Function, Word... ONES, std::size_t... K>
void compute_cases(Word count, const Word* places, const Word* by, Function function, Cases<ONES...>,
                   std::index_sequence<K...> all) {
  constexpr Word UNKNOWN = -1;
  Word ones = by[sizeof...(X)] == 1 ? 0 : UNKNOWN;
  ((ones |= by[K] == 1 ? Word{1} << K : by[K] == 0 ? 0 : UNKNOWN), ...);
  const auto in_case = [&](auto of) {
    constexpr Word OF = decltype(of)::value;
    if (ones != OF) return false;
    compute(count, elements<Y>(places[sizeof...(X)]), function, Row<X, (OF >> K & 1)>(places[K], 1)...);
    return true;
  };
  if (!(in_case(std::integral_constant<Word, ONES>{}) || ...)) compute_any<Y, X...>(count, places, by, function, all);
}

// Writes what a function makes of elements at one place of a row, of which X... are read and Y is written. Cases are
// compiled by themselves, for compilers make vectors where they know the steps.
template <class Y, class... X, class Function, class Known>
void compute_row(Word count, const Word* places, const Word* by, Function function, Known cases) {
  compute_cases<Y, X...>(count, places, by, function, cases, std::index_sequence_for<X...>{});
}

// The same of all rows.
template <class Y, class... X, class Function, class Known>
int each(const Word* block, const Word* at, Function function, Known cases) {
  return walk<sizeof...(X) + 1>(block, at, [=](Word count, const Word* places, const Word* by) {
    compute_row<Y, X...>(count, places, by, function, cases);
  });
}

// Integers wrap. Of two elements of which one is NaN the first is both most and least.
template <class T>
constexpr auto wrapping(T x) {
  if constexpr (std::is_integral_v<T>) return std::make_unsigned_t<T>(x);
  else return x;
}

inline constexpr auto negated = [](auto x) { return decltype(x)(0 - wrapping(x)); };
inline constexpr auto added = [](auto a, auto b) { return decltype(a)(wrapping(a) + wrapping(b)); };
inline constexpr auto subtracted = [](auto a, auto b) { return decltype(a)(wrapping(a) - wrapping(b)); };
inline constexpr auto multiplied = [](auto a, auto b) { return decltype(a)(wrapping(a) * wrapping(b)); };
inline constexpr auto most = [](auto a, auto b) { return b > a ? b : a; };
inline constexpr auto least = [](auto a, auto b) { return b < a ? b : a; };

// The integer that a float is cut to; where there is none, the lowest, as x86 has it.
template <class Integer, class Float>
Integer truncated(Float x) {
  constexpr Integer lowest = std::numeric_limits<Integer>::min();
  return x >= Float(lowest) && x < -Float(lowest) ? Integer(x) : lowest;
}

using Bits = std::uint32_t;  // of a float

inline Bits bits_of(float x) {
  Bits bits;
  std::memcpy(&bits, &x, sizeof bits);
  return bits;
}

// The integer nearest to a float, half-way cases to even, within bounds that are integers; of NaN the lower.
inline int nearest(float x, float lowest, float highest) {
  constexpr float large = 0x1.8p23f;  // so large that the last bit of a sum counts 1
  const float above = x > lowest ? x : lowest, bounded = above < highest ? above : highest;
  return int(bits_of(bounded + large) - bits_of(large));
}
