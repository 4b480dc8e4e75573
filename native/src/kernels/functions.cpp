// Kernels of what there are no vectors for: quotients of integers, powers, functions of the C library.
#include <cmath>

#include "kernels.h"

namespace {

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
  }, TWO);
}

}  // namespace

EP_WHOLE(quotient, each<T, T, T>(block, at, quotient, TWO))
EP_WHOLE(modulo, each<T, T, T>(block, at, modulo, TWO))
EP_WHOLE(remainder, each<T, T, T>(block, at, rest, TWO))

EP_INTEGERS(power, each<T, T, T>(block, at, power, TWO))
EP_INTEGERS(power_by_float32, raised<T, of::float32>(block, at))
EP_FLOAT(power_by_int32, raised<T, of::int32>(block, at))
EP_KERNEL(power_by_int32, int64, raised<T, of::int32>(block, at))
EP_FLOAT(power_by_int64, raised<T, of::int64>(block, at))
EP_KERNEL(power_by_int64, int32, raised<T, of::int64>(block, at))
EP_FLOAT(float_power, each<T, T, T>(block, at, [](T a, T b) { return std::pow(a, b); }, TWO))
EP_FLOAT(float_modulo, each<T, T, T>(block, at, float_modulo, TWO))
EP_FLOAT(float_remainder, each<T, T, T>(block, at, [](T a, T b) { return std::fmod(a, b); }, TWO))

#define EP_OF_C(name) EP_FLOAT(name, each<T, T>(block, at, [](T x) { return std::name(x); }, ONE))
EP_OF_C(erf) EP_OF_C(sin) EP_OF_C(cos) EP_OF_C(tan) EP_OF_C(asin) EP_OF_C(acos) EP_OF_C(atan)
EP_OF_C(sinh) EP_OF_C(cosh) EP_OF_C(asinh) EP_OF_C(acosh) EP_OF_C(atanh)
