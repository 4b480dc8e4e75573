"""Evaluates tree ensembles of LightGBM's text format by numpy alone: importing LightGBM takes longer than a prediction.

Many ensembles are packed into one forest, so that all kernels of a model, each with its own ensemble, are walked in one loop.
The text is trusted as the folder is that it lies in; what an index could break is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.errors import FormatError

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]

_NEXT_STEP = "train the predictors again, or restore the file from git or the DVC cache"
_COMPACT_EVERY = 3  # steps of a walk between two sweeps that drop the finished lanes
_NOT_READ = (
    "tree_sizes=",
    "split_gain=",
    "leaf_weight=",
    "leaf_count=",
    "internal_value=",
    "internal_weight=",
    "internal_count=",
)
#: Of the arrays of a forest, in order.
_DTYPES = tuple(np.dtype(name) for name in ("i4", "i4", "f8", "i4", "i2", "f8", "i4"))


@dataclass(frozen=True)
class Ensemble:
    """Holds the trees of one text model.

    Attributes:
        roots: first node of each tree (trees,).
        outputs: values predicted for a row (classes; 1 for a regression); tree t adds to output t % outputs.
        scale: factor on the summed leaves: 1, or 1 / iterations for a random forest.
        feature: feature of an inner node, -1 for a leaf (nodes,).
        value: threshold of an inner node, output of a leaf (nodes,).
        child: node for "feature <= value" and node otherwise (nodes, 2); a leaf leads to itself.
        features: number of features of a row.
    """

    roots: Integers
    outputs: int
    scale: float
    feature: npt.NDArray[np.int16]
    value: Floats
    child: Integers
    features: int


def parse_ensemble(text: str, where: str) -> Ensemble:
    """Parse a LightGBM text model (numerical splits, constant leaves)."""
    try:
        return _parse(text)
    except (ValueError, KeyError, IndexError, OverflowError) as error:
        raise FormatError(f"not a valid LightGBM text model: {error}", where=where, next_step=_NEXT_STEP) from error


def _parse(text: str) -> Ensemble:
    head, *blocks = text.split("\nTree=")
    if not blocks or not head.startswith("tree"):
        raise ValueError("no trees found")
    *_, last = blocks
    if "\nend of trees" not in last:
        raise ValueError("the end of the trees is missing")
    blocks[-1] = last.split("\nend of trees")[0]
    lines = head.split("\n")
    header = _pairs(lines)
    outputs = int(header["num_tree_per_iteration"])
    features = int(header["max_feature_idx"]) + 1
    if outputs < 1 or len(blocks) % outputs or not 0 < features < np.iinfo(np.int16).max:
        raise ValueError("trees, classes and features do not fit")
    roots, trees, start = [], [], 0
    for number, block in enumerate(blocks):
        index, *rest = block.split("\n")
        if int(index) != number:
            raise ValueError(f"tree {number} is missing")
        tree = _tree(_pairs(rest), features, start)
        roots.append(start)
        trees.append(tree)
        start += len(tree[0])
    scale = outputs / len(blocks) if "average_output" in lines else 1.0
    feature, value, child = (np.concatenate(parts) for parts in zip(*trees, strict=True))
    return Ensemble(np.array(roots, dtype=np.int32), outputs, scale, feature, value, child, features)


def _pairs(lines: Sequence[str]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in lines if "=" in line)


def _tree(fields: Mapping[str, str], features: int, start: int) -> tuple[npt.NDArray[np.int16], Floats, Integers]:
    """Return the nodes of one tree, inner nodes first, then leaves; the root is node `start`."""
    leaves = int(fields["num_leaves"])
    inner = leaves - 1
    leaf_value = _numbers(fields, "leaf_value", leaves, np.float64)
    own = np.arange(start, start + inner + leaves, dtype=np.int32)
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
        child[:inner] = np.where(sides >= 0, sides, inner - sides - 1) + start
    return feature, value, child.astype(np.int32)


def _numbers(fields: Mapping[str, str], key: str, count: int, dtype: Any) -> npt.NDArray[Any]:
    values = np.array(fields[key].split(), dtype=dtype)
    if len(values) != count or count < 0 or not np.isfinite(values).all():
        raise ValueError(f"{key} does not hold {count} finite numbers")
    return values


def merge_texts(texts: Sequence[str]) -> str:
    """Merge several single-output models (boosted models of one feature list) into one text model that predicts their mean."""
    if len(texts) == 1:
        return slim_text(texts[0])
    heads, blocks, tail = [], [], ""
    for text in texts:
        head, *trees = text.split("\nTree=")
        trees[-1], tail = trees[-1].split("\nend of trees", 1)
        heads.append(head)
        blocks += [tree.split("\n", 1)[1] for tree in trees]
    scaled = [_scaled(block, 1 / len(texts)) for block in blocks]
    return slim_text(heads[0] + "".join(f"\nTree={i}\n{block}" for i, block in enumerate(scaled)) + "\nend of trees" + tail)


def slim_text(text: str) -> str:
    """Return a text model without what prediction does not read: about half the size. LightGBM reads it as before."""
    return "\n".join(line for line in text.split("\n") if not line.startswith(_NOT_READ))


def _scaled(block: str, factor: float) -> str:
    lines = block.split("\n")
    for i, line in enumerate(lines):
        if line.startswith("leaf_value="):
            lines[i] = "leaf_value=" + " ".join(repr(float(v) * factor) for v in line.split("=", 1)[1].split())
    return "\n".join(lines)


@dataclass(frozen=True)
class Forest:
    """Packs several ensembles into shared arrays; nodes are as in `Ensemble`.

    Attributes:
        tree_start: first tree of each ensemble, and one past the last (ensembles + 1,).
        outputs, scale: outputs and scale of each ensemble (ensembles,).
        roots: first node of each tree (trees,).
        feature, value, child: feature, value and children of each node.
    """

    tree_start: Integers
    outputs: Integers
    scale: Floats
    roots: Integers
    feature: npt.NDArray[np.int16]
    value: Floats
    child: Integers

    @staticmethod
    def pack(ensembles: Sequence[Ensemble]) -> Forest:
        """Pack ensembles into one forest, in order."""
        nodes = np.cumsum([0, *(len(e.feature) for e in ensembles)])
        shifted = list(zip(ensembles, nodes[:-1], strict=True))
        return Forest(
            np.cumsum([0, *(len(e.roots) for e in ensembles)]).astype(np.int32),
            np.array([e.outputs for e in ensembles], dtype=np.int32),
            np.array([e.scale for e in ensembles], dtype=np.float64),
            np.concatenate([e.roots + n for e, n in shifted] or [np.zeros(0, dtype=np.int32)]).astype(np.int32),
            np.concatenate([e.feature for e in ensembles] or [np.zeros(0, dtype=np.int16)]).astype(np.int16),
            np.concatenate([e.value for e in ensembles] or [np.zeros(0)]).astype(np.float64),
            np.concatenate([e.child + n for e, n in shifted] or [np.zeros((0, 2), dtype=np.int32)]).astype(np.int32),
        )

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by name, for storing."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @staticmethod
    def from_arrays(arrays: Mapping[str, npt.NDArray[Any]], features: int) -> Forest:
        """Build a forest from the arrays that `arrays` returns."""
        forest = Forest(**{name: arrays[name] for name in Forest.__dataclass_fields__})
        nodes, trees = len(forest.feature), len(forest.roots)
        count = len(forest.tree_start) - 1
        shapes = ((count + 1,), (count,), (count,), (trees,), (nodes,), (nodes,), (nodes, 2))
        for name, dtype, shape in zip(Forest.__dataclass_fields__, _DTYPES, shapes, strict=True):
            if getattr(forest, name).dtype != dtype or getattr(forest, name).shape != shape:
                raise ValueError("the arrays do not belong together")
        if trees and (forest.roots.min() < 0 or forest.roots.max() >= nodes):
            raise ValueError("a root does not exist")
        if nodes and (forest.child.min() < 0 or forest.child.max() >= nodes or forest.feature.max() >= features):
            raise ValueError("a node does not exist")
        own = np.arange(nodes)[:, None]
        if ((forest.child < own) | ((forest.child == own) & (forest.feature >= 0)[:, None])).any():
            raise ValueError("the nodes run in circles")
        return forest

    def raw(self, rows: Floats, ensemble: npt.NDArray[Any], outputs: int = 1) -> Floats:
        """Return the raw scores of rows, each by its own ensemble.

        Args:
            rows: features (n, features).
            ensemble: ensemble of each row (n,).
            outputs: width of the result; at least that of every ensemble used.

        Returns:
            (n, outputs); columns an ensemble has not are -inf.
        """
        first, count = self.tree_start[ensemble], np.diff(self.tree_start)[ensemble]
        row = np.repeat(np.arange(len(rows)), count)
        within = np.arange(len(row)) - np.repeat(np.cumsum(count) - count, count)
        leaf = self._walk(np.ascontiguousarray(rows), row, self.roots[np.repeat(first, count) + within])
        place = row * outputs + within % np.repeat(self.outputs[ensemble], count)
        total = np.bincount(place, weights=self.value[leaf], minlength=len(rows) * outputs).reshape(len(rows), outputs)
        total *= self.scale[ensemble][:, None]
        total[np.arange(outputs)[None, :] >= self.outputs[ensemble][:, None]] = -np.inf
        return np.asarray(total, dtype=np.float64)

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
