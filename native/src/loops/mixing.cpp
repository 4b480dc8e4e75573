// Words mixed into a few, at the speed of memory: what checksums are made from.
#include "loops.h"

using Bits = std::uint64_t;

namespace {

constexpr Bits FACTOR = 0x9E3779B97F4A7C15;  // odd, so multiplying loses nothing: of the golden ratio

// A multiplication moves bits up only; turned, the highest come to matter for those of the next word.
Bits mixed(Bits state, Bits word) {
  const Bits product = (state ^ word) * FACTOR;
  return product << 29 | product >> 35;
}

}  // namespace

void loops::mix(const Bits* words, Word count, Bits* states) {
  Bits a = states[0], b = states[1], c = states[2], d = states[3];
  Word k = 0;
  for (; k + loops::LANES <= count; k += loops::LANES) {
    a = mixed(a, words[k]), b = mixed(b, words[k + 1]);
    c = mixed(c, words[k + 2]), d = mixed(d, words[k + 3]);
  }
  for (; k < count; ++k) a = mixed(a, words[k]);
  states[0] = a, states[1] = b, states[2] = c, states[3] = d;
}
