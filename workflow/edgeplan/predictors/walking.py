"""Evaluates ensembles on many rows by compiled code: the same sums as `Forest.raw`, bit by bit, in a small part of its time.

Rows and thresholds become ranks among the thresholds of their feature, so that a node is one word; the two children of a node
lie side by side; rows go through a tree eight at a time, since each step waits for the one before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from edgeplan.predictors.trees import Forest
from edgeplan.support import cpus
from edgeplan.support.compiled import compiled

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Job = TypeVar("Job")

# A node: bit 63 tells a leaf; then its feature, the rank of its threshold, and its left child, right before the right one.
# A leaf has feature 0, the greatest rank and itself as left child, so that another step stays there.
_FEATURE_AT, _RANK_AT = 48, 24
_LEAF = np.uint64(1 << 63)
_FEATURE = np.uint64((1 << 15) - 1)
_LOW = np.uint64((1 << 24) - 1)  # ranks and children
_BY_FEATURE, _BY_RANK = np.uint64(_FEATURE_AT), np.uint64(_RANK_AT)

_LANES = 8
_ROWS = 128  # ranks of so many rows stay in the first cache beside a tree


@dataclass(frozen=True)
class Walk:
    """Holds one ensemble, laid out for walking many rows through it.

    Attributes:
        roots: first node of each tree (trees,).
        words: the nodes (nodes,).
        values: outputs of the leaves (nodes,).
        thresholds: distinct thresholds, ascending, of one feature after the other.
        first: first threshold of each feature, and one past the last (features + 1,).
        outputs, scale: as in `Ensemble`.
    """

    roots: Words
    words: Words
    values: Floats
    thresholds: Floats
    first: Integers
    outputs: int
    scale: float

    @staticmethod
    def of(forest: Forest, number: int, features: int) -> Walk | None:
        """Lay out ensemble `number` of a forest whose rows have so many features; None if a word cannot number its nodes."""
        trees = forest.roots[forest.tree_start[number] : forest.tree_start[number + 1]].astype(np.int64)
        room = len(forest.feature)
        feature, value, left = np.empty(room, np.int64), np.empty(room), np.empty(room, np.int64)
        roots = np.empty(len(trees), np.int64)
        used = int(_laid_out(trees, forest.feature, forest.value, forest.child, roots, feature, value, left))
        if used < 0 or feature[:used].max(initial=-1) >= features:  # compiled code checks no index
            raise ValueError("the nodes are not trees over these features")
        if used > int(_LOW):
            return None
        feature, value, left = feature[:used], value[:used].copy(), left[:used]
        rank, thresholds = np.full(used, int(_LOW)), []
        for column in range(features):
            nodes = np.flatnonzero(feature == column)
            distinct, rank[nodes] = np.unique(value[nodes], return_inverse=True)
            thresholds.append(distinct)
        words = (np.maximum(feature, 0) << _FEATURE_AT | rank << _RANK_AT | left).astype(np.uint64)
        words[feature < 0] |= _LEAF
        return Walk(
            roots.astype(np.uint64),
            words,
            value,
            np.concatenate(thresholds),
            np.cumsum([0, *map(len, thresholds)]),
            int(forest.outputs[number]),
            float(forest.scale[number]),
        )

    def raw(self, rows: Floats) -> Floats:
        """Return the raw scores of rows (n, features) on the calling thread, without the interpreter (n, outputs)."""
        if rows.shape[1] != len(self.first) - 1:
            raise ValueError(f"rows of {rows.shape[1]} features, not {len(self.first) - 1}")
        total = np.zeros((len(rows), self.outputs))
        _walked(np.ascontiguousarray(rows), self.first, self.thresholds, self.roots, self.words, self.values, total)
        return total * self.scale


@compiled
def _laid_out(
    trees: Integers,
    feature: npt.NDArray[np.int16],
    value: Floats,
    child: npt.NDArray[np.int32],
    roots: Integers,
    placed_feature: Integers,
    placed_value: Floats,
    left: Integers,
) -> int:
    """Lay the nodes of the trees out level by level, siblings side by side; `left` is each one's first child, a leaf's itself.

    Returns:
        How many, or -1 if they do not fit: then some node has two parents.
    """
    used = 0
    for tree in range(len(trees)):
        if used == len(left):
            return -1
        roots[tree] = used
        # Until its place is come to, `left` of a node holds where it was.
        left[used] = trees[tree]
        end, at = used + 1, used
        while at < end:
            node = left[at]
            placed_feature[at], placed_value[at] = feature[node], value[node]
            if feature[node] < 0:
                left[at] = at
            elif end + 2 > len(left):
                return -1
            else:
                left[end], left[end + 1] = child[node, 0], child[node, 1]
                left[at] = end
                end += 2
            at += 1
        used = end
    return used


@compiled
def _next(word: Any, ranks: npt.NDArray[np.uint32], row: Any) -> Any:
    goes_right = ranks[row + ((word >> _BY_FEATURE) & _FEATURE)] > ((word >> _BY_RANK) & _LOW)
    return (word & _LOW) + np.uint64(goes_right)


@compiled
def _ranked(rows: Floats, begin: int, count: int, first: Integers, thresholds: Floats, ranks: npt.NDArray[np.uint32]) -> None:
    """Count the thresholds of a feature below each value; none below NaN, which then goes left."""
    features = rows.shape[1]
    for i in range(count):
        for f in range(features):
            value = rows[begin + i, f]
            low, high = first[f], first[f + 1]
            while low < high:
                middle = (low + high) // 2
                if thresholds[middle] < value:
                    low = middle + 1
                else:
                    high = middle
            ranks[i * features + f] = low - first[f]


@compiled
def _walked(
    rows: Floats, first: Integers, thresholds: Floats, roots: Words, words: Words, values: Floats, total: Floats
) -> None:
    features, outputs = rows.shape[1], total.shape[1]
    ranks = np.zeros(_ROWS * features, np.uint32)
    width = np.uint64(features)
    for begin in range(0, len(rows), _ROWS):
        count = min(_ROWS, len(rows) - begin)
        _ranked(rows, begin, count, first, thresholds, ranks)
        for tree in range(len(roots)):
            out = tree % outputs
            for group in range(0, count, _LANES):  # the last one takes rows of an earlier block along
                r0 = np.uint64(group) * width
                r1 = r0 + width
                r2 = r1 + width
                r3 = r2 + width
                r4 = r3 + width
                r5 = r4 + width
                r6 = r5 + width
                r7 = r6 + width
                n0 = n1 = n2 = n3 = n4 = n5 = n6 = n7 = roots[tree]
                while True:
                    w0, w1, w2, w3 = words[n0], words[n1], words[n2], words[n3]
                    w4, w5, w6, w7 = words[n4], words[n5], words[n6], words[n7]
                    if (w0 & w1 & w2 & w3 & w4 & w5 & w6 & w7) & _LEAF:
                        break
                    n0, n1, n2, n3 = _next(w0, ranks, r0), _next(w1, ranks, r1), _next(w2, ranks, r2), _next(w3, ranks, r3)
                    n4, n5, n6, n7 = _next(w4, ranks, r4), _next(w5, ranks, r5), _next(w6, ranks, r6), _next(w7, ranks, r7)
                leaves = (n0, n1, n2, n3, n4, n5, n6, n7)
                for lane in range(min(_LANES, count - group)):
                    total[begin + group + lane, out] += values[leaves[lane]]


@cache
def load() -> None:
    """Compile or load the walking code, by walking one tree of one leaf."""
    leaf = Forest.from_arrays(
        {
            "tree_start": np.array([0, 1], np.int32),
            "outputs": np.ones(1, np.int32),
            "scale": np.ones(1),
            "roots": np.zeros(1, np.int32),
            "feature": np.array([-1], np.int16),
            "value": np.zeros(1),
            "child": np.zeros((1, 2), np.int32),
        },
        features=1,
    )
    if walk := Walk.of(leaf, 0, 1):
        walk.raw(np.zeros((1, 1)))


def on_all_cores(work: Callable[[Job], None], jobs: Iterable[Job]) -> None:
    """Run independent jobs on a thread a core: compiled code and numpy let other threads run while they compute."""
    with ThreadPoolExecutor(cpus.workers()) as pool:
        for _ in pool.map(work, jobs):
            pass
