"""Computes nn-Meter's metrics of predictions (section 7.1): RMSE, RMSPE, +-5 % and +-10 % accuracy, and those of intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass

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
