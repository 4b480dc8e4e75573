// Values of half the bytes (bf16, float16) are widened to float32: nothing is rounded.
//
// A block is read whole before its values are written, and blocks go upwards: so the values may take the
// place of their halves, where these lie in the upper half of it.
#include <cstring>

#include "loops.h"

namespace {

// Vectors of 16 values, which compilers split for processors of narrower ones. They would split comparisons
// into single values: what is greater is told by the sign of a difference.
using Halves = std::uint16_t __attribute__((vector_size(32)));
using Bits = std::uint32_t __attribute__((vector_size(64)));  // of float32 values
using Integers = std::int32_t __attribute__((vector_size(64)));
using Floats = float __attribute__((vector_size(64)));
constexpr Word PART = sizeof(Halves), PARTS = loops::BLOCK / 16;

// The upper half of a float32.
struct Bf16 {
  static void widen(Bits& value) { value <<= 16; }
};

// Bits are moved to where they stand in a float32, and the exponent is made that of one; what is below the
// smallest normal number is an integer times 2^-24.
struct F16 {
  static constexpr std::uint32_t NORMAL = 1 << 23, INFINITE = 31 << 23;  // the least of them, moved
  static constexpr std::uint32_t APART = (127 - 15) << 23;               // twice that for an infinite one

  static void widen(Bits& value) {
    const Bits rest = value & 0x7FFF, moved = rest << 13, sign = (value ^ rest) << 16;
    const auto normal = reinterpret_cast<Bits>(reinterpret_cast<Integers>(NORMAL - 1 - moved) >> 31);
    const auto infinite = reinterpret_cast<Bits>(reinterpret_cast<Integers>(INFINITE - 1 - moved) >> 31);
    const auto small = __builtin_convertvector(reinterpret_cast<Integers>(rest), Floats) * 0x1p-24F;
    const Bits whole = moved + APART + (infinite & APART);
    value = sign | (normal & whole) | (~normal & reinterpret_cast<Bits>(small));
  }
};

template <class Kind>
__attribute__((always_inline)) inline void widen(const char* halves, char* values, Word count) {
  Bits block[PARTS];
  for (Word at = 0; at < count; at += loops::BLOCK, halves += PARTS * PART, values += sizeof block) {
    for (Word k = 0; k < PARTS; ++k) {
      Halves read;
      std::memcpy(&read, halves + k * PART, PART);
      block[k] = __builtin_convertvector(read, Bits);
    }
    for (Bits& part : block) Kind::widen(part);
    for (Word k = 0; k < PARTS; ++k) std::memcpy(values + 2 * k * PART, &block[k], 2 * PART);
  }
}

}  // namespace

// Widen so many halves, a multiple of `BLOCK`.
EP_EXPORT EP_CLONES void ep_widen_bf16(const char* halves, char* values, Word count) {
  widen<Bf16>(halves, values, count);
}

EP_EXPORT EP_CLONES void ep_widen_f16(const char* halves, char* values, Word count) {
  widen<F16>(halves, values, count);
}
