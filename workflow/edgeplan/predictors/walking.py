"""Evaluates tree ensembles of LightGBM's text format without LightGBM, whose import takes longer than a prediction.

Many ensembles are packed into one forest, so that all kernels of a model, each with its own ensemble, are walked in one loop.
The text is trusted as the folder is that it lies in; what an index could break is checked.

Many rows are walked natively: the same sums as `Forest.raw`, bit by bit, in a small part of its time. Rows and thresholds
become ranks among the thresholds of their feature, so that a node is one word; the two children of a node lie side by side;
rows go through a tree eight at a time, since each step waits for the one before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from ctypes import c_int64
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan import native
from edgeplan.errors import FormatError
from edgeplan.support.numerics import array, when_needed

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Integers = npt.NDArray[np.int64]
Places = npt.NDArray[np.int32]

_NEXT_STEP = "train the predictors again, or restore the file from git or the DVC cache"
_COMPACT_EVERY = 3  # steps of a walk between two sweeps that drop the finished lanes
_NOT_READ = (
    *("tree_sizes=", "split_gain=", "leaf_weight=", "leaf_count="),
    *("internal_value=", "internal_weight=", "internal_count="),
)
#: The arrays of a forest, in order.
_ARRAYS = {"tree_start": "i4", "roots": "i4", "feature": "i2", "value": "f8", "child": "i4"}
_Tree = tuple[npt.NDArray[np.int16], Floats, Places]


def _trees(text: str) -> Iterator[_Tree]:
    head, *blocks = text.split("\nTree=")
    if not blocks or not head.startswith("tree"):
        raise ValueError("no trees found")
    if "\nend of trees" not in blocks[-1]:
        raise ValueError("the end of the trees is missing")
    blocks[-1] = blocks[-1].split("\nend of trees")[0]
    lines = head.split("\n")
    header = _pairs(lines)
    features = int(header["max_feature_idx"]) + 1
    if int(header["num_tree_per_iteration"]) != 1 or "average_output" in lines or not 0 < features < np.iinfo(np.int16).max:
        raise ValueError("these are no boosted trees of one output")
    for number, block in enumerate(blocks):
        index, *rest = block.split("\n")
        if int(index) != number:
            raise ValueError(f"tree {number} is missing")
        yield _tree(_pairs(rest), features)


def _pairs(lines: Sequence[str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _tree(fields: Mapping[str, str], features: int) -> _Tree:
    """Return feature, value and children of the nodes of one tree, inner nodes first, then leaves; the root is node 0."""
    leaves = int(fields["num_leaves"])
    inner = leaves - 1
    leaf_value = _numbers(fields, "leaf_value", leaves, np.float64)
    own = np.arange(inner + leaves, dtype=np.int32)
    child = np.column_stack([own, own])
    feature = np.full(inner + leaves, -1, dtype=np.int16)
    value = np.concatenate([np.zeros(inner), leaf_value])
    if inner:
        split = _numbers(fields, "split_feature", inner, np.int64)
        threshold = _numbers(fields, "threshold", inner, np.float64)
        sides = np.column_stack([_numbers(fields, side, inner, np.int64) for side in ("left_child", "right_child")])
        # LightGBM writes leaf k as -k - 1, and inner children after their parents: this also rules out cycles.
        parents = np.arange(inner)[:, None]
        if ((sides >= inner) | (sides < -leaves) | ((sides >= 0) & (sides <= parents))).any():
            raise ValueError("a child does not exist")
        if (split < 0).any() or (split >= features).any():
            raise ValueError("a split uses an unknown feature")
        feature[:inner], value[:inner] = split, threshold
        child[:inner] = np.where(sides >= 0, sides, inner - sides - 1)
    return feature, value, child


def _numbers(fields: Mapping[str, str], key: str, count: int, dtype: Any) -> npt.NDArray[Any]:
    values = np.array(fields[key].split(), dtype=dtype)
    if len(values) != count or count < 0 or not np.isfinite(values).all():
        raise ValueError(f"{key} does not hold {count} finite numbers")
    return values


def slim_text(text: str) -> str:
    """Return a text model without what prediction does not read: about half the size. LightGBM reads it as before."""
    return "\n".join(line for line in text.split("\n") if not line.startswith(_NOT_READ))


@dataclass(frozen=True)
class Forest:
    """Packs ensembles, boosted trees of one output each, into shared arrays.

    Attributes:
        tree_start: first tree of each ensemble, and one past the last (ensembles + 1,).
        roots: first node of each tree (trees,).
        feature: feature of an inner node, -1 for a leaf (nodes,).
        value: threshold of an inner node, output of a leaf (nodes,).
        child: node for "feature <= value" and node otherwise (nodes, 2); a leaf leads to itself.
    """

    tree_start: Places
    roots: Places
    feature: npt.NDArray[np.int16]
    value: Floats
    child: Places

    @staticmethod
    def parse(ensembles: Iterable[Sequence[str]], where: str) -> Forest:
        """Read LightGBM text models (numerical splits, constant leaves); an ensemble is the mean of one or several of them."""
        counts, roots, start = [0], [], 0
        nodes = [(np.zeros(0, np.int16), np.zeros(0), np.zeros((0, 2), np.int32))]
        try:
            for texts in ensembles:
                trees = [tree for text in texts for tree in _trees(text)]
                counts.append(len(trees))
                for feature, value, child in trees:
                    roots.append(start)
                    nodes.append((feature, np.where(feature < 0, value * (1 / len(texts)), value), child + np.int32(start)))
                    start += len(feature)
        except (ValueError, KeyError, IndexError, OverflowError) as error:
            raise FormatError(f"not a valid LightGBM text model: {error}", where=where, next_step=_NEXT_STEP) from error
        arrays = (np.concatenate(parts) for parts in zip(*nodes, strict=True))
        return Forest(np.cumsum(counts, dtype=np.int32), np.array(roots, np.int32), *arrays)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name, for storing; each ensemble has one output and adds up its trees."""
        ones = np.ones(len(self.tree_start) - 1)
        rest = {name: getattr(self, name) for name in _ARRAYS if name != "tree_start"}
        return {"tree_start": self.tree_start, "outputs": ones.astype(np.int32), "scale": ones, **rest}

    @staticmethod
    def from_arrays(arrays: Mapping[str, npt.NDArray[Any]], features: int) -> Forest:
        """Build a forest from the arrays that `arrays` returns."""
        forest = Forest(**{name: arrays[name] for name in _ARRAYS})
        nodes, trees = len(forest.feature), len(forest.roots)
        shapes = (forest.tree_start.shape, (trees,), (nodes,), (nodes,), (nodes, 2))
        for (name, dtype), shape in zip(_ARRAYS.items(), shapes, strict=True):
            if arrays[name].dtype != np.dtype(dtype) or arrays[name].shape != shape:
                raise ValueError("the arrays do not belong together")
        if trees and (forest.roots.min() < 0 or forest.roots.max() >= nodes):
            raise ValueError("a root does not exist")
        if nodes and (forest.child.min() < 0 or forest.child.max() >= nodes or forest.feature.max() >= features):
            raise ValueError("a node does not exist")
        own = np.arange(nodes)[:, None]
        if ((forest.child < own) | ((forest.child == own) & (forest.feature >= 0)[:, None])).any():
            raise ValueError("the nodes run in circles")
        return forest

    def raw(self, rows: Floats, ensemble: int) -> Floats:
        """Return what an ensemble says of rows of features (n, features), by its number (n,)."""
        roots = self.roots[self.tree_start[ensemble] : self.tree_start[ensemble + 1]]
        row = np.repeat(np.arange(len(rows)), len(roots))
        leaf = self._walk(np.ascontiguousarray(rows), row, np.tile(roots, len(rows)))
        return np.bincount(row, self.value[leaf], len(rows)).astype(np.float64)

    def _walk(self, rows: Floats, row: npt.NDArray[Any], node: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the leaf of each lane, a lane being one tree for one row, from its root."""
        flat, child = rows.ravel(), self.child.ravel()
        result = node.copy()
        lanes = np.flatnonzero(self.feature[node] >= 0)
        node, offset = node[lanes].astype(np.int64), row[lanes] * rows.shape[1]
        step = 0
        while len(lanes):
            step += 1
            # A finished lane reads feature -1 of its row, whatever that is: both children of a leaf are the leaf.
            right = flat[offset + self.feature[node]] > self.value[node]
            node = child[2 * node + right]
            if step % _COMPACT_EVERY == 0:
                going = self.feature[node] >= 0
                if not going.all():
                    result[lanes[~going]] = node[~going]
                    lanes, node, offset = lanes[going], node[going], offset[going]
            node = node.astype(np.int64)
        return result


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
