"""Corrects predictions of prior devices by the rows of a device: a few parameters, then a few shallow trees."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgeplan.predictors.boosting import FEW_ROWS, SHALLOW, boost
from edgeplan.predictors.labels import Floats
from edgeplan.support.rounding import nine_digits, nine_digits_each

#: Rows that the expectation of each exponent weighs as much as.
_EXPECTED = 3.0
_HUBER, _LEAST_SPREAD, _ROUNDS = 1.345, 0.02, 10

Corrected = Callable[[Floats, Floats], Floats]


def correct(said: Floats, expected: Floats, matrix: Floats, latency: Floats, weight: Floats, seed: int) -> Corrected:
    """Fit the latencies of a device to what prior devices predict.

    The logarithm of latency is a constant and a share of each prior device's; rows far off weigh less (Huber). Where
    there are rows enough, trees correct this by the features and by what each prior says.

    Args:
        said: log latency (us) by each prior device (n, devices).
        expected: the shares before any row is seen (devices,).
        matrix: features of the trees (n, features).
        latency: us (n,).
        weight: weight of each row (n,).
        seed: seed of the trees.

    Returns:
        From what priors say of other rows and their features to latency in us.
    """
    shares, centre = _line(said, expected, np.log(latency), weight)

    def line(said: Floats) -> Floats:
        return np.asarray(shares[0] + centre + (said - centre) @ shares[1:], dtype=np.float64)

    if len(latency) < FEW_ROWS:
        return lambda said, _: np.exp(line(said))
    trees = boost(np.column_stack([matrix, said]), np.log(latency) - line(said), weight, SHALLOW, seed)
    return lambda said, matrix: np.exp(line(said) + trees.predict(np.column_stack([matrix, said])))


def _line(said: Floats, expected: Floats, target: Floats, weight: Floats) -> tuple[Floats, float]:
    """Fit a constant and a share of each prior device (1 + devices,); return them with their centre (log us)."""
    devices = said.shape[1]
    centre = float(said.mean())
    design = np.column_stack([np.ones(len(said)), said - centre])
    shares = np.concatenate([[0.0], expected])
    rest = target - centre - design @ shares
    shares[0] = float(np.median(rest))
    rest = rest - shares[0]
    start = shares.copy()
    pull = np.diag(np.concatenate([[1e-9], np.full(devices, _EXPECTED)]))
    for _ in range(_ROUNDS):
        spread = max(1.4826 * float(np.median(np.abs(rest))), _LEAST_SPREAD)
        trust = weight * np.minimum(1.0, _HUBER * spread / np.maximum(np.abs(rest), 1e-9))
        weighted = design.T * trust
        shares = start + np.linalg.solve(weighted @ design + pull, weighted @ (target - centre - design @ start))
        rest = target - centre - design @ shares
    return nine_digits_each(shares), nine_digits(centre)
