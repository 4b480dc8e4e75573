"""Evaluates what was learnt of executed nodes: physical terms, trees and Gaussian processes of each kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from edgeplan.predictors.nodes.features import SIZES, SPILLED, Floats, Integers, Table, logs, terms
from edgeplan.predictors.nodes.gaussian import Process
from edgeplan.predictors.trees import Forest
from edgeplan.support.lazy import lazily

walking = lazily("edgeplan.predictors.walking")  # many rows alone need it

#: From so many rows on laying out trees for the native library costs less than it saves.
_MANY_ROWS = 2000
#: So many rows go through a process at a time: their covariances with its points fit into the last cache.
_CHUNK = 4096
#: Columns that trees see: logarithms of sizes and work by byte, the key, and time by the terms.
TREE_FEATURES = len(SIZES) + 3
#: Ratios that trees and processes learn are bounded by this, as logarithms: beyond it they guess.
_FARTHEST_RATIO = 1.5


@dataclass(frozen=True)
class KindModel:
    """Predicts nodes of one kind: terms, a level of each key, and the mean of trees and of a process on what is left.

    Attributes:
        work: us per unit of each term, the last one of the prior's time (TERMS + 1,).
        keys: the keys that were measured; a key's place is its code for the trees.
        key_work: the same of a key; that of the kind for keys of few rows (keys, TERMS + 1).
        levels: what nodes of a key take over its terms, shrunk, as a logarithm (keys,).
        rows: measured nodes of each key (keys,).
        processes: by key, where there are rows enough.
        trees: whether trees correct the kind.
        spread: deviation of log time for keys without a process.
        stretch: factor on deviations, by what was seen out of fold.
    """

    work: Floats
    keys: tuple[str, ...]
    key_work: Floats
    levels: Floats
    rows: Integers
    processes: Mapping[str, Process]
    trees: bool
    spread: float
    stretch: float = 1.0

    def codes(self, keys: tuple[str, ...]) -> Integers:
        """Return the code of each key, -1 for those that were not measured (n,)."""
        code = {key: place for place, key in enumerate(self.keys)}
        return np.array([code.get(key, -1) for key in keys], np.int64)

    def works(self, codes: Integers) -> Floats:
        """Return us per unit of each term, by codes of keys (n, TERMS + 1)."""
        return np.where(codes[:, None] >= 0, self.key_work[codes], self.work)


@dataclass(frozen=True)
class Estimates:
    """Holds what nodes take, row by row of a table.

    Attributes:
        near: us where a model's weights stay in the last cache (n,).
        far: us more where all of them come from memory (n,).
        deviation: of log time (n,); empty if it was not asked for.
        rows: measured nodes of the same key (n,).
    """

    near: Floats
    far: Floats
    deviation: Floats
    rows: Integers


@dataclass(frozen=True)
class Kernels:
    """Predicts executed nodes on one device.

    Attributes:
        kinds: what was learnt of each kind.
        forest: trees of those kinds that have some, in their order.
        fallback: us per unit of each term, for kinds that were not measured (TERMS + 1,).
        fallback_spread: deviation of their log time.
        cache_bytes: of the last cache.
        prior: another device's, whose time is a term.
    """

    kinds: Mapping[str, KindModel]
    forest: Forest
    fallback: Floats
    fallback_spread: float
    cache_bytes: float
    prior: Kernels | None = None

    def estimate(self, table: Table, *, spread: bool = True) -> Estimates:
        """Return what nodes take, with deviations if they are asked for."""
        earlier = self.prior.estimate(table, spread=spread) if self.prior else None
        apart = split_terms(table.sizes, earlier)
        count = len(table.sizes)
        near, far, deviation, rows = (
            np.empty(count),
            np.empty(count),
            np.empty(count if spread else 0),
            np.zeros(count, np.int64),
        )
        members: dict[str, list[int]] = {}
        for place, kind in enumerate(table.kinds):
            members.setdefault(kind if kind in self.kinds else "", []).append(place)
        seen = logs(table.sizes)
        ensembles = [kind for kind, one in self.kinds.items() if one.trees]
        for kind, places in members.items():
            at = np.array(places)
            if not kind:
                near[at], far[at] = (np.einsum("ij,j->i", one[at], self.fallback) for one in apart)
                if spread:
                    deviation[at] = self.fallback_spread
                continue
            model = self.kinds[kind]
            keys = tuple(table.keys[place] for place in places)
            codes = model.codes(keys)
            close, distant = (np.einsum("ij,ij->i", one[at], model.works(codes)) for one in apart)
            trees = None
            if model.trees:
                trees = _walked(self.forest, ensembles.index(kind), seen_by_trees(seen[at], codes, close))
            ratio = np.where(codes >= 0, model.levels[codes], 0.0) + np.clip(
                _left(model, keys, seen[at], trees), -_FARTHEST_RATIO, _FARTHEST_RATIO
            )
            factor = np.exp(ratio)
            near[at], far[at] = close * factor, distant * factor
            rows[at] = np.where(codes >= 0, model.rows[codes], 0)
            if spread:
                deviation[at] = deviations(model, keys, seen[at])
        if spread and earlier is not None:
            unlike = rows == 0  # what is known of them is what the prior knows
            deviation[unlike] = np.hypot(deviation, earlier.deviation)[unlike]
        return Estimates(near, far, deviation, rows)


def split_terms(sizes: Floats, earlier: Estimates | None) -> tuple[Floats, Floats]:
    """Return terms with the prior's time as the last one: those of all nodes, and what spilled weights add (n, TERMS + 1)."""
    near = terms(sizes)
    far = np.zeros_like(near)
    far[:, SPILLED] = terms(sizes, 1.0)[:, SPILLED]
    pair = (earlier.near, earlier.far) if earlier else (np.zeros(len(sizes)),) * 2
    return np.column_stack([near, pair[0]]), np.column_stack([far, pair[1]])


def seen_by_trees(seen: Floats, codes: Integers, close: Floats) -> Floats:
    """Return rows of the trees' features: what is seen of sizes, the key, and time by the terms (n, features)."""
    return np.column_stack([seen, codes, np.log(close)])


def deviations(model: KindModel, keys: tuple[str, ...], seen: Floats) -> Floats:
    """Return the deviation of log time (n,)."""
    result = np.full(len(keys), model.spread)
    for process, at in _by_process(model, keys):
        result[at] = process.spread(seen[at])
    return result * model.stretch


def _left(model: KindModel, keys: tuple[str, ...], seen: Floats, trees: Floats | None) -> Floats:
    """Return the mean of trees and process; a key without a process is corrected half as far as the trees say."""
    expected = np.zeros(len(keys))
    for process, at in _by_process(model, keys):
        for start in range(0, len(at), _CHUNK):
            chunk = at[start : start + _CHUNK]
            expected[chunk] = process.expected(seen[chunk])
    return expected if trees is None else (expected + trees) / 2


def _by_process(model: KindModel, keys: tuple[str, ...]) -> list[tuple[Process, Integers]]:
    members: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        members.setdefault(key, []).append(place)
    return [(model.processes[key], np.array(at)) for key, at in members.items() if key in model.processes]


def _walked(forest: Forest, ensemble: int, rows: Floats) -> Floats:
    if len(rows) >= _MANY_ROWS and (walk := walking.Walk.of(forest, ensemble, rows.shape[1])):
        return np.asarray(walk.raw(rows)[:, 0])
    return forest.raw(rows, np.full(len(rows), ensemble))[:, 0]
