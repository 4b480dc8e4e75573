"""Gaussian processes on what is left of a ratio: Matern 3/2 on standardised features, and white noise.

Hyperparameters are those of the greatest likelihood (scipy, in training); a posterior takes numpy alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from edgeplan.support.lazy import lazily
from edgeplan.support.rounding import nine_digits_each

optimize = lazily("scipy.optimize")  # training alone needs it

Floats = npt.NDArray[np.float64]

MOST_ROWS = 300
#: Bounds of the variance of the signal, the length in standard deviations, and the variance of noise.
_BOUNDS = ((1e-3, 4.0), (0.5, 60.0), (4e-4, 0.5))
_START = (0.1, 5.0, 0.01)
_FARTHEST = 4.0  # standard deviations from the mean: the mean of what lies further is that there
_LEAST_SPREAD = 1e-6  # of a feature that is not constant


@dataclass(frozen=True)
class Process:
    """A process is a posterior over ratios.

    Attributes:
        mean, deviation: of each feature that varies (d,).
        columns: of these features (d,).
        points: standardised features of the rows (n, d).
        ratios: what is left of the rows (n,).
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
