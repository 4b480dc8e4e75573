"""Computes a chapter's figures of merit: functions of its evidence, each with what chance leaves open of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from edgeplan.reporting.bars import interval_keys
from edgeplan.reporting.metrics import FloatArray
from edgeplan.reporting.uncertainty import with_interval

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
