// Kernels that compute a value from elements at one place, with ONNX's semantics of NaN, infinity and signs.
#include <cmath>
#include <functional>

#include "kernels.h"

namespace {

constexpr auto negated = [](auto x) { return decltype(x)(0 - wrapping(x)); };
constexpr auto absolute = [](auto x) { return x < 0 ? negated(x) : x; };
constexpr auto sign = [](auto x) { return decltype(x)(x > 0 ? 1 : x < 0 ? -1 : x == 0 ? 0 : x); };

// Integers divide as in C; by 0 they would end the process, and so would the lowest one by -1.

constexpr auto is_minus_one = [](auto x) { return std::is_signed_v<decltype(x)> && x == decltype(x)(-1); };

constexpr auto quotient = [](auto a, auto b) {
  return b == 0 ? decltype(a)(0) : is_minus_one(b) ? negated(a) : decltype(a)(a / b);
};

// The sign is the dividend's.
constexpr auto rest = [](auto a, auto b) {
  return b == 0 || is_minus_one(b) ? decltype(a)(0) : decltype(a)(a % b);
};

// The sign is the divisor's.
constexpr auto modulo = [](auto a, auto b) {
  const auto left = rest(a, b);
  return left != 0 && (left ^ b) < 0 ? decltype(a)(left + b) : left;
};

constexpr auto float_modulo = [](float a, float b) {
  const float left = std::fmod(a, b);
  return left + (left != 0 && (left < 0) != (b < 0) ? b : 0.0f);
};

constexpr auto power = [](auto base, auto exponent) {
  using T = decltype(base);
  if (exponent < 0) return base == 1 || (base == -1 && exponent % 2 != 0) ? base : T(base == -1);
  std::uint64_t found = 1, factor = std::uint64_t(base);
  for (; exponent > 0; exponent /= 2, factor *= factor) {
    if (exponent % 2 != 0) found *= factor;
  }
  return T(found);
};

// By an exponent of another type, in double precision.
template <class T, class Exponent>
int raised(const Word* block, const Word* at) {
  return each<T, T, Exponent>(block, at, [](T base, Exponent exponent) {
    const double found = std::pow(double(base), double(exponent));
    if constexpr (std::is_integral_v<T>) return truncated<T>(found);
    else return T(found);
  });
}

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
EP_WHOLE(quotient, each<T, T, T>(block, at, quotient))
EP_WHOLE(modulo, each<T, T, T>(block, at, modulo))
EP_WHOLE(remainder, each<T, T, T>(block, at, rest))
EP_WHOLE(minimum, each<T, T, T>(block, at, least))
EP_WHOLE(maximum, each<T, T, T>(block, at, most))
EP_WHOLE(bitwise_and, each<T, T, T>(block, at, std::bit_and<>{}))
EP_WHOLE(bitwise_or, each<T, T, T>(block, at, std::bit_or<>{}))
EP_WHOLE(bitwise_xor, each<T, T, T>(block, at, std::bit_xor<>{}))
EP_WHOLE(bitwise_not, each<T, T>(block, at, std::bit_not<>{}))
EP_INTEGERS(absolute, each<T, T>(block, at, absolute))
EP_INTEGERS(negative, each<T, T>(block, at, negated))
EP_NUMBERS(sign, each<T, T>(block, at, sign))

EP_INTEGERS(power, each<T, T, T>(block, at, power))
EP_INTEGERS(power_by_float32, raised<T, of::float32>(block, at))
EP_FLOAT(power_by_int32, raised<T, of::int32>(block, at))
EP_KERNEL(power_by_int32, int64, raised<T, of::int32>(block, at))
EP_FLOAT(power_by_int64, raised<T, of::int64>(block, at))
EP_KERNEL(power_by_int64, int32, raised<T, of::int64>(block, at))
EP_FLOAT(float_power, each<T, T, T>(block, at, [](T a, T b) { return std::pow(a, b); }))
EP_FLOAT(float_modulo, each<T, T, T>(block, at, float_modulo))
EP_FLOAT(float_remainder, each<T, T, T>(block, at, [](T a, T b) { return std::fmod(a, b); }))

#define EP_OF_C(family, named) EP_FLOAT(family, each<T, T>(block, at, [](T x) { return std::named(x); }))
EP_OF_C(floor, floor) EP_OF_C(ceil, ceil) EP_OF_C(rounded, rint) EP_OF_C(erf, erf)
EP_OF_C(sin, sin) EP_OF_C(cos, cos) EP_OF_C(tan, tan)
EP_OF_C(asin, asin) EP_OF_C(acos, acos) EP_OF_C(atan, atan)
EP_OF_C(sinh, sinh) EP_OF_C(cosh, cosh)
EP_OF_C(asinh, asinh) EP_OF_C(acosh, acosh) EP_OF_C(atanh, atanh)

EP_FLOAT(is_nan, each<of::uint8, T>(block, at, [](T x) { return std::isnan(x); }))
EP_FLOAT(is_infinity, each<of::uint8, T>(block, at, [](T x) { return std::isinf(x); }))
EP_FLOAT(is_positive_infinity, each<of::uint8, T>(block, at, [](T x) { return x == INFINITY; }))
EP_FLOAT(is_negative_infinity, each<of::uint8, T>(block, at, [](T x) { return x == -INFINITY; }))
