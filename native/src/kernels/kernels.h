// What kernels share: the blocks of numbers that they are told, the walk over operands, and exports.
//
// A kernel is called as a primitive is (dnnl_primitive_execute): its block, a pointer that says nothing, the
// number of operands, their addresses. It allocates nothing, and returns 0 or BAD_INDEX.
#pragma once

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

// All that a kernel calls is compiled into it, for each generation of processors, as loops become vectors.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EP_WIDE __attribute__((flatten, target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define EP_WIDE __attribute__((flatten))
#endif

// A kernel is an expression of `block`, `at` and the type `T` of its elements; below, one for each type.
#define EP_KERNEL(family, element, ...)                                                                     \
  EP_EXPORT EP_WIDE int ep_kernel_##family##_##element(const Word* block, const void*, int, const Word* at) {\
    using T [[maybe_unused]] = of::element;                                                                 \
    return __VA_ARGS__;                                                                                     \
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

// What a block tells of an operand; of one that is not there, of the last.
inline const Word* told(const Word* block, Word operand) {
  const Word rank = block[AT_RANK], last = block[AT_OPERANDS] - 1;
  return block + AT_DIMS + rank + (operand < last ? operand : last) * (STRIDES + rank);
}

inline Word reach_of(const Word* block, Word operand) { return told(block, operand)[REACH]; }

// Where an operand is at a place of all axes but the last, counted as if they were one.
inline Word located(const Word* block, const Word* at, Word operand, Word outer) {
  const Word *own = told(block, operand), *dims = block + AT_DIMS, last = block[AT_OPERANDS] - 1;
  Word place = own[STARTS];
  for (Word axis = block[AT_RANK] - 2; axis >= 0; axis--) {
    place += outer % dims[axis] * own[STRIDES + axis];
    outer /= dims[axis];
  }
  return at[operand < last ? operand : last] + place * own[BYTES];
}

// Calls a function for each row, with its length, addresses and steps; the first status that is not 0.
template <int OPERANDS, class Function>
int walk(const Word* block, const Word* at, Function function) {
  const Word rank = block[AT_RANK], inner = rank > 0 ? block[AT_DIMS + rank - 1] : 1, count = block[AT_ROW];
  Word outer = 1, by[OPERANDS], moves[OPERANDS], places[OPERANDS];
  for (Word axis = 0; axis < rank - 1; axis++) outer *= block[AT_DIMS + axis];
  for (int k = 0; k < OPERANDS; k++) {
    const Word* own = told(block, k);
    by[k] = own[STEP];
    moves[k] = rank > 0 ? own[STRIDES + rank - 1] * own[BYTES] : 0;
  }
  for (Word o = 0; o < outer; o++) {
    for (int k = 0; k < OPERANDS; k++) places[k] = located(block, at, k, o);
    for (Word i = 0; i < inner; i++) {
      if constexpr (std::is_void_v<decltype(function(count, places, by))>) {
        function(count, places, by);
      } else if (const int status = function(count, places, by)) {
        return status;
      }
      for (int k = 0; k < OPERANDS; k++) places[k] += moves[k];
    }
  }
  return 0;
}

// What is read along a row: vectors where the step is known. At step 0 it is one element, read once.
template <Word step>
using Known = std::integral_constant<Word, step>;

template <class T, class Step>
struct Row {
  const T* first;
  Step step;
  Row(Word address, Step by) : first(elements<const T>(address)), step(by) {}
  T operator[](Word i) const { return first[i * step]; }
};

template <class T>
struct Row<T, Known<0>> {
  T one;
  Row(Word address, Known<0>) : one(*elements<const T>(address)) {}
  T operator[](Word) const { return one; }
};

template <class...>
struct Types {};

template <bool KNOWN, class Y, class Function, class... Rows>
void compute(Types<>, Word count, const Word* places, const Word* by, Function function, Rows... rows) {
  Y* y = elements<Y>(*places);
  const Word step = KNOWN ? 1 : *by;
  for (Word i = 0; i < count; i++) y[i * step] = Y(function(rows[i]...));
}

template <bool KNOWN, class Y, class X, class... Others, class Function, class... Rows>
void compute(Types<X, Others...>, Word count, const Word* places, const Word* by, Function function,
             Rows... rows) {
  const auto with = [=](auto step) {
    const Row<X, decltype(step)> row(*places, step);
    compute<KNOWN, Y>(Types<Others...>{}, count, places + 1, by + 1, function, rows..., row);
  };
  if constexpr (!KNOWN) with(*by);
  else if (*by == 1) with(Known<1>{});
  else with(Known<0>{});
}

// Writes what a function makes of elements at one place, of which X... are read and Y is written.
template <class Y, class... X, class Function>
int each(const Word* block, const Word* at, Function function) {
  constexpr int READ = sizeof...(X);
  return walk<READ + 1>(block, at, [=](Word count, const Word* places, const Word* by) {
    bool known = by[READ] == 1;
    for (int k = 0; k < READ; k++) known = known && (by[k] == 0 || by[k] == 1);
    if (known) compute<true, Y>(Types<X...>{}, count, places, by, function);
    else compute<false, Y>(Types<X...>{}, count, places, by, function);
  });
}

// Functions of two elements of one type. Integers wrap; where one is NaN, the first is both most and least.
template <class T>
constexpr auto wrapping(T x) {
  if constexpr (std::is_integral_v<T>) return std::make_unsigned_t<T>(x);
  else return x;
}

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
