// What kernels share: the blocks of numbers that they are told, the walk over operands, and exports.
//
// A kernel is called as a primitive is (dnnl_primitive_execute): its block, a pointer that says nothing, the
// number of operands, their addresses. It allocates nothing, and returns 0 or BAD_INDEX.
#pragma once

#include <cstddef>
#include <cstring>
#include <limits>
#include <type_traits>

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

// All that a kernel calls is compiled into it, for each generation of processors where loops gain by it.
#ifdef EP_WIDE
#define EP_COMPILED __attribute__((flatten)) EP_CLONES
#else
#define EP_COMPILED __attribute__((flatten))
#endif

// Of a loop: no element that it writes is read by it at another place.
#ifdef __clang__
#define EP_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define EP_INDEPENDENT _Pragma("GCC ivdep")
#endif

// A kernel is an expression of `block`, `at` and the type `T` of its elements; below, one for each type.
#define EP_KERNEL(family, element, ...)                     \
  EP_EXPORT EP_COMPILED int ep_kernel_##family##_##element( \
      const Word* block, const void*, int, const Word* at) {\
    using T [[maybe_unused]] = of::element;                 \
    return __VA_ARGS__;                                     \
  }
#define EP_FLOAT(family, ...) EP_KERNEL(family, float32, __VA_ARGS__)
#define EP_TRUTH(family, ...) EP_KERNEL(family, uint8, __VA_ARGS__)
#define EP_INTEGERS(family, ...) EP_KERNEL(family, int32, __VA_ARGS__) EP_KERNEL(family, int64, __VA_ARGS__)
#define EP_BYTES(family, ...) EP_KERNEL(family, int8, __VA_ARGS__) EP_KERNEL(family, uint8, __VA_ARGS__)
#define EP_WHOLE(family, ...) EP_INTEGERS(family, __VA_ARGS__) EP_BYTES(family, __VA_ARGS__)
#define EP_NUMBERS(family, ...) EP_FLOAT(family, __VA_ARGS__) EP_INTEGERS(family, __VA_ARGS__)
#define EP_ALL(family, ...) EP_NUMBERS(family, __VA_ARGS__) EP_BYTES(family, __VA_ARGS__)
// Whatever is moved is taken for integers of its size: a float might be changed on its way if it is NaN.
#define EP_SIZES(family, ...) EP_KERNEL(family, int8, __VA_ARGS__) EP_INTEGERS(family, __VA_ARGS__)

template <class T>
T* elements(Word address) {
  return reinterpret_cast<T*>(address);
}

template <class T>
void copy(const T* x, T* y, Word count) {
  for (Word i = 0; i < count; i++) y[i] = x[i];
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

template <class...>
struct Types {};

// By parts of known length from a place on; where the rest begins.
template <Word PART, class Y, class Function, class... Rows>
Word compute_parts(Word begin, Word count, Y* y, Function function, Rows... rows) {
  for (; begin + PART <= count; begin += PART) {
    EP_INDEPENDENT for (Word i = begin; i < begin + PART; i++) y[i] = Y(function(rows[i]...));
  }
  return begin;
}

template <bool KNOWN, class Y, class Function, class... Rows>
void compute(Types<>, Word count, const Word* places, const Word* by, Function function, Rows... rows) {
  Y* y = elements<Y>(*places);
  if constexpr (!KNOWN) {
    for (Word i = 0, step = *by; i < count; i++) y[i * step] = Y(function(rows[i]...));
    return;
  }
  Word i = 0;
  // Vectors of bytes are long: floats that become bytes would be computed one by one where a row is not.
  if constexpr (sizeof(Y) == 1 && (std::is_same_v<typename Rows::Element, float> || ...)) {
    i = compute_parts<64>(i, count, y, function, rows...);
    i = compute_parts<32>(i, count, y, function, rows...);
    i = compute_parts<16>(i, count, y, function, rows...);
  }
  EP_INDEPENDENT for (; i < count; i++) y[i] = Y(function(rows[i]...));
}

// The next of the types that are left to be read becomes a row.
template <bool KNOWN, class Y, class X, class... Left, class Function, class... Rows>
void compute(Types<X, Left...>, Word count, const Word* places, const Word* by, Function function,
             Rows... rows) {
  const auto with = [=](auto row) {
    compute<KNOWN, Y>(Types<Left...>{}, count, places + 1, by + 1, function, rows..., row);
  };
  if constexpr (!KNOWN) with(Row<X, ANY>(*places, *by));
  else if (*by == 1) with(Row<X, 1>(*places, 1));
  else with(Row<X, 0>(*places, 0));
}

// By any steps: compiled once, since wide vectors gain little there.
template <class Y, class... X, class Function>
__attribute__((noinline))
void compute_any(Word count, const Word* places, const Word* by, Function function) {
  compute<false, Y>(Types<X...>{}, count, places, by, function);
}

// Writes what a function makes of elements at one place, of which X... are read and Y is written.
template <class Y, class... X, class Function>
int each(const Word* block, const Word* at, Function function) {
  return walk<sizeof...(X) + 1>(block, at, [=](Word count, const Word* places, const Word* by) {
    bool known = by[sizeof...(X)] == 1;
    for (std::size_t k = 0; k < sizeof...(X); k++) known = known && (by[k] == 0 || by[k] == 1);
    if (known) compute<true, Y>(Types<X...>{}, count, places, by, function);
    else compute_any<Y, X...>(count, places, by, function);
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
