"""Stores predictors small enough to be shipped: the trees of a device in one file of a few MB, read without LightGBM or pickle.

Nodes stand level by level over all trees, so that the children of the k-th inner node are known
without being stored; a threshold is its rank among the thresholds of its feature, of which there are
few; leaves are half-precision floats. Branches whose leaves hardly differ are cut first (`cut`).
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.errors import FormatError
from edgeplan.predictors.card import Card
from edgeplan.predictors.packing import check_features, width_of
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.predictors.trees import Forest, Integers
from edgeplan.support.files import read_json, write_atomically, write_text

CARD, TREES = "card.json", "trees.npz"
_AGAIN = "install edgeplan again; in a checkout: make distil"
_LEAF = -1


def save_distilled(predictor: DevicePredictor, folder: Path, tolerance: float) -> None:
    """Write card.json and trees.npz, the same bytes for the same predictors.

    Args:
        predictor: the predictors of a device.
        folder: folder to write to.
        tolerance: see `cut`.
    """
    content = _encoded(cut(predictor.forest, tolerance), width_of(predictor.card))
    write_atomically(folder / TREES, lambda temporary: temporary.write_bytes(content))
    write_text(folder / CARD, predictor.card.model_dump_json(indent=1) + "\n")


def load_distilled(folder: Path) -> DevicePredictor:
    """Read predictors that `save_distilled` wrote."""
    card = read_json(folder / CARD, Card, "the card of the predictors")
    path = folder / TREES
    check_features(card, str(folder / CARD), _AGAIN)
    try:
        with np.load(path, allow_pickle=False) as stored:
            forest = _decoded({name: stored[name] for name in stored.files}, width_of(card))
    except (OSError, ValueError, TypeError, KeyError, IndexError, EOFError, zipfile.BadZipFile) as error:
        raise FormatError(f"the trees cannot be read: {error}", where=str(path), next_step=_AGAIN) from error
    return DevicePredictor(card, {}, forest)


def cut(forest: Forest, tolerance: float) -> Forest:
    """Return a forest in which branches whose leaves hardly differ are one leaf: the mean of the leaves.

    Args:
        forest: any; ensembles of one output predict the logarithm of latency over work.
        tolerance: greatest distance of a leaf from the mean of its branch; scores of classifiers, which are compared with each
            other, are left alone.
    """
    low, high, total = forest.value.copy(), forest.value.copy(), forest.value.copy()
    leaves = np.ones(len(forest.feature))
    single = np.repeat(forest.outputs == 1, np.diff(forest.tree_start))
    feature, value, child = forest.feature.copy(), forest.value.copy(), forest.child.copy()
    for nodes, tree in reversed(_levels(forest)):
        splits = forest.feature[nodes] >= 0
        inner = nodes[splits]
        left, right = forest.child[inner].T
        low[inner], high[inner] = np.minimum(low[left], low[right]), np.maximum(high[left], high[right])
        total[inner], leaves[inner] = total[left] + total[right], leaves[left] + leaves[right]
        mean = total[inner] / leaves[inner]
        ends = single[tree[splits]] & (np.maximum(high[inner] - mean, mean - low[inner]) <= tolerance)
        feature[inner[ends]], value[inner[ends]], child[inner[ends]] = _LEAF, mean[ends], inner[ends, None]
    return replace(forest, feature=feature, value=value, child=child)


def _levels(forest: Forest) -> list[tuple[Integers, Integers]]:
    """Return the nodes level by level, with the tree of each: roots first, then children in the order of their level."""
    nodes, tree = forest.roots, np.arange(len(forest.roots), dtype=np.int32)
    levels = []
    while len(nodes):
        levels.append((nodes, tree))
        splits = forest.feature[nodes] >= 0
        nodes, tree = forest.child[nodes[splits]].ravel(), np.repeat(tree[splits], 2)
    return levels


def _encoded(forest: Forest, width: int) -> bytes:
    order = np.concatenate([nodes for nodes, _ in _levels(forest)] or [np.zeros(0, np.int32)])
    feature, value = forest.feature[order], forest.value[order]
    splits = feature >= 0
    rank, thresholds, first = np.zeros(len(order), np.int64), [np.zeros(0)], [0]
    for column in range(width):
        at = np.flatnonzero(feature == column)
        distinct, rank[at] = np.unique(value[at], return_inverse=True)
        thresholds.append(distinct)
        first.append(first[-1] + len(distinct))
    if max(np.diff(first)) > np.iinfo(np.uint16).max:
        raise ValueError("a feature has more thresholds than a rank can tell")
    ranks = rank[splits].astype(np.uint16)
    content = io.BytesIO()
    np.savez_compressed(
        content,
        tree_start=forest.tree_start,
        outputs=forest.outputs,
        scale=forest.scale,
        trees=np.array(len(forest.roots)),
        feature=feature.astype(np.int8),
        # the bytes of a rank apart from each other: they compress better
        rank_low=(ranks & 0xFF).astype(np.uint8),
        rank_high=(ranks >> 8).astype(np.uint8),
        first=np.array(first, np.int32),
        thresholds=np.concatenate(thresholds),
        leaves=value[~splits].astype(np.float16),
    )
    return content.getvalue()


def _decoded(stored: Mapping[str, npt.NDArray[Any]], width: int) -> Forest:
    """Return the numbers that `_encoded` encoded, to the half precision of leaves."""
    feature, trees = stored["feature"].astype(np.int16), int(stored["trees"])
    inner, leaves = np.flatnonzero(feature >= 0), np.flatnonzero(feature < 0)
    column = feature[inner]
    rank = stored["rank_low"].astype(np.int64) | stored["rank_high"].astype(np.int64) << 8
    place = stored["first"].astype(np.int64)[column] + rank
    value = np.empty(len(feature))
    value[inner], value[leaves] = stored["thresholds"][place], stored["leaves"]
    child = np.repeat(np.arange(len(feature), dtype=np.int32)[:, None], 2, axis=1)
    child[inner] = trees + 2 * np.arange(len(inner), dtype=np.int32)[:, None] + np.array([0, 1], np.int32)
    parts = {name: stored[name] for name in ("tree_start", "outputs", "scale")}
    return Forest.from_arrays(
        {**parts, "roots": np.arange(trees, dtype=np.int32), "feature": feature, "value": value, "child": child}, width
    )
