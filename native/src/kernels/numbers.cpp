// Kernels between types of numbers: casts, half precision, and bytes that stand for numbers.
#define EP_WIDE EP_CLONES
#include "kernels.h"

namespace {

// Numbers that no byte holds lose their higher bits, as in ONNX Runtime; floats beyond 32 bits have none.
template <class Y, class X>
int cast(const Word* block, const Word* at) {
  using Whole = std::conditional_t<sizeof(Y) == 1, of::int32, Y>;
  return each<Y, X>(block, at, [](X x) {
    if constexpr (std::is_integral_v<Y> && std::is_floating_point_v<X>) return Y(truncated<Whole>(x));
    else return Y(x);
  }, ONE);
}

// Half precision is moved as bits, and rounded half to even.

using Half = std::uint16_t;

constexpr Bits WITHOUT_SIGN = 0x7FFFFFFF, ENDLESS = 0x7F800000;
constexpr Bits TOO_LARGE = 0x477FF000;     // 65520, from where on float16 is infinite
constexpr Bits LEAST_NORMAL = 0x38800000;  // 2^-14, of float16
constexpr Bits HALF_ENDLESS = 0x7C00, HALF_NAN = 0x7E00;
constexpr Bits EXPONENTS_APART = 112;  // of the biases of both
constexpr float LAST_BIT = 0x1p-24f;   // of a subnormal float16, and of a float from .5 to 1

float float_of(Bits bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

Half to_bfloat16(Bits bits) {
  const Bits rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16;
  return Half((bits & WITHOUT_SIGN) > ENDLESS ? bits >> 16 | 0x40 : rounded);
}

Half to_float16(Bits bits) {
  const Bits size = bits & WITHOUT_SIGN;
  const Bits normal = (size - (EXPONENTS_APART << 23) + 0xFFF + (size >> 13 & 1)) >> 13;
  const Bits subnormal = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);  // the sum is rounded to LAST_BIT
  const Bits finite = size < LEAST_NORMAL ? subnormal : normal;
  const Bits half = size > ENDLESS ? HALF_NAN : size >= TOO_LARGE ? HALF_ENDLESS : finite;
  return Half((bits >> 16 & 0x8000) | half);
}

Bits of_float16(Half half) {
  const Bits exponent = half >> 10 & 0x1F, fraction = half & 0x3FF;
  const Bits subnormal = bits_of(float(int(fraction)) * LAST_BIT);
  const Bits normal = (exponent == 0x1F ? 0xFF : exponent + EXPONENTS_APART) << 23 | fraction << 13;
  return Bits(half >> 15) << 31 | (exponent == 0 ? subnormal : normal);
}

// Bytes stand for numbers: a number is (byte - zero point) x scale. Scales and zero points are broadcast: both at once.
constexpr Cases<1, 7> PARAMETERS;

// Half-way cases are rounded to even, as ONNX says; NaN gets the lowest byte.
template <class Byte>
int quantised(const Word* block, const Word* at) {
  return each<Byte, float, float, Byte>(block, at, [](float x, float scale, Byte zero) {
    constexpr int lowest = std::numeric_limits<Byte>::min(), highest = std::numeric_limits<Byte>::max();
    return nearest(x / scale, float(lowest - zero), float(highest - zero)) + zero;
  }, PARAMETERS);
}

template <class T>
int dequantised(const Word* block, const Word* at) {
  using Wide = std::conditional_t<sizeof(T) == 1, of::int32, of::int64>;
  return each<float, T, float, T>(block, at, [](T x, float scale, T zero) {
    return float(Wide(x) - Wide(zero)) * scale;
  }, PARAMETERS);
}

}  // namespace

EP_WHOLE(to_float32, cast<float, T>(block, at))
EP_FLOAT(to_int64, cast<of::int64, T>(block, at))
EP_KERNEL(to_int64, int32, cast<of::int64, T>(block, at))
EP_BYTES(to_int64, cast<of::int64, T>(block, at))
EP_NUMBERS(to_int8, cast<of::int8, T>(block, at))
EP_KERNEL(to_int8, uint8, cast<of::int8, T>(block, at))
EP_ALL(to_uint8, cast<of::uint8, T>(block, at))

EP_FLOAT(to_float16, each<Half, Bits>(block, at, [](Bits x) { return to_float16(x); }, ONE))
EP_FLOAT(to_bfloat16, each<Half, Bits>(block, at, [](Bits x) { return to_bfloat16(x); }, ONE))
EP_FLOAT(of_float16_to, each<Bits, Half>(block, at, [](Half x) { return of_float16(x); }, ONE))

EP_FLOAT(quantised_to_int8, quantised<of::int8>(block, at))
EP_FLOAT(quantised_to_uint8, quantised<of::uint8>(block, at))
EP_BYTES(dequantised, dequantised<T>(block, at))
EP_KERNEL(dequantised, int32, dequantised<T>(block, at))

#undef EP_WIDE
#define EP_WIDE EP_CLONES_256
EP_FLOAT(to_int32, cast<of::int32, T>(block, at))
EP_KERNEL(to_int32, int64, cast<of::int32, T>(block, at))
EP_BYTES(to_int32, cast<of::int32, T>(block, at))
EP_NUMBERS(to_bool, each<of::uint8, T>(block, at, [](T x) { return x != 0; }, ONE))
EP_SAME(to_bool, each<of::uint8, T>(block, at, [](T x) { return x != 0; }, ONE))
EP_FLOAT(of_bfloat16_to, each<Bits, Half>(block, at, [](Half x) { return Bits(x) << 16; }, ONE))
