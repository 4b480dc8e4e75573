"""Evaluates ensembles on many rows natively: the same sums as `Forest.raw`, bit by bit, in a small part of its time.

Rows and thresholds become ranks among the thresholds of their feature, so that a node is one word; the two children of a node
lie side by side; rows go through a tree eight at a time, since each step waits for the one before it.
"""

from __future__ import annotations

from ctypes import c_int64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan import native
from edgeplan.predictors.trees import Forest
from edgeplan.support.numerics import array, when_needed

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]

# A node: bit 63 tells a leaf; then its feature, the rank of its threshold, and its left child, right before the right one.
# A leaf has feature 0, the greatest rank and itself as left child, so that another step stays there.
_FEATURE_AT, _RANK_AT = 48, 24
_LEAF = np.uint64(1 << 63)
_LOW = (1 << 24) - 1  # ranks and children

_ROWS = 128  # whose ranks the library holds at a time

_INTEGERS, _WORDS, _FLOATS = map(array, (np.int64, np.uint64, np.float64))
_laid_out = when_needed(
    "trees_laid_out",
    c_int64,
    *(_INTEGERS, c_int64, array(np.int16), _FLOATS, array(np.int32), c_int64),
    *(_INTEGERS, _INTEGERS, _FLOATS, _INTEGERS),
)
_walked = when_needed(
    "trees_walked",
    None,
    *(_FLOATS, c_int64, c_int64, _INTEGERS, _FLOATS),
    *(_WORDS, c_int64, _WORDS, _FLOATS),
    *(array(np.uint32), _FLOATS, c_int64),
)


@dataclass(frozen=True)
class Walk:
    """Holds one ensemble, laid out for walking many rows through it.

    Attributes:
        roots: first node of each tree (trees,).
        thresholds: distinct thresholds, ascending, of one feature after the other.
        first: first threshold of each feature, and one past the last (features + 1,).
    """

    roots: Words
    words: Words
    values: Floats
    thresholds: Floats
    first: Integers

    @staticmethod
    def of(forest: Forest, number: int, features: int) -> Walk | None:
        """Lay out ensemble `number` of a forest whose rows have so many features.

        None where a word cannot number its nodes, or no native library was built: `Forest.raw` needs neither.
        """
        if not native.is_built():
            return None
        trees = forest.roots[forest.tree_start[number] : forest.tree_start[number + 1]].astype(np.int64)
        room = len(forest.feature)
        feature, value, left = np.empty(room, np.int64), np.empty(room), np.empty(room, np.int64)
        roots = np.empty(len(trees), np.int64)
        of_forest = map(np.ascontiguousarray, (forest.feature, forest.value, forest.child))
        used = _laid_out()(trees, len(trees), *of_forest, room, roots, feature, value, left)
        if used < 0 or feature[:used].max(initial=-1) >= features:  # the library checks no index
            raise ValueError("the nodes are not trees over these features")
        if used > _LOW:
            return None
        feature, value, left = feature[:used], value[:used].copy(), left[:used]
        rank, thresholds = np.full(used, _LOW), []
        for column in range(features):
            nodes = np.flatnonzero(feature == column)
            distinct, rank[nodes] = np.unique(value[nodes], return_inverse=True)
            thresholds.append(distinct)
        words = (np.maximum(feature, 0) << _FEATURE_AT | rank << _RANK_AT | left).astype(np.uint64)
        words[feature < 0] |= _LEAF
        first = np.cumsum([0, *map(len, thresholds)])
        return Walk(roots.astype(np.uint64), words, value, np.concatenate(thresholds), first)

    def raw(self, rows: Floats) -> Floats:
        """Return what the ensemble says of rows (n, features), on the calling thread, without the interpreter (n,)."""
        count, features = rows.shape
        if features != len(self.first) - 1:
            raise ValueError(f"rows of {features} features, not {len(self.first) - 1}")
        total, ranks = np.zeros(count), np.zeros(_ROWS * features, np.uint32)
        of_rows = np.ascontiguousarray(rows, np.float64), count, features, self.first, self.thresholds
        of_trees = self.roots, len(self.roots), self.words, self.values
        _walked()(*of_rows, *of_trees, ranks, total, 1)
        return total
