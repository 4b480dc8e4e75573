// Values of half the bytes (bf16, float16) are widened to float32: nothing is rounded.
//
// A block is read whole before its values are written, and blocks go upwards: so the values may take the
// place of their halves, where these lie in the upper half of it.
#include <cstring>

#include "loops.h"

#ifdef __x86_64__
#define EP_VECTORS __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EP_VECTORS
#endif

namespace {

using Half = std::uint16_t;
using Bits = std::uint32_t;  // of a float32

// The upper half of a float32.
struct Bf16 {
  static Bits widened(Bits half) { return half << 16; }
};

// Bits are moved to where they stand in a float32, and the exponent is made that of one; what is below the
// smallest normal number is an integer times 2^-24.
struct F16 {
  static constexpr Bits NORMAL = 1 << 23, INFINITE = 31 << 23;  // the least of them, moved
  static constexpr Bits APART = (127 - 15) << 23, APART_OF_INFINITE = (255 - 31) << 23;

  static Bits widened(Bits half) {
    const Bits rest = half & 0x7FFF, moved = rest << 13;
    const float small = static_cast<float>(static_cast<std::int32_t>(rest)) * 0x1p-24F;
    Bits size;
    std::memcpy(&size, &small, sizeof size);
    if (moved >= NORMAL) size = moved + APART;
    if (moved >= INFINITE) size = moved + APART_OF_INFINITE;
    return size | (half & 0x8000) << 16;
  }
};

// A block is copied: a half and a value that lie in one place must not be taken for two.
template <class Kind>
__attribute__((always_inline)) inline void widen(const char* halves, char* values, Word count) {
  Half from[loops::BLOCK];
  Bits to[loops::BLOCK];
  for (Word at = 0; at < count; at += loops::BLOCK, halves += sizeof from, values += sizeof to) {
    std::memcpy(from, halves, sizeof from);
    for (Word k = 0; k < loops::BLOCK; ++k) to[k] = Kind::widened(from[k]);
    std::memcpy(values, to, sizeof to);
  }
}

}  // namespace

// Widen so many halves, a multiple of `BLOCK`.
EP_EXPORT EP_VECTORS void ep_widen_bf16(const char* halves, char* values, Word count) {
  widen<Bf16>(halves, values, count);
}

EP_EXPORT EP_VECTORS void ep_widen_f16(const char* halves, char* values, Word count) {
  widen<F16>(halves, values, count);
}
