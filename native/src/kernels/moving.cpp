// Kernels that pick elements, whatever they hold.
#define EP_WIDE EP_CLONES_256
#include "kernels.h"

namespace {

// By tables: slices of an axis, of `size` places before and `out` behind

template <class T>
int picked(const Word* block, const Word* at) {
  const Word before = block[AT_DIMS], out = block[AT_DIMS + 1], after = block[AT_ROW];
  const Word size = reach_of(block, 0) / after + 1, *places = elements<const Word>(at[1]);
  const T *x = elements<const T>(at[0]), fill = *elements<const T>(at[2]);
  T* y = elements<T>(at[3]);
  for (Word k = 0; k < before; k++, x += size * after) {
    for (Word o = 0; o < out; o++, y += after) {
      if (places[o] >= size) return BAD_INDEX;
      if (places[o] >= 0) {
        copy(x + places[o] * after, y, after);
      } else {
        for (Word i = 0; i < after; i++) y[i] = fill;
      }
    }
  }
  return 0;
}

// Sums of slices by weights.
int mixed(const Word* block, const Word* at) {
  const Word before = block[AT_DIMS], out = block[AT_DIMS + 1], after = block[AT_ROW];
  const Word size = reach_of(block, 0) / after + 1, taps = reach_of(block, 1) + 1;
  const Word* places = elements<const Word>(at[1]);
  const float *x = elements<const float>(at[0]), *weights = elements<const float>(at[2]);
  float* y = elements<float>(at[3]);
  for (Word k = 0; k < before; k++, x += size * after) {
    for (Word o = 0; o < out; o++, y += after) {
      for (Word i = 0; i < after; i++) y[i] = 0;
      for (Word tap = o * taps; tap < (o + 1) * taps; tap++) {
        if (places[tap] < 0 || places[tap] >= size) return BAD_INDEX;
        const float *read = x + places[tap] * after, weight = weights[tap];
        if (weight == 0) continue;
        for (Word i = 0; i < after; i++) y[i] += weight * read[i];
      }
    }
  }
  return 0;
}

// Runs of several tensors that one holds.
template <class T>
int joined(const Word* block, const Word* at) {
  const Word last = block[AT_OPERANDS] - 1;
  T* y = elements<T>(at[last]);
  for (Word k = 0; k < block[AT_DIMS]; k++) {
    for (Word operand = 0; operand < last; operand++) {
      const Word count = reach_of(block, operand) + 1;
      copy(elements<const T>(at[operand]) + k * count, y, count);
      y += count;
    }
  }
  return 0;
}

// Rows of matrices from a bound on, or up to it; else 0.
template <class T, bool UPPER>
int triangle(const Word* block, const Word* at) {
  return walk<3>(block, at, [](Word count, const Word* places, const Word*) {
    const Word bound = *elements<const Word>(places[1]), cut = bound < 0 ? 0 : bound < count ? bound : count;
    const Word kept = UPPER ? cut : 0, zeros = UPPER ? 0 : cut, size = UPPER ? count - cut : cut;
    T* y = elements<T>(places[2]);
    copy(elements<const T>(places[0]) + kept, y + kept, size);
    for (Word i = zeros; i < zeros + count - size; i++) y[i] = T(0);
  });
}

constexpr auto same = [](auto x) { return x; };

// Along a row that one truth value is of, elements are copied.
template <class T>
int where(const Word* block, const Word* at) {
  return walk<4>(block, at, [](Word count, const Word* places, const Word* by) {
    if (by[0] != 0) {
      const auto choose = [](int which, T a, T b) { return which != 0 ? a : b; };
      return compute_row<T, of::uint8, T, T>(count, places, by, choose, Cases<1, 3, 5, 7>{});
    }
    const int chosen = *elements<const of::uint8>(places[0]) != 0 ? 1 : 2;
    const Word order[] = {places[chosen], places[3]}, steps[] = {by[chosen], by[3]};
    compute_row<T, T>(count, order, steps, same, ONE);
  });
}

}  // namespace

EP_SIZES(copied, each<T, T>(block, at, same, ONE))
EP_SIZES(where, where<T>(block, at))

EP_SIZES(picked, picked<T>(block, at))
EP_FLOAT(mixed, mixed(block, at))
EP_SIZES(joined, joined<T>(block, at))
EP_SIZES(upper, triangle<T, true>(block, at))
EP_SIZES(lower, triangle<T, false>(block, at))
