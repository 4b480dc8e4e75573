"""A grade says how far a machine's figures can be trusted (good, fair, poor), by models measured again minutes later."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from edgeplan.reporting.grade import Name, of_spread

#: Repeats closer than this meet the same moment of the machine and say nothing of the next one.
APART_SECONDS = 120.0
#: A grade rests on at least so many models.
_LEAST_MODELS = 4


@dataclass(frozen=True, slots=True)
class Grade:
    """The grade of the figures of a machine.

    Attributes:
        name: `good`: repeats differ by at most 2.5 % in the median and by at most 6 % for nine in ten
            models; `fair`: by 6 and 15 %; else `poor`.
        median, most: median and 90th percentile of what repeats differ by, relative.
        models: measured again.
    """

    name: Name
    median: float
    most: float
    models: int

    @property
    def text(self) -> str:
        """The grade in a sentence."""
        return (
            f"The machine's figures are {self.name}: {self.models} models measured again at least two minutes later took "
            f"{100 * self.median:.1f} % more or less in the median, nine in ten of them at most {100 * self.most:.1f} %."
        )


def grade(first_ms: ArrayLike, again_ms: ArrayLike, gap_s: ArrayLike) -> Grade | None:
    """The grade that repeats give; None where too few lie far enough apart.

    Args:
        first_ms: first measurements (n,).
        again_ms: second ones; NaN where there is none (n,).
        gap_s: seconds between the two (n,).
    """
    first, again, gap = (np.asarray(values, dtype=np.float64) for values in (first_ms, again_ms, gap_s))
    kept = np.isfinite(again) & (gap >= APART_SECONDS)
    if kept.sum() < _LEAST_MODELS:
        return None
    differ = np.abs(np.log(again[kept] / first[kept]))
    median, most = float(np.median(differ)), float(np.quantile(differ, 0.9))
    return Grade(of_spread(median, most), median, most, int(kept.sum()))
