// Kernels from bytes to bytes: what they stand for is summed, multiplied, averaged or looked up, and
// rounded once.
//
// Signed bytes become unsigned ones by their highest bit, so that a kernel is compiled once for all types.
#define EP_WIDE EP_CLONES
#include "kernels.h"

namespace {

using Byte = std::uint8_t;

// The bit that is flipped, if one is told.
constexpr int bit(float flip) { return flip != 0 ? 0x80 : 0; }

// The list that runtime/transform.py makes, and how a number becomes the byte that is written. A test
// holds the places to those of runtime/constants.py.
struct Numbers {
  float first_factor, second_factor, third_factor, shift, lowest, highest;
  float flip_read, flip_second, flip_written;

  Byte rounded(float value) const {
    return Byte(nearest(value + shift, lowest, highest) ^ bit(flip_written));
  }
};

int looked_up(const Word* block, const Word* at) {
  const Byte *x = elements<const Byte>(at[0]), *table = elements<const Byte>(at[1]);
  Byte* y = elements<Byte>(at[2]);
  const Word count = block[AT_ROW];
#pragma GCC unroll 8
  for (Word i = 0; i < count; i++) y[i] = table[x[i]];
  return 0;
}

// A byte from each two; the third operand is the list.
template <class Function>
int paired(const Word* block, const Word* at, Function function) {
  const Numbers by = *elements<const Numbers>(at[2]);
  return each<Byte, Byte, Byte, float>(block, at, [=](Byte a, Byte b, float) {
    return by.rounded(function(float(a ^ bit(by.flip_read)), float(b ^ bit(by.flip_second)), by));
  }, TWO);
}

// Runs of several tensors; of each there is a list of its own.
int joined(const Word* block, const Word* at) {
  const Word last = block[AT_OPERANDS] - 1, rows = block[AT_DIMS], whole = reach_of(block, last) + 1;
  Byte* y = elements<Byte>(at[last]);
  for (Word operand = 0; operand < last - 1; operand++) {
    const Numbers by = elements<const Numbers>(at[last - 1])[operand];
    const bool same = by.first_factor == 1 && by.shift == 0 && by.lowest == 0 && by.highest == 255;
    const int flip = bit(by.flip_read), both = flip ^ bit(by.flip_written);
    const Word count = reach_of(block, operand) + 1;
    const Byte* read = elements<const Byte>(at[operand]);
    for (Word k = 0; k < rows; k++, read += count) {
      Byte* written = y + k * whole;
      if (same) {
        for (Word i = 0; i < count; i++) written[i] = Byte(read[i] ^ both);
      } else {
        for (Word i = 0; i < count; i++) written[i] = by.rounded(float(read[i] ^ flip) * by.first_factor);
      }
    }
    y += count;
  }
  return 0;
}

Word sum(const Byte* x, Word size, int flip) {
  constexpr Word PART = 4096;  // which 32 bits hold the sum of
  Word total = 0;
  for (Word begin = 0; begin < size; begin += PART) {
    const Word end = size - begin < PART ? size : begin + PART;
    int part = 0;
    for (Word p = begin; p < end; p++) part += x[p] ^ flip;
    total += part;
  }
  return total;
}

void sum_beside(const Byte* x, Word size, Word after, int flip, std::int32_t* __restrict sums) {
  for (Word i = 0; i < after; i++) sums[i] = 0;
  for (Word p = 0; p < size; p++, x += after) {
    for (Word i = 0; i < after; i++) sums[i] += x[i] ^ flip;
  }
}

// Means of places along an axis; sums of places that others lie beside are kept apart.
int averaged(const Word* block, const Word* at) {
  const Word before = block[AT_DIMS], after = block[AT_ROW], size = reach_of(block, 0) / after + 1;
  const Numbers by = *elements<const Numbers>(at[1]);
  const int flip = bit(by.flip_read);
  const Byte* x = elements<const Byte>(at[0]);
  std::int32_t* sums = elements<std::int32_t>(at[2]);
  Byte* y = elements<Byte>(at[3]);
  for (Word k = 0; k < before; k++, x += size * after, y += after) {
    if (after == 1) {
      *y = by.rounded(float(sum(x, size, flip)) * by.first_factor);
    } else {
      sum_beside(x, size, after, flip, sums);
      for (Word i = 0; i < after; i++) y[i] = by.rounded(float(sums[i]) * by.first_factor);
    }
  }
  return 0;
}

constexpr auto sum_of = [](float a, float b, const Numbers& by) {
  return a * by.first_factor + b * by.second_factor;
};
constexpr auto product_of = [](float a, float b, const Numbers& by) {
  return (a + by.first_factor) * (b + by.second_factor) * by.third_factor;
};

}  // namespace

EP_TRUTH(bytes_add, paired(block, at, sum_of))
EP_TRUTH(bytes_mul, paired(block, at, product_of))
EP_TRUTH(bytes_mean, averaged(block, at))

#undef EP_WIDE
#define EP_WIDE EP_CLONES_256
EP_TRUTH(bytes_concat, joined(block, at))

#undef EP_WIDE
#define EP_WIDE
EP_TRUTH(bytes_table, looked_up(block, at))
