// Kernels that pick elements, whatever they hold, and write elements by indices.
#include "kernels.h"

namespace {

using Far = std::uint64_t;

// The place that an index names on an axis, from its end if it is negative; -1: none.
Word placed(Word index, Word size) {
  const Word place = index < 0 ? Word(Far(index) + Far(size)) : index;
  return 0 <= place && place < size ? place : -1;
}

// Where what so many indices name begins, at most as far as an operand reaches; -1: nowhere. A table says how many
// there are, then of each axis its size and stride: it comes from a file, as weights do.
template <class Index>
Word begin_of(const Index* indices, Word count, const Word* table, Word reach) {
  Far begin = 0;
  for (Word k = 0; k < count; k++) {
    const Word place = placed(indices[k], table[1 + 2 * k]);
    if (place < 0) return -1;
    begin += Far(place) * Far(table[2 + 2 * k]);
  }
  return begin <= Far(reach) ? Word(begin) : -1;
}

// Slices as long as a row; the operand reaches as far as the last one begins.
template <class T, class Index>
int gathered(const Word* block, const Word* at) {
  const Word size = reach_of(block, 0) / block[AT_ROW] + 1;
  return walk<3>(block, at, [=](Word count, const Word* places, const Word*) {
    const Word place = placed(*elements<const Index>(places[1]), size);
    if (place < 0) return BAD_INDEX;
    copy(elements<const T>(places[0]) + place * count, elements<T>(places[2]), count);
    return 0;
  });
}

template <class T, class Index>
int gathered_slices(const Word* block, const Word* at) {
  const Word named = reach_of(block, 1) + 1, reach = reach_of(block, 0);
  return walk<4>(block, at, [=](Word count, const Word* places, const Word* by) {
    const Word begin = begin_of(elements<const Index>(places[1]), named, elements<const Word>(places[2]), reach);
    if (begin < 0) return BAD_INDEX;
    const T* x = elements<const T>(places[0]) + begin;
    T* y = elements<T>(places[3]);
    if (by[0] == 1 && by[3] == 1) copy(x, y, count);
    else for (Word i = 0; i < count; i++) y[i * by[3]] = x[i * by[0]];
    return 0;
  });
}

template <class T, class Index>
int gathered_elements(const Word* block, const Word* at) {
  const Word reach = reach_of(block, 0);
  return walk<4>(block, at, [=](Word count, const Word* places, const Word* by) {
    const Index* indices = elements<const Index>(places[1]);
    const Word* table = elements<const Word>(places[2]);
    const T* x = elements<const T>(places[0]);
    T* y = elements<T>(places[3]);
    for (Word i = 0; i < count; i++) {
      const Word begin = begin_of(indices + i * by[1], 1, table, reach);
      if (begin < 0) return BAD_INDEX;
      y[i * by[3]] = x[begin + i * by[0]];
    }
    return 0;
  });
}

// Written to places that indices name: operands are the data, the indices, what is written, and such a table

constexpr auto replaced = [](auto, auto given) { return given; };
using Replaced = std::remove_const_t<decltype(replaced)>;

// A slice for each row of indices, in their order.
template <class T, class Index, class Function>
int scattered_slices(const Word* block, const Word* at, Function function) {
  copy(elements<const T>(at[0]), elements<T>(at[4]), reach_of(block, 0) + 1);
  const Word named = reach_of(block, 1) + 1, reach = reach_of(block, 4);
  return walk<5>(block, at, [=](Word count, const Word* places, const Word*) {
    const Word begin = begin_of(elements<const Index>(places[1]), named, elements<const Word>(places[3]), reach);
    if (begin < 0) return BAD_INDEX;
    const T* given = elements<const T>(places[2]);
    T* y = elements<T>(places[4]) + begin;
    if constexpr (std::is_same_v<Function, Replaced>) copy(given, y, count);
    else for (Word i = 0; i < count; i++) y[i] = function(y[i], given[i]);
    return 0;
  });
}

// An element for each index, in their order.
template <class T, class Index, class Function>
int scattered_elements(const Word* block, const Word* at, Function function) {
  copy(elements<const T>(at[0]), elements<T>(at[4]), reach_of(block, 0) + 1);
  const Word reach = reach_of(block, 4);
  return walk<5>(block, at, [=](Word count, const Word* places, const Word* by) {
    const Index* indices = elements<const Index>(places[1]);
    const T* given = elements<const T>(places[2]);
    const Word* table = elements<const Word>(places[3]);
    T* y = elements<T>(places[4]);
    for (Word i = 0; i < count; i++) {
      const Word begin = begin_of(indices + i, 1, table, reach);
      if (begin < 0) return BAD_INDEX;
      T& held = y[begin + i * by[4]];
      held = function(held, given[i]);
    }
    return 0;
  });
}

}  // namespace

// What becomes of an element that several are written to, by a part of the kernel's name.
#define EP_SCATTERED(what, index)                                                                        \
  EP_SIZES(scattered_by_##what##_##index, scattered_##what<T, of::index>(block, at, replaced))           \
  EP_NUMBERS(scattered_by_##what##_add_##index, scattered_##what<T, of::index>(block, at, added))        \
  EP_NUMBERS(scattered_by_##what##_mul_##index, scattered_##what<T, of::index>(block, at, multiplied))   \
  EP_NUMBERS(scattered_by_##what##_max_##index, scattered_##what<T, of::index>(block, at, most))         \
  EP_NUMBERS(scattered_by_##what##_min_##index, scattered_##what<T, of::index>(block, at, least))
#define EP_INDEXED(index)                                                             \
  EP_SIZES(gathered_by_##index, gathered<T, of::index>(block, at))                    \
  EP_SIZES(gathered_by_slices_##index, gathered_slices<T, of::index>(block, at))      \
  EP_SIZES(gathered_by_elements_##index, gathered_elements<T, of::index>(block, at))  \
  EP_SCATTERED(elements, index)
EP_INDEXED(int32)
EP_INDEXED(int64)
EP_SCATTERED(slices, int64)  // ONNX fixes the type of these indices
