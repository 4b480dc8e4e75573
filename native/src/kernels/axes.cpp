// Kernels that go along an axis.
#include <functional>
#include <utility>

#include "kernels.h"

namespace {

// Where the best element is.
template <class T, class Better>
int best(const Word* block, const Word* at, Better better) {
  return walk<2>(block, at, [=](Word count, const Word* places, const Word* by) {
    const Row<T, ANY> x(places[0], by[0]);
    Word found = 0;
    for (Word i = 1; i < count; i++) {
      if (better(x[i], x[found])) found = i;
    }
    *elements<Word>(places[1]) = found;
  });
}

template <class T>
int summed(const Word* block, const Word* at) {
  return walk<2>(block, at, [](Word count, const Word* places, const Word* by) {
    const Row<T, ANY> x(places[0], by[0]);
    T *y = elements<T>(places[1]), total = x[0];
    y[0] = total;
    for (Word i = 1; i < count; i++) y[i * by[1]] = total = added(total, x[i]);
  });
}

// Sums of the elements before; of floats in double precision.
template <class T>
int summed_before(const Word* block, const Word* at) {
  using Total = std::conditional_t<std::is_floating_point_v<T>, double, T>;
  return walk<2>(block, at, [](Word count, const Word* places, const Word* by) {
    const Row<T, ANY> x(places[0], by[0]);
    T* y = elements<T>(places[1]);
    Total total = 0;
    for (Word i = 0; i < count; i++) {
      const Total given = x[i];
      y[i * by[1]] = T(total);
      total = added(total, given);
    }
  });
}

template <class T, class Function>
int reduced(const Word* block, const Word* at, Function function) {
  return walk<2>(block, at, [=](Word count, const Word* places, const Word* by) {
    const auto run = [=](auto x) {
      T found = x[0];
      for (Word i = 1; i < count; i++) found = function(found, x[i]);
      *elements<T>(places[1]) = found;
    };
    if (by[0] == 1) run(Row<T, 1>(places[0], 1));
    else run(Row<T, ANY>(places[0], by[0]));
  });
}

// Values and their places, in the memory of what is written: the worst first, and each before two no worse.
template <class T, class Better>
struct Heap {
  T* values;
  Word *places, value_step, place_step;
  Better better;

  T& value(Word k) const { return values[k * value_step]; }
  Word& place(Word k) const { return places[k * place_step]; }

  // Of equal values the later is the worse.
  bool worse(Word a, Word b) const {
    return better(value(b), value(a)) || (!better(value(a), value(b)) && place(a) > place(b));
  }

  void swap(Word a, Word b) const {
    std::swap(value(a), value(b));
    std::swap(place(a), place(b));
  }

  void rise(Word k) const {
    for (Word above; k > 0 && worse(k, above = (k - 1) / 2); k = above) swap(k, above);
  }

  void sink(Word size) const {
    for (Word k = 0, child = 1; child < size; k = child, child = 2 * k + 1) {
      if (child + 1 < size && worse(child + 1, child)) child++;
      if (worse(k, child)) return;
      swap(k, child);
    }
  }
};

// As many of the best as a row is long, the best first: a heap of the best so far, then sorted.
template <class T, class Better>
int chosen(const Word* block, const Word* at, Better better) {
  return walk<3>(block, at, [=](Word count, const Word* places, const Word* by) {
    const Row<T, ANY> x(places[0], by[0]);
    const Heap<T, Better> heap{elements<T>(places[1]), elements<Word>(places[2]), by[1], by[2], better};
    const Word end = count + (by[0] != 0 ? reach_of(block, 0) / by[0] : 0);
    for (Word k = 0; k < count; k++) {
      heap.value(k) = x[k];
      heap.place(k) = k;
      heap.rise(k);
    }
    for (Word i = count; i < end; i++) {
      if (!better(x[i], heap.value(0))) continue;
      heap.value(0) = x[i];
      heap.place(0) = i;
      heap.sink(count);
    }
    for (Word size = count - 1; size > 0; size--) {
      heap.swap(0, size);
      heap.sink(size);
    }
  });
}

}  // namespace

EP_NUMBERS(largest, best<T>(block, at, std::greater<>{}))
EP_NUMBERS(last_largest, best<T>(block, at, std::greater_equal<>{}))
EP_NUMBERS(smallest, best<T>(block, at, std::less<>{}))
EP_NUMBERS(last_smallest, best<T>(block, at, std::less_equal<>{}))

EP_NUMBERS(summed, summed<T>(block, at))
EP_NUMBERS(summed_before, summed_before<T>(block, at))

EP_NUMBERS(highest, chosen<T>(block, at, std::greater<>{}))
EP_NUMBERS(lowest, chosen<T>(block, at, std::less<>{}))

#undef EP_WIDE
#define EP_WIDE EP_CLONES_256  // these alone gain by vectors
EP_INTEGERS(total, reduced<T>(block, at, added))
EP_NUMBERS(product, reduced<T>(block, at, multiplied))
EP_WHOLE(most, reduced<T>(block, at, most))
EP_WHOLE(least, reduced<T>(block, at, least))
