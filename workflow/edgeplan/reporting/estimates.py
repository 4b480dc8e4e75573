"""Figures of merit, each with what chance leaves open: an interval by resampling the layers or models that it is of."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from edgeplan.reporting.metrics import FloatArray

_RESAMPLES = 4000
_ENDS = (0.025, 0.975)
_SEED = 20230
_DIGITS = 6  # fewer than processors agree on


@dataclass(frozen=True, slots=True)
class Estimate:
    """A figure of merit with the ends of its 95 % interval, not numbers where there is too little to resample."""

    value: float
    low: float = math.nan
    high: float = math.nan


def mean(values: FloatArray) -> FloatArray:
    """The mean over the last axis; of what is true or false, the share that is true."""
    return np.asarray(values.mean(axis=-1))


def geomean(values: FloatArray) -> FloatArray:
    """The geometric mean over the last axis of positive values."""
    return np.asarray(np.exp(np.log(values).mean(axis=-1)))


def estimate(statistic: Callable[..., FloatArray], *parts: ArrayLike) -> Estimate:
    """A figure with its interval by the percentile bootstrap, the same at every call.

    What is resampled are the layers, models or samples that the values are of: the interval says how much the figure hangs on
    which of them were taken, and on the noise of each; not on what all of one run have in common.

    Args:
        statistic: of arrays (..., n), one for each part, over their last axis.
        parts: values (n,) that belong together position by position.
    """
    values = [np.asarray(part, dtype=np.float64) for part in parts]
    count = values[0].size
    if not count:
        return Estimate(math.nan)
    found = float(statistic(*values))
    if count == 1 or not math.isfinite(found):
        return Estimate(found)
    drawn = np.random.default_rng(_SEED).integers(count, size=(_RESAMPLES, count))
    low, high = np.nanquantile(statistic(*(part[drawn] for part in values)), _ENDS)
    return Estimate(found, float(low), float(high))


def figures_of_merit(
    functions: Mapping[str, Callable[[Any], float | Estimate]], evidence: Any, prefix: str = ""
) -> dict[str, float]:
    """All figures that were measured by name, six significant digits; ends of intervals stand beside them (`interval_keys`).

    Args:
        functions: by name; one that lacks what it is of raises an error of a key or an index, or gives what is no number.
        evidence: their argument.
        prefix: of the names.
    """
    found: dict[str, float] = {}
    for name, function in functions.items():
        try:
            value = function(evidence)
        except (IndexError, KeyError, ZeroDivisionError):  # not measured
            continue
        own = value if isinstance(value, Estimate) else Estimate(value)
        keys = (f"{prefix}{name}", *(f"{prefix}{name}.{end}" for end in ("low", "high")))
        if math.isfinite(own.value):
            parts = zip(keys, (own.value, own.low, own.high), strict=True)
            found |= {key: float(f"{part:.{_DIGITS}g}") for key, part in parts if math.isfinite(part)}
    return found
