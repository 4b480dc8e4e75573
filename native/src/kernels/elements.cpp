// Kernels that compute a value from elements at one place, with ONNX's semantics of NaN, infinity and signs.
#include <cmath>
#include <functional>

#define EP_WIDE
#include "kernels.h"

namespace {

constexpr auto absolute = [](auto x) { return x < 0 ? negated(x) : x; };
constexpr auto sign = [](auto x) { return decltype(x)(x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x); };

}  // namespace

EP_ALL(equal, each<of::uint8, T, T>(block, at, std::equal_to<>{}))
EP_ALL(greater, each<of::uint8, T, T>(block, at, std::greater<>{}))
EP_ALL(less, each<of::uint8, T, T>(block, at, std::less<>{}))
EP_ALL(greater_or_equal, each<of::uint8, T, T>(block, at, std::greater_equal<>{}))
EP_ALL(less_or_equal, each<of::uint8, T, T>(block, at, std::less_equal<>{}))
EP_TRUTH(both, each<of::uint8, T, T>(block, at, [](T a, T b) { return (a != 0) & (b != 0); }))
EP_TRUTH(either, each<of::uint8, T, T>(block, at, [](T a, T b) { return (a != 0) | (b != 0); }))
EP_TRUTH(one_alone, each<of::uint8, T, T>(block, at, std::not_equal_to<>{}))
EP_TRUTH(invert, each<T, T>(block, at, std::logical_not<>{}))

EP_WHOLE(add, each<T, T, T>(block, at, added))
EP_WHOLE(sub, each<T, T, T>(block, at, subtracted))
EP_WHOLE(mul, each<T, T, T>(block, at, multiplied))
EP_WHOLE(minimum, each<T, T, T>(block, at, least))
EP_WHOLE(maximum, each<T, T, T>(block, at, most))
EP_WHOLE(bitwise_and, each<T, T, T>(block, at, std::bit_and<>{}))
EP_WHOLE(bitwise_or, each<T, T, T>(block, at, std::bit_or<>{}))
EP_WHOLE(bitwise_xor, each<T, T, T>(block, at, std::bit_xor<>{}))
EP_WHOLE(bitwise_not, each<T, T>(block, at, std::bit_not<>{}))
EP_INTEGERS(absolute, each<T, T>(block, at, absolute))
EP_INTEGERS(negative, each<T, T>(block, at, negated))
EP_NUMBERS(sign, each<T, T>(block, at, sign))

EP_FLOAT(floor, each<T, T>(block, at, [](T x) { return std::floor(x); }))
EP_FLOAT(ceil, each<T, T>(block, at, [](T x) { return std::ceil(x); }))
EP_FLOAT(rounded, each<T, T>(block, at, [](T x) { return std::rint(x); }))
EP_FLOAT(is_nan, each<of::uint8, T>(block, at, [](T x) { return std::isnan(x); }))
EP_FLOAT(is_infinity, each<of::uint8, T>(block, at, [](T x) { return std::isinf(x); }))
EP_FLOAT(is_positive_infinity, each<of::uint8, T>(block, at, [](T x) { return x == INFINITY; }))
EP_FLOAT(is_negative_infinity, each<of::uint8, T>(block, at, [](T x) { return x == -INFINITY; }))
