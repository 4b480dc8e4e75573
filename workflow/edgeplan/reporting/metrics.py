"""Computes figures of merit, with what chance leaves open of each, and nn-Meter's metrics of predictions (section 7.1)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap

from edgeplan.errors import FormatError
from edgeplan.reporting.bars import interval_keys

FloatArray = NDArray[np.float64]

#: A prediction that lies exactly on the bound counts as inside, whatever the rounding of the division.
ROUNDING = 1e-12
_LEVEL = 0.95
_RESAMPLES = 4000
#: Enough for the ends of one figure's interval, whose statistic is a function of Python.
_DRAWN = 1000
_SEED = 20230
_DIGITS = 6  # fewer than processors agree on


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Holds the accuracy of predictions over a set of models: RMSE in the unit of the inputs, RMSPE in percent, shares 0..1."""

    models: int
    rmse: float
    rmspe: float
    within_5pct: float
    within_10pct: float


def pair(measured: ArrayLike, predicted: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Return measured (positive) and predicted values (finite; a linear baseline's may be negative) of the same length."""
    truth, guess = np.asarray(measured, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if truth.shape != guess.shape or not truth.size or not np.isfinite([truth, guess]).all() or (truth <= 0).any():
        raise FormatError(
            f"{truth.size} measured values and {guess.size} predicted ones are no pairs of finite numbers, the former positive",
            where="evaluation metrics",
            next_step="measure or predict the missing models again",
        )
    return truth, guess


def relative_errors(measured: ArrayLike, predicted: ArrayLike) -> FloatArray:
    """Return the signed error over the measurement, shape (n,): 0.1 means predicted 10 % too slow."""
    truth, guess = pair(measured, predicted)
    return (guess - truth) / truth


def rmse(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Return the root mean square error, in the unit of the inputs."""
    truth, guess = pair(measured, predicted)
    return float(np.sqrt(np.mean((guess - truth) ** 2)))


def rmspe(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Return the root mean square percentage error, in percent of the measurement."""
    return float(100 * np.sqrt(np.mean(relative_errors(measured, predicted) ** 2)))


def within(measured: ArrayLike, predicted: ArrayLike, share: float) -> float:
    """Return the share (0..1) of predictions that miss by at most `share` (0.1 for +-10 %) of the measurement."""
    return float(np.mean(np.abs(relative_errors(measured, predicted)) <= share + ROUNDING))


def accuracy(measured: ArrayLike, predicted: ArrayLike) -> Accuracy:
    """Compute all metrics of the paper's Table 8 at once."""
    truth, guess = pair(measured, predicted)
    return Accuracy(truth.size, rmse(truth, guess), rmspe(truth, guess), within(truth, guess, 0.05), within(truth, guess, 0.10))


def coverage(measured: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Return the share (0..1) of measurements inside their interval, bounds included."""
    truth, lower = pair(measured, low)
    _, upper = pair(measured, high)
    return float(np.mean((lower <= truth) & (truth <= upper)))


def relative_width(predicted: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Return the median width of the intervals over their prediction: 0.2 means +-10 %."""
    guess, lower = pair(predicted, low)
    _, upper = pair(predicted, high)
    return float(np.median((upper - lower) / guess))


def by_group(frame: pd.DataFrame, *, predicted: str = "predicted_ms") -> pd.DataFrame:
    """Return `Accuracy` by family: one row a family in order of first appearance, then one of all."""
    parts = [*((str(name), part) for name, part in frame.groupby("family", sort=False)), ("all", frame)]
    return pd.DataFrame([{"family": name, **asdict(accuracy(f["measured_ms"], f[predicted]))} for name, f in parts])


def rmspe_difference(measured: ArrayLike, ours: ArrayLike, theirs: ArrayLike, groups: ArrayLike) -> tuple[float, float]:
    """Return the 95 % interval of theirs less our RMSPE (percentage points) by paired percentile bootstrap.

    What is resampled are groups (n,), what rows were measured with, each with both predictors' errors: kernels of one carrier
    share its noise, and two predictors err alike on a hard one. Of twenty groups such an interval leaves the truth out about
    twice as often as it says; of one alone both ends are NaN.
    """
    codes, names = pd.factorize(np.asarray(groups))
    if len(names) < 2:
        return math.nan, math.nan
    mine, other = (np.bincount(codes, relative_errors(measured, predicted) ** 2) for predicted in (ours, theirs))
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
    return float(found.low), float(found.high)


def _points(ours: FloatArray, theirs: FloatArray, count: FloatArray, axis: int = -1) -> NDArray[np.float64]:
    """Return the difference of the RMSPE from squared errors summed by group, in percentage points."""
    rows = count.sum(axis=axis)
    return np.asarray(100 * (np.sqrt(theirs.sum(axis=axis) / rows) - np.sqrt(ours.sum(axis=axis) / rows)))


@dataclass(frozen=True, slots=True)
class Estimate:
    """Holds a figure of merit with the ends of its 95 % interval, NaN where there is too little to resample."""

    value: float
    low: float = math.nan
    high: float = math.nan


def geomean(values: FloatArray) -> float:
    """Return the geometric mean of positive values."""
    return float(np.exp(np.log(values).mean()))


def gap_max(planned: ArrayLike, bound: ArrayLike) -> float:
    """Return the most by which plans exceed their proven bounds, as a share of these; NaN where there is no plan."""
    gaps = np.asarray(planned, dtype=np.float64) / np.asarray(bound, dtype=np.float64) - 1
    return float(np.nanmax(gaps)) if np.isfinite(gaps).any() else math.nan


def share_right(error: ArrayLike, tolerance: ArrayLike) -> float:
    """Return the share of outputs within their tolerance; what gave none is not right. NaN where nothing was compared."""
    right = np.asarray(error, dtype=np.float64) <= np.asarray(tolerance, dtype=np.float64)
    return float(right.mean()) if right.size else math.nan


def estimate(statistic: Callable[..., float], *parts: ArrayLike) -> Estimate:
    """Return a figure with its 95 % interval by percentile bootstrap over the layers, models or samples that it is of.

    The interval says how much the figure hangs on which of them were taken, and on the noise of each; not on what all of one
    run have in common. There is none where fewer than two, or fewer than half of the draws, give a value.
    """
    values = [np.asarray(part, dtype=np.float64) for part in parts]
    if not (units := values[0].size):
        return Estimate(math.nan)
    order = np.lexsort(values)  # the same interval in whatever order they are given
    values = [part[order] for part in values]
    value = float(statistic(*values))
    if units < 2:  # one alone cannot be resampled
        return Estimate(value)
    chosen = np.random.default_rng(_SEED).integers(0, units, (_DRAWN, units))
    drawn = np.array([statistic(*(part[positions] for part in values)) for positions in chosen], dtype=np.float64)
    drawn = drawn[np.isfinite(drawn)]
    if 2 * len(drawn) < _DRAWN:
        return Estimate(value)
    return Estimate(value, *map(float, np.quantile(drawn, ((1 - _LEVEL) / 2, (1 + _LEVEL) / 2))))


def figures_of_merit(functions: Mapping[str, Callable[[Any], float | Estimate]], evidence: Any) -> dict[str, float]:
    """Return the measured figures by name, six significant digits, the ends of their intervals beside them.

    A function that lacks what it is of raises an error of a key or an index, or gives what is no number.
    """
    found: dict[str, float] = {}
    for name, function in functions.items():
        try:
            value = function(evidence)
        except (LookupError, ZeroDivisionError):  # not measured
            continue
        own = value if isinstance(value, Estimate) else Estimate(value)
        if math.isfinite(own.value):
            parts = zip((name, *interval_keys(name)), (own.value, own.low, own.high), strict=True)
            found |= {key: float(f"{part:.{_DIGITS}g}") for key, part in parts if math.isfinite(part)}
    return found
