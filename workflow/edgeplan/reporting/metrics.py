"""Computes nn-Meter's metrics of predictions (section 7.1): RMSE, RMSPE, +-5 % and +-10 % accuracy, and those of intervals."""

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

#: Name of the row that summarises every group.
OVERALL = "all"

#: A prediction that lies exactly on the bound counts as inside, whatever the rounding of the division.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Holds the accuracy of predictions over a set of models.

    Attributes:
        models: number of predictions.
        rmse: root mean square error, in the unit of the inputs.
        rmspe: root mean square percentage error, in percent.
        within_5pct: share (0..1) of predictions within +-5 % of the measurement.
        within_10pct: share within +-10 %.
    """

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


def relative_error(measured: ArrayLike, predicted: ArrayLike) -> FloatArray:
    """Return the signed error over the measurement, shape (n,): 0.1 means predicted 10 % too slow."""
    truth, guess = pair(measured, predicted)
    return (guess - truth) / truth


def rmse(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Return the root mean square error, in the unit of the inputs."""
    truth, guess = pair(measured, predicted)
    return float(np.sqrt(np.mean((guess - truth) ** 2)))


def rmspe(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Return the root mean square percentage error, in percent of the measurement."""
    return float(100 * np.sqrt(np.mean(relative_error(measured, predicted) ** 2)))


def within(measured: ArrayLike, predicted: ArrayLike, share: float) -> float:
    """Return the share (0..1) of predictions that miss by at most `share` (0.1 for +-10 %) of the measurement."""
    return float(np.mean(np.abs(relative_error(measured, predicted)) <= share + ROUNDING))


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
    """Return the accuracy by family: one row a family in order of first appearance, then `OVERALL`.

    Returns:
        Columns: family, models, rmse, rmspe (percent), within_5pct and within_10pct (shares).
    """
    parts = [(str(name), part) for name, part in frame.groupby("family", sort=False)]
    rows = [
        {"family": name, **asdict(accuracy(part["measured_ms"], part[predicted]))} for name, part in [*parts, (OVERALL, frame)]
    ]
    return pd.DataFrame(rows)


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


_DIGITS = 6  # fewer than processors agree on


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
    """Return a figure with its interval by resampling the layers, models or samples that it is of.

    The interval says how much the figure hangs on which of them were taken, and on the noise of each; not on what all of one
    run have in common.

    Args:
        statistic: function of arrays, one for each part.
        parts: values (n,) that belong together position by position; not a number for none.
    """
    values = [np.asarray(part, dtype=np.float64) for part in parts]
    if not values[0].size:
        return Estimate(math.nan)
    order = np.lexsort(values)  # the same interval in whatever order they are given
    values = [part[order] for part in values]
    found = with_interval("", lambda chosen: float(statistic(*(part[chosen] for part in values))), values[0].size)
    return Estimate(found[""], *(found.get(key, math.nan) for key in interval_keys("")))


def figures_of_merit(
    functions: Mapping[str, Callable[[Any], float | Estimate]], evidence: Any, prefix: str = ""
) -> dict[str, float]:
    """Return the measured figures by name, six significant digits, the ends of their intervals beside them.

    Args:
        functions: by name; one that lacks what it is of raises an error of a key or an index, or gives what is no number.
        evidence: argument of the functions.
        prefix: prefix of the names.
    """
    found: dict[str, float] = {}
    for name, function in functions.items():
        try:
            value = function(evidence)
        except (LookupError, ZeroDivisionError):  # not measured
            continue
        own = value if isinstance(value, Estimate) else Estimate(value)
        keys = (f"{prefix}{name}", *interval_keys(f"{prefix}{name}"))
        if math.isfinite(own.value):
            parts = zip(keys, (own.value, own.low, own.high), strict=True)
            found |= {key: float(f"{part:.{_DIGITS}g}") for key, part in parts if math.isfinite(part)}
    return found
