// FlexNN's Algorithm 1 (edgeplan's planning/memory/algorithm1.py): addresses in a buffer of bounded size.
#include "../base.h"

#include <algorithm>

namespace {

// The largest multiple of a unit that is not above a value, and the least one that is not below it.
Word down(Word value, Word unit) {
  const Word rest = value % unit;
  return value - (rest < 0 ? rest + unit : rest);
}

Word up(Word value, Word unit) { return -down(-value, unit); }

// Blocks in a buffer: tensors, then the weights of each step. The caller sees to it that no sum overflows.
struct Blocks {
  Word *address; // -1: not placed
  const Word *size;
  Word *start; // alive in [start, end)
  const Word *end, *unit;
  Word count, budget;

  Blocks(Word *rows, Word blocks, Word bytes)
      : address(rows), size(rows + blocks), start(rows + 2 * blocks), end(rows + 3 * blocks), unit(rows + 4 * blocks),
        count(blocks), budget(bytes) {}

  // Whether block j lies where another one would that lived from `since` on.
  bool in_the_way(Word j, Word block, Word since, Word at) const {
    const bool beside = address[j] >= 0 && j != block && start[j] < end[block] && since < end[j];
    return beside && address[j] < at + size[block] && at < address[j] + size[j];
  }

  // Where a block that lives from `since` on comes to rest, which each block in its way moves on.
  template <class Move>
  Word settled(Word block, Word since, Word at, Move moved) const {
    for (bool again = true; again && at >= 0;) {
      again = false;
      for (Word j = 0; j < count; ++j) {
        if (!in_the_way(j, block, since, at)) continue;
        at = moved(j);
        again = true;
      }
    }
    return at;
  }

  // The lowest address at which a block fits from step `since` on; -1 if there is none.
  Word lowest(Word block, Word since) const {
    const Word at = settled(block, since, 0, [&](Word j) { return up(address[j] + size[j], unit[block]); });
    return at + size[block] <= budget ? at : -1;
  }

  // The highest address at which a block fits; -1 if there is none.
  Word highest(Word block) const {
    const auto below = [&](Word j) { return down(address[j] - size[block], unit[block]); };
    return std::max<Word>(settled(block, start[block], down(budget - size[block], unit[block]), below), -1);
  }

  // Places a block at the end from which it reaches less far into the middle.
  bool at_an_end(Word block) {
    const Word low = lowest(block, start[block]), high = highest(block);
    if (low < 0 || high < 0) return false;
    address[block] = low + size[block] <= budget - high ? low : high;
    return true;
  }

  // Places the weights of a step where they can be allocated earliest.
  bool preload(Word block, Word step) {
    Word first = 0, last = step;
    if (lowest(block, last) < 0) return false;
    while (first < last) { // what fits from a step on fits from later ones on
      const Word middle = (first + last) / 2;
      if (lowest(block, middle) >= 0) last = middle;
      else first = middle + 1;
    }
    address[block] = lowest(block, first);
    start[block] = first;
    return true;
  }

  bool is_activation(Word tensor) const { return end[tensor] - start[tensor] > 1; }

  bool is_intermediate(Word tensor, Word step) const {
    return start[tensor] == step && !is_activation(tensor);
  }

  bool place_intermediates(Word tensors, Word step) {
    for (Word t = 0; t < tensors; ++t) {
      if (is_intermediate(t, step) && (address[t] = lowest(t, step)) < 0) return false;
    }
    return true;
  }

  // Places the weights of a step in the step itself, after the attempt to place them earlier.
  bool place_without_preloading(Word tensors, Word step) {
    for (Word t = 0; t < tensors; ++t) {
      if (is_intermediate(t, step)) address[t] = -1;
    }
    const Word weights = tensors + step;
    address[weights] = -1;
    start[weights] = step;
    address[weights] = lowest(weights, step);
    return address[weights] >= 0 && place_intermediates(tensors, step);
  }
};

} // namespace

// Places all tensors at both ends of a buffer, in their order; whether all fit.
//
// rows: addresses (all -1, written), sizes, first steps, ends of lifetimes, alignments, a row each.
EP_EXPORT int ep_both_ends(Word *rows, Word tensors, const Word *by_begin, Word budget) {
  Blocks blocks(rows, tensors, budget);
  return std::all_of(by_begin, by_begin + tensors, [&](Word t) { return blocks.at_an_end(t); });
}

// Places tensors and weights by Algorithm 1; whether all fit.
//
// rows: as above, of the tensors and then of the weights of each step. The first step of weights becomes the
//   one from which on their memory is free.
EP_EXPORT int ep_algorithm1(Word *rows, Word tensors, Word steps, const Word *by_begin, Word budget) {
  Blocks blocks(rows, tensors + steps, budget);
  for (Word i = 0; i < tensors; ++i) {
    if (blocks.is_activation(by_begin[i]) && !blocks.at_an_end(by_begin[i])) return false;
  }
  for (Word step = 0; step < steps; ++step) {
    const bool placed = blocks.preload(tensors + step, step) && blocks.place_intermediates(tensors, step);
    if (!placed && !blocks.place_without_preloading(tensors, step)) return false;
  }
  return true;
}
