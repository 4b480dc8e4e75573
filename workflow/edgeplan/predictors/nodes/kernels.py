"""Evaluates what was learnt of executed nodes: physical terms, trees and Gaussian processes of each kind."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from edgeplan.predictors.nodes.features import SIZES, SPILLED, Floats, Integers, Table, logs, terms
from edgeplan.predictors.walking import Forest, Walk
from edgeplan.support.lazy import lazily
from edgeplan.support.numerics import nine_digits_each

optimize = lazily("scipy.optimize")  # training alone needs it

#: A process has so many rows at most.
MOST_ROWS = 300
#: Bounds of the variance of the signal, the length in standard deviations, and the variance of noise.
_BOUNDS = ((1e-3, 4.0), (0.5, 60.0), (4e-4, 0.5))
_START = (0.1, 5.0, 0.01)
_FARTHEST = 4.0  # standard deviations from the mean: the mean of what lies further is that there
_LEAST_SPREAD = 1e-6  # of a feature that is not constant
#: From so many rows on laying out trees for the native library costs less than it saves.
_MANY_ROWS = 2000
#: So many rows go through a process at a time: their covariances with its points fit into the last cache.
_CHUNK = 4096
#: Columns that trees see: logarithms of sizes and work by byte, the key, and time by the terms.
TREE_FEATURES = len(SIZES) + 3
#: Ratios that trees and processes learn are bounded by this, as logarithms: beyond it they guess.
_FARTHEST_RATIO = 1.5


@dataclass(frozen=True)
class Process:
    """A process is a posterior over ratios: Matern 3/2 on standardised features, and white noise; numpy alone evaluates it.

    Attributes:
        mean, deviation: of each feature that varies (d,).
        points: standardised features of the rows (n, d).
        numbers: variance of the signal, length, variance of noise.
    """

    mean: Floats
    deviation: Floats
    columns: npt.NDArray[np.int64]
    points: Floats
    ratios: Floats
    numbers: Floats

    @cached_property
    def _solved(self) -> tuple[Floats, Floats]:
        """Return the inverse of the Cholesky factor, and the weights of the rows."""
        signal, length, noise = self.numbers
        covariance = signal * _matern(_distances(self.points, self.points) / length)
        covariance[np.diag_indices_from(covariance)] += noise
        inverse = np.linalg.inv(np.linalg.cholesky(covariance))
        return inverse, inverse.T @ (inverse @ self.ratios)

    def _near(self, features: Floats, farthest: float) -> Floats:
        signal, length, _ = self.numbers
        standard = np.clip((features[:, self.columns] - self.mean) / self.deviation, -farthest, farthest)
        return np.asarray(signal * _matern(_distances(standard, self.points) / length))

    def expected(self, features: Floats) -> Floats:
        """Return the mean ratio by features (n,)."""
        return np.asarray(self._near(features, _FARTHEST) @ self._solved[1])

    def spread(self, features: Floats) -> Floats:
        """Return the standard deviation of the ratio by features, noise included (n,)."""
        signal, _, noise = self.numbers
        explained = ((self._near(features, math.inf) @ self._solved[0].T) ** 2).sum(axis=1)
        return np.asarray(np.sqrt(np.maximum(signal - explained, 0.0) + noise))

    @staticmethod
    def standardised(features: Floats, ratios: Floats, seed: int, numbers: Floats | None = None) -> Process:
        """Fit a process to rows of features and ratios, at most so many; hyperparameters are those given, else fitted."""
        kept = np.sort(np.random.default_rng(seed).permutation(len(ratios))[:MOST_ROWS])
        features, ratios = features[kept], nine_digits_each(ratios[kept])
        mean, deviation = nine_digits_each(features.mean(axis=0)), nine_digits_each(features.std(axis=0))
        columns = np.flatnonzero(deviation > _LEAST_SPREAD)
        if not columns.size:  # all rows are alike: what they have in common is learnt by any column
            columns, deviation = np.zeros(1, np.int64), np.maximum(deviation, 1.0)
        points = (features[:, columns] - mean[columns]) / deviation[columns]
        points = points.astype(np.float32).astype(np.float64)  # as they are stored
        fitted = _fitted(points, ratios) if numbers is None else numbers
        return Process(mean[columns], deviation[columns], columns, points, ratios, fitted)


def _matern(scaled: Floats) -> Floats:
    root = math.sqrt(3.0) * scaled
    return np.asarray((1.0 + root) * np.exp(-root))


def _distances(left: Floats, right: Floats) -> Floats:
    squares = (left**2).sum(axis=1)[:, None] + (right**2).sum(axis=1) - 2.0 * left @ right.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def _fitted(points: Floats, ratios: Floats) -> Floats:
    """Return the hyperparameters of the greatest likelihood, to nine digits."""
    distance = _distances(points, points)
    identity = np.eye(len(ratios))

    def loss(logs: Floats) -> tuple[float, Floats]:
        signal, length, noise = np.exp(logs)
        root = math.sqrt(3.0) * distance / length
        decay = np.exp(-root)
        shape = (1.0 + root) * decay
        inverse_factor = np.linalg.inv(np.linalg.cholesky(signal * shape + noise * identity))
        inverse = inverse_factor.T @ inverse_factor
        weights = inverse @ ratios
        value = 0.5 * float(ratios @ weights) - float(np.log(np.diag(inverse_factor)).sum())
        pull = inverse - np.outer(weights, weights)  # twice the gradient by the covariance
        by_length = signal * root**2 * decay
        gradient = [(pull * signal * shape).sum(), (pull * by_length).sum(), noise * np.trace(pull)]
        # A weak prior keeps a few rows from a length or a noise at a bound.
        off = logs - np.log(_START)
        return value + 0.25 * float(off @ off), 0.5 * np.array(gradient) + 0.5 * off

    found = optimize.minimize(
        loss, np.log(_START), jac=True, method="L-BFGS-B", bounds=[tuple(np.log(pair)) for pair in _BOUNDS]
    )
    return nine_digits_each(np.exp(found.x))


@dataclass(frozen=True)
class KindModel:
    """Predicts nodes of one kind: terms, a level of each key, and the mean of trees and of a process on what is left.

    Attributes:
        work: us per unit of each term, the last one of the prior's time (TERMS + 1,).
        keys: the keys that were measured; a key's place is its code for the trees.
        key_work: the same of a key; that of the kind for keys of few rows (keys, TERMS + 1).
        levels: what nodes of a key take over its terms, shrunk, as a logarithm (keys,).
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
        forest: trees of those kinds that have some, in their order.
        fallback: us per unit of each term, for kinds that were not measured (TERMS + 1,).
        fallback_spread: deviation of their log time.
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
        near, far, deviation = (np.empty(size) for size in (count, count, count if spread else 0))
        rows = np.zeros(count, np.int64)
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
            left = _expected(model, keys, seen[at])
            if model.trees:  # the mean of both; a key without a process is corrected half as far as the trees say
                trees = _walked(self.forest, ensembles.index(kind), seen_by_trees(seen[at], codes, close))
                left = (left + trees) / 2
            level = np.where(codes >= 0, model.levels[codes], 0.0)
            factor = np.exp(level + np.clip(left, -_FARTHEST_RATIO, _FARTHEST_RATIO))
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


def _expected(model: KindModel, keys: tuple[str, ...], seen: Floats) -> Floats:
    """Return the ratios that processes expect; 0 of a key without one."""
    expected = np.zeros(len(keys))
    for process, at in _by_process(model, keys):
        for start in range(0, len(at), _CHUNK):
            chunk = at[start : start + _CHUNK]
            expected[chunk] = process.expected(seen[chunk])
    return expected


def _by_process(model: KindModel, keys: tuple[str, ...]) -> list[tuple[Process, Integers]]:
    members: dict[str, list[int]] = {}
    for place, key in enumerate(keys):
        members.setdefault(key, []).append(place)
    return [(model.processes[key], np.array(at)) for key, at in members.items() if key in model.processes]


def _walked(forest: Forest, ensemble: int, rows: Floats) -> Floats:
    if len(rows) >= _MANY_ROWS and (walk := Walk.of(forest, ensemble, rows.shape[1])):
        return np.asarray(walk.raw(rows))
    return forest.raw(rows, ensemble)
