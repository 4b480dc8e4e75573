// Walks many rows through an ensemble of trees (edgeplan's predictors/walking.py).
//
// A node is a word: bit 63 tells a leaf; then its feature, the rank of its threshold among those of the
// feature, and its left child, right before the right one. A leaf has feature 0, the greatest rank and itself
// as left child, so that another step stays there.
#include "../base.h"

#include <algorithm>

namespace {

using Node = std::uint64_t;
using Rank = std::uint32_t;

constexpr Node LEAF = Node{1} << 63;
constexpr Node LOW = (Node{1} << 24) - 1; // ranks and children
constexpr int RANK_AT = 24, FEATURE_AT = 48;

constexpr Word LANES = 8;  // rows that go through a tree together: each step waits for the one before it
constexpr Word ROWS = 128; // ranks of so many rows stay in the first cache beside a tree

// Ranks of the rows of a group lie side by side, feature by feature.
constexpr int LANES_AT = 3;
static_assert(LANES == 1 << LANES_AT && ROWS % LANES == 0, "groups are whole");
constexpr Node FEATURES = ((Node{1} << 15) - 1) << LANES_AT;

struct Ensemble {
  const Word *first; // threshold of each feature, and one past the last
  const double *thresholds;
  const Node *roots;
  Word trees;
  const Node *words;
  const double *values;
  Word features, outputs;
};

// How many of ascending thresholds are below a value; none is below NaN, which then goes left. It multiplies
// where it could branch: no processor would guess which way.
Rank below(const double *thresholds, Word count, double value) {
  const double *from = thresholds;
  while (count > 1) {
    const Word half = count / 2;
    from += half * (from[half - 1] < value);
    count -= half;
  }
  return static_cast<Rank>(from - thresholds + (count && *from < value));
}

void rank(const Ensemble &ensemble, const double *rows, Word count, Rank *ranks) {
  const Word features = ensemble.features;
  for (Word i = 0; i < count; ++i) {
    Rank *own = ranks + i / LANES * LANES * features + i % LANES;
    for (Word f = 0; f < features; ++f) {
      const Word first = ensemble.first[f], end = ensemble.first[f + 1];
      own[f * LANES] = below(ensemble.thresholds + first, end - first, rows[i * features + f]);
    }
  }
}

Node next(Node word, const Rank *ranks) {
  const bool goes_right = ranks[(word >> (FEATURE_AT - LANES_AT)) & FEATURES] > ((word >> RANK_AT) & LOW);
  return (word & LOW) + goes_right;
}

// Takes a group of rows from the root of a tree to their leaves.
void walk(const Node *words, Node root, const Rank *ranks, Node (&at)[LANES]) {
  std::fill(at, at + LANES, root);
  for (;;) {
    Node word[LANES], all = LEAF;
    for (Word lane = 0; lane < LANES; ++lane) {
      word[lane] = words[at[lane]];
      all &= word[lane];
    }
    if (all) return;
    for (Word lane = 0; lane < LANES; ++lane) at[lane] = next(word[lane], ranks + lane);
  }
}

// Adds the leaves of a block of rows, which are ranked. Its last group takes rows of an earlier block along.
void add(const Ensemble &ensemble, const Rank *ranks, Word count, double *total) {
  for (Word tree = 0; tree < ensemble.trees; ++tree) {
    double *out = total + tree % ensemble.outputs;
    for (Word group = 0; group < count; group += LANES) {
      Node leaves[LANES];
      walk(ensemble.words, ensemble.roots[tree], ranks + group * ensemble.features, leaves);
      const Word end = std::min(count, group + LANES);
      for (Word row = group; row < end; ++row)
        out[row * ensemble.outputs] += ensemble.values[leaves[row - group]];
    }
  }
}

} // namespace

// Lays trees out level by level, siblings side by side.
//
// roots: of the trees, in a forest of `feature`, `value` and `child`; a leaf has feature -1.
// left: the first child of each node, a leaf's itself; it and the other arrays of nodes hold `room` of them.
// Returns how many nodes, or -1 if they do not fit: then some node has two parents.
EP_EXPORT Word ep_trees_laid_out(const Word *roots, Word trees, const std::int16_t *feature,
                                 const double *value, const std::int32_t *child, Word room,
                                 Word *placed_roots, Word *placed_feature, double *placed_value, Word *left) {
  Word used = 0;
  for (Word tree = 0; tree < trees; ++tree) {
    if (used == room) return -1;
    placed_roots[tree] = used;
    left[used] = roots[tree]; // until its place is come to, `left` of a node holds where it was
    Word end = used + 1;
    for (Word at = used; at < end; ++at) {
      const Word node = left[at];
      placed_feature[at] = feature[node];
      placed_value[at] = value[node];
      if (feature[node] < 0) {
        left[at] = at;
        continue;
      }
      if (end + 2 > room) return -1;
      left[end] = child[2 * node];
      left[end + 1] = child[2 * node + 1];
      left[at] = end;
      end += 2;
    }
    used = end;
  }
  return used;
}

// Adds what each tree says of each row to `total` (count, outputs), tree after tree.
//
// rows: (count, features). ranks: memory for ROWS of them, zeros.
EP_EXPORT void ep_trees_walked(const double *rows, Word count, Word features, const Word *first,
                               const double *thresholds, const Node *roots, Word trees, const Node *words,
                               const double *values, Rank *ranks, double *total, Word outputs) {
  const Ensemble ensemble{first, thresholds, roots, trees, words, values, features, outputs};
  for (Word begin = 0; begin < count; begin += ROWS) {
    const Word block = std::min(ROWS, count - begin);
    rank(ensemble, rows + begin * features, block, ranks);
    add(ensemble, ranks, block, total + begin * outputs);
  }
}
