"""Fits factors of kernel kinds: what kernels take in whole models, over what carriers said of them.

The sum of a carrier's labels is its plain time by construction; that of a whole model is not, and the difference has a part
that all models share. It is learnt as one factor for each kind of kernel, from whole models that are measured for that (stage
`calibration`) and are not evaluated. A model stays the sum of its kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan.support.rounding import nine_digits_each

Floats = npt.NDArray[np.float64]
#: How far factors are expected to lie from 1, before any model is seen: kinds that no model tells of stay there.
_EXPECTED_SPREAD = 0.1
_LEAST_SPREAD = 1e-3
_FOLDS = 6
_FEW_MODELS = 24
_HUBER = 1.345  # residuals of more spreads than that count less
_ROUNDS = 20
_LIMITS = (0.5, 2.0)


@dataclass(frozen=True)
class Expected:
    """Tells what factors are expected to be before any model is seen, where models are too few to tell alone.

    Attributes:
        covariance: of the factors' distances from 1 (k, k).
        spread: of relative errors that factors leave.
        models: so many models the expected spread weighs as much as.
    """

    covariance: Floats
    spread: float
    models: float

    def of(self, rows: npt.NDArray[np.int64]) -> Expected:
        """Return what is expected of some of the factors."""
        return Expected(self.covariance[np.ix_(rows, rows)], self.spread, self.models)


def fit_factors(by_kind_ms: Floats, call_ms: float, measured_ms: Floats, expected: Expected | None = None) -> Floats:
    """Fit factors that bring predicted sums to what models take.

    Least squares of relative errors, those far off weighed less (Huber), with a normal prior around 1: the more of the models'
    time kernels of a kind take, the more these decide about its factor.

    Args:
        by_kind_ms: predicted latency by kind (k, m).
        call_ms: cost of the call, which no factor changes.
        measured_ms: latencies of the models (m,).
        expected: without, factors of kinds are independent, and the models alone tell the spread.

    Returns:
        A factor for each kind, to nine digits (k,).
    """
    precision = np.linalg.inv(expected.covariance) if expected is not None else None
    share = (by_kind_ms / measured_ms).T
    missing = 1.0 - call_ms / measured_ms - share.sum(axis=1)
    change = np.zeros(len(by_kind_ms))
    for _ in range(_ROUNDS if len(missing) else 0):
        rest = np.abs(missing - share @ change)
        spread = max(1.4826 * float(np.median(rest)), _LEAST_SPREAD)
        if expected is not None:  # few models are explained by as many factors, whatever is true
            known = len(rest) * spread**2 + expected.models * expected.spread**2
            spread = float(np.sqrt(known / (len(rest) + expected.models)))
        weighted = share.T * np.minimum(1.0, _HUBER * spread / np.maximum(rest, _LEAST_SPREAD * spread))
        prior = (spread / _EXPECTED_SPREAD) ** 2 * np.eye(len(change)) if precision is None else spread**2 * precision
        change = np.linalg.solve(weighted @ share + prior, weighted @ missing)
    return nine_digits_each(np.clip(1.0 + change, *_LIMITS))


def cross_fitted_ms(by_kind_ms: Floats, call_ms: float, measured_ms: Floats, expected: Expected | None = None) -> Floats:
    """Return the latencies of the models by factors fitted on others of them: errors as of models that were never seen (m,).

    Of few models, which is where something is expected, each is left out alone.

    Args:
        by_kind_ms: see `fit_factors`.
        call_ms: see above.
        measured_ms: see above.
        expected: see above.
    """
    found = np.empty(len(measured_ms))
    folds = _FOLDS if expected is None or len(measured_ms) > _FEW_MODELS else len(measured_ms)
    fold = np.arange(len(measured_ms)) % max(folds, 1)
    for number in range(min(folds, len(measured_ms))):
        own = fold == number
        found[own] = fit_factors(by_kind_ms[:, ~own], call_ms, measured_ms[~own], expected) @ by_kind_ms[:, own] + call_ms
    return found
