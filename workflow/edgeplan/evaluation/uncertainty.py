"""How much of a difference between two predictors is the chance of what was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.stats import bootstrap

from edgeplan.evaluation.metrics import FloatArray, relative_error

_LEVEL = 0.95
_RESAMPLES = 4000
_SEED = 20230


@dataclass(frozen=True, slots=True)
class Difference:
    """RMSPE of another predictor less that of ours, in percentage points.

    Attributes:
        low: lower end of its 95 % interval, NaN where there is too little to resample.
        high: upper end.
    """

    low: float
    high: float

    @property
    def clear(self) -> bool:
        """Whether the interval lies on one side of zero."""
        return self.low > 0 or self.high < 0


def rmspe_difference(measured: ArrayLike, ours: ArrayLike, theirs: ArrayLike, groups: ArrayLike) -> Difference:
    """Paired percentile bootstrap of a difference in RMSPE.

    What is resampled are groups, each with both predictors' errors: kernels of one carrier share its noise, and two predictors
    err alike on a hard one.

    Args:
        measured: shape (n,), positive.
        ours: predictions, in the unit of `measured` (n,).
        theirs: those of the other predictor (n,).
        groups: what each row was measured with (n,).

    Raises:
        FormatError: the values do not fit.
    """
    codes, names = pd.factorize(np.asarray(groups))
    if len(names) < 2:  # noqa: PLR2004  one alone cannot be resampled
        return Difference(float("nan"), float("nan"))
    squares = (np.bincount(codes, relative_error(measured, predicted) ** 2) for predicted in (ours, theirs))
    found = bootstrap(
        (*squares, np.bincount(codes)),
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
    """Difference of the RMSPE from squared errors summed by group, in percentage points."""
    rows = count.sum(axis=axis)
    return np.asarray(100 * (np.sqrt(theirs.sum(axis=axis) / rows) - np.sqrt(ours.sum(axis=axis) / rows)))
