"""Intervals tell how much of a figure, or of a difference between two predictors, is chance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap

from edgeplan.reporting.bars import interval_keys
from edgeplan.reporting.metrics import FloatArray, relative_error

_LEVEL = 0.95
_RESAMPLES = 4000
#: Enough for the ends of one figure's interval, whose statistic is a function of Python.
_DRAWN = 1000
_SEED = 20230


@dataclass(frozen=True, slots=True)
class Difference:
    """Compares the RMSPE of another predictor with ours: theirs less ours, in percentage points.

    Attributes:
        low: lower end of its 95 % interval, NaN where there is too little to resample. Of twenty groups such an interval leaves
            the truth out about twice as often as it says.
        high: upper end.
    """

    low: float
    high: float


def rmspe_difference(measured: ArrayLike, ours: ArrayLike, theirs: ArrayLike, groups: ArrayLike) -> Difference:
    """Return the interval of a difference in RMSPE by paired percentile bootstrap.

    What is resampled are groups, each with both predictors' errors: kernels of one carrier share its noise, and two predictors
    err alike on a hard one.

    Args:
        measured: shape (n,), positive.
        ours: predictions, in the unit of `measured` (n,).
        theirs: predictions of the other predictor (n,).
        groups: group of each row: what it was measured with (n,).
    """
    codes, names = pd.factorize(np.asarray(groups))
    if len(names) < 2:  # one alone cannot be resampled
        return Difference(float("nan"), float("nan"))
    mine, other = (np.bincount(codes, relative_error(measured, predicted) ** 2) for predicted in (ours, theirs))
    found = bootstrap(
        (mine, other, np.bincount(codes)),
        _points,
        paired=True,
        vectorized=True,
        method="percentile",
        confidence_level=_LEVEL,
        n_resamples=_RESAMPLES,
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Difference(float(found.low), float(found.high))


def _points(ours: FloatArray, theirs: FloatArray, count: FloatArray, axis: int = -1) -> NDArray[np.float64]:
    """Return the difference of the RMSPE from squared errors summed by group, in percentage points."""
    rows = count.sum(axis=axis)
    return np.asarray(100 * (np.sqrt(theirs.sum(axis=axis) / rows) - np.sqrt(ours.sum(axis=axis) / rows)))


def with_interval(key: str, statistic: Callable[[NDArray[np.intp]], float], units: int) -> dict[str, float]:
    """Return a figure of merit and its 95 % interval by percentile bootstrap, as entries of a document (`bars.interval_keys`).

    Args:
        key: name of the figure.
        statistic: its value for units drawn with replacement, given by their positions (units,); NaN where they give none.
        units: how many there are of what was drawn by chance: layers, models, repeats.

    Returns:
        `key` alone where fewer than two units, or fewer than half of the draws, give a value.
    """
    found = {key: float(statistic(np.arange(units)))}
    if units < 2:  # one alone cannot be resampled
        return found
    drawn = np.random.default_rng(_SEED).integers(0, units, (_DRAWN, units))
    values = np.array([statistic(positions) for positions in drawn], dtype=np.float64)
    values = values[np.isfinite(values)]
    if 2 * len(values) >= _DRAWN:
        ends = np.quantile(values, ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2))
        found |= dict(zip(interval_keys(key), map(float, ends), strict=True))
    return found
