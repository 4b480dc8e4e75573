// Kernels that compute a value from elements at one place, with ONNX's semantics of NaN, infinity and signs.
#include <cmath>
#include <functional>

#define EP_WIDE EP_CLONES_256
#include "kernels.h"

namespace {

constexpr auto absolute = [](auto x) { return x < 0 ? negated(x) : x; };
constexpr auto sign = [](auto x) { return decltype(x)(x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x); };

// How two are compared by less, instead of a number of operands: the other way round, and whether it is not so.
enum How { EXCHANGED = -1, NOT = -2, NOT_EXCHANGED = -3 };

template <class T, class Function>
int compared(const Word* block, const Word* at, int how, Function function) {
  const bool exchanged = how == EXCHANGED || how == NOT_EXCHANGED, otherwise = how == NOT || how == NOT_EXCHANGED;
  return walk<3>(block, at, [=](Word count, const Word* places, const Word* by) {
    const Word order[] = {places[exchanged], places[!exchanged], places[2]};
    const Word steps[] = {by[exchanged], by[!exchanged], by[2]};
    const auto decided = [=](T a, T b) {
      if constexpr (std::is_integral_v<T>) return function(a, b) ^ otherwise;
      else return function(a, b);
    };
    compute_row<of::uint8, T, T>(count, order, steps, decided, TWO);
  });
}

}  // namespace

EP_NUMBERS(equal, each<of::uint8, T, T>(block, at, std::equal_to<>{}, TWO))
EP_SAME(equal, each<of::uint8, T, T>(block, at, std::equal_to<>{}, TWO))
EP_ALL(less, compared<T>(block, at, operands, std::less<>{}))
EP_FLOAT(less_or_equal, compared<T>(block, at, operands, std::less_equal<>{}))  // NaN is neither
EP_BY(greater, float32, less_float32, EXCHANGED)
EP_BY(greater_or_equal, float32, less_or_equal_float32, EXCHANGED)
#define EP_ORDERED(element)                                         \
  EP_BY(greater, element, less_##element, EXCHANGED)                \
  EP_BY(less_or_equal, element, less_##element, NOT_EXCHANGED)      \
  EP_BY(greater_or_equal, element, less_##element, NOT)
EP_ORDERED(int32) EP_ORDERED(int64) EP_ORDERED(int8) EP_ORDERED(uint8)
EP_TRUTH(both, each<of::uint8, T, T>(block, at, [](T a, T b) { return (a != 0) & (b != 0); }, TWO))
EP_TRUTH(either, each<of::uint8, T, T>(block, at, [](T a, T b) { return (a != 0) | (b != 0); }, TWO))
EP_TRUTH(one_alone, each<of::uint8, T, T>(block, at, std::not_equal_to<>{}, TWO))
EP_TRUTH(invert, each<T, T>(block, at, std::logical_not<>{}, ONE))

#define EP_COMPUTED(family, function) \
  EP_INTEGERS(family, each<T, T, T>(block, at, function, TWO)) EP_SAME(family, each<T, T, T>(block, at, function, TWO))
EP_COMPUTED(mul, multiplied)
EP_WHOLE(minimum, each<T, T, T>(block, at, least, TWO))
EP_WHOLE(maximum, each<T, T, T>(block, at, most, TWO))
EP_INTEGERS(absolute, each<T, T>(block, at, absolute, ONE))
EP_NUMBERS(sign, each<T, T>(block, at, sign, ONE))

EP_FLOAT(floor, each<T, T>(block, at, [](T x) { return std::floor(x); }, ONE))
EP_FLOAT(ceil, each<T, T>(block, at, [](T x) { return std::ceil(x); }, ONE))
EP_FLOAT(rounded, each<T, T>(block, at, [](T x) { return std::rint(x); }, ONE))
EP_FLOAT(is_nan, each<of::uint8, T>(block, at, [](T x) { return std::isnan(x); }, ONE))
EP_FLOAT(is_infinity, each<of::uint8, T>(block, at, [](T x) { return std::isinf(x); }, ONE))
EP_FLOAT(is_positive_infinity, each<of::uint8, T>(block, at, [](T x) { return x == INFINITY; }, ONE))
EP_FLOAT(is_negative_infinity, each<of::uint8, T>(block, at, [](T x) { return x == -INFINITY; }, ONE))

// Memory is no faster for wider vectors.
#undef EP_WIDE
#define EP_WIDE
EP_COMPUTED(add, added)
EP_COMPUTED(sub, subtracted)
EP_COMPUTED(bitwise_and, std::bit_and<>{})
EP_COMPUTED(bitwise_or, std::bit_or<>{})
EP_COMPUTED(bitwise_xor, std::bit_xor<>{})
EP_INTEGERS(bitwise_not, each<T, T>(block, at, std::bit_not<>{}, ONE))
EP_SAME(bitwise_not, each<T, T>(block, at, std::bit_not<>{}, ONE))
EP_INTEGERS(negative, each<T, T>(block, at, negated, ONE))
