"""Prediction metrics of nn-Meter (section 7.1): RMSE, RMSPE, +-5 % and +-10 % accuracy, and those of intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from edgeplan.errors import FormatError

FloatArray = NDArray[np.float64]

#: Name of the row that summarises every group.
OVERALL = "all"

#: A prediction that lies exactly on the bound counts as inside, whatever the rounding of the division.
ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The accuracy of predictions over a set of models.

    Attributes:
        models: number of predictions.
        rmse: in the unit of the inputs.
        rmspe: in percent.
        within_5pct: share (0..1) of predictions within +-5 % of the measurement.
        within_10pct: share within +-10 %.
    """

    models: int
    rmse: float
    rmspe: float
    within_5pct: float
    within_10pct: float


def vector(values: ArrayLike, name: str) -> FloatArray:
    """Values as a one-dimensional float array without NaN.

    Args:
        values: shape (n,), n > 0.
        name: what the values are, for the message.

    Raises:
        FormatError: not one-dimensional, empty, or holding NaN or infinity.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise FormatError(
            f"{name} has shape {array.shape}, expected one axis with at least one value",
            where="evaluation metrics",
            next_step="check that the evaluated models were measured and predicted",
        )
    bad = np.flatnonzero(~np.isfinite(array))
    if bad.size:
        raise FormatError(
            f"{name} has {bad.size} values that are NaN or infinite, the first at position {bad[0]}",
            where="evaluation metrics",
            next_step="measure or predict the missing models again",
        )
    return array


def pair(measured: ArrayLike, predicted: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Measured (positive) and predicted (finite; a linear baseline may go below zero) values of the same length.

    Raises:
        FormatError: a value is missing, a measurement is not positive, or the lengths differ.
    """
    truth, guess = vector(measured, "measured"), vector(predicted, "predicted")
    if truth.size != guess.size:
        raise FormatError(
            f"{truth.size} measured values stand against {guess.size} predicted ones",
            where="evaluation metrics",
            next_step="join the two tables on model_id",
        )
    bad = np.flatnonzero(truth <= 0)
    if bad.size:
        raise FormatError(
            f"measured has {bad.size} values that are not positive, the first at position {bad[0]}",
            where="evaluation metrics",
            next_step="measure these models again",
        )
    return truth, guess


def relative_error(measured: ArrayLike, predicted: ArrayLike) -> FloatArray:
    """Signed error over the measurement, shape (n,): 0.1 means predicted 10 % too slow."""
    truth, guess = pair(measured, predicted)
    return (guess - truth) / truth


def rmse(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Root mean square error, in the unit of the inputs."""
    truth, guess = pair(measured, predicted)
    return float(np.sqrt(np.mean((guess - truth) ** 2)))


def rmspe(measured: ArrayLike, predicted: ArrayLike) -> float:
    """Root mean square percentage error, in percent of the measurement."""
    return float(100 * np.sqrt(np.mean(relative_error(measured, predicted) ** 2)))


def within(measured: ArrayLike, predicted: ArrayLike, share: float) -> float:
    """Share (0..1) of predictions that miss by at most `share` (0.1 for +-10 %) of the measurement."""
    return float(np.mean(np.abs(relative_error(measured, predicted)) <= share + ROUNDING))


def accuracy(measured: ArrayLike, predicted: ArrayLike) -> Accuracy:
    """Compute all metrics of the paper's Table 8 at once."""
    truth, guess = pair(measured, predicted)
    return Accuracy(truth.size, rmse(truth, guess), rmspe(truth, guess), within(truth, guess, 0.05), within(truth, guess, 0.10))


def coverage(measured: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Share (0..1) of measurements inside their interval, bounds included.

    Raises:
        FormatError: the values do not fit, or a lower bound lies above its upper bound.
    """
    truth, lower = pair(measured, low)
    _, upper = pair(measured, high)
    if np.any(lower > upper):
        raise FormatError(
            f"{int(np.sum(lower > upper))} intervals have their lower bound above the upper one",
            where="evaluation metrics",
            next_step="calibrate the intervals again",
        )
    return float(np.mean((lower <= truth) & (truth <= upper)))


def relative_width(predicted: ArrayLike, low: ArrayLike, high: ArrayLike) -> float:
    """Median width of the intervals over their prediction: 0.2 means +-10 %."""
    guess, lower = pair(predicted, low)
    _, upper = pair(predicted, high)
    return float(np.median((upper - lower) / guess))


def require(frame: pd.DataFrame, columns: tuple[str, ...], where: str) -> None:
    """Check that a table has the columns that a function reads.

    Raises:
        FormatError: columns are missing; the message lists them.
    """
    missing = [name for name in columns if name not in frame.columns]
    if missing:
        raise FormatError(
            f"the table lacks the columns {', '.join(missing)}; it has {', '.join(map(str, frame.columns))}",
            where=where,
            next_step="rebuild the table with this version of edgeplan",
        )


def by_group(
    frame: pd.DataFrame, *, predicted: str = "predicted_ms", measured: str = "measured_ms", group: str = "family"
) -> pd.DataFrame:
    """One row a group in order of first appearance, then `OVERALL`.

    Returns:
        Columns: `group`, models, rmse, rmspe (percent), within_5pct and within_10pct (shares).

    Raises:
        FormatError: a column is missing, or the values do not fit.
    """
    require(frame, (group, measured, predicted), "evaluation metrics")
    parts = [(str(name), part) for name, part in frame.groupby(group, sort=False)]
    rows = []
    for name, part in [*parts, (OVERALL, frame)]:
        hit = accuracy(part[measured].to_numpy(), part[predicted].to_numpy())
        rows.append((name, hit.models, hit.rmse, hit.rmspe, hit.within_5pct, hit.within_10pct))
    return pd.DataFrame(rows, columns=[group, "models", "rmse", "rmspe", "within_5pct", "within_10pct"])
