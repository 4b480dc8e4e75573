"""A grade says how far a chapter's figures can be trusted: good, fair or poor.

Two things tell: by how much what was measured again differs, and how much of the processors' time others took meanwhile.
A machine that is disturbed all the time may repeat well, and one that nobody else uses may drift: the worse of both counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from edgeplan.measurement.others import SHARE
from edgeplan.reporting.metrics import FloatArray

Name = Literal["good", "fair", "poor"]
NAMES: tuple[Name, ...] = get_args(Name)
#: Largest median and 90th percentile of what repeats differ by, relative, of good and of fair figures.
_GOOD, _FAIR = (0.025, 0.06), (0.06, 0.15)
#: Largest share of the processors' time that others take, of good and of fair figures.
_ALONE, _NEARLY = 0.03, 0.10


@dataclass(frozen=True, slots=True)
class Graded:
    """Holds a grade, and why so in a sentence or two."""

    name: Name
    why: str


def of_spread(median: float, most: float) -> Name:
    """Return the grade of repeats by the median and the 90th percentile of their relative differences."""
    if median <= _GOOD[0] and most <= _GOOD[1]:
        return "good"
    return "fair" if median <= _FAIR[0] and most <= _FAIR[1] else "poor"


@dataclass(frozen=True, slots=True)
class Repeats:
    """Holds measurements of the same things, made again.

    Attributes:
        ratios: ratios of measurements of the same thing (n,); what is not finite does not count.
        what: noun for the things, in the plural.
        least: number of repeats that a grade needs.
    """

    ratios: ArrayLike
    what: str
    least: int = 4

    def spread(self) -> tuple[float, float] | None:
        """Return the median and the 90th percentile of the repeats' relative differences; None where they are too few."""
        differ = self._differ()
        return (float(np.median(differ)), float(np.quantile(differ, 0.9))) if len(differ) >= self.least else None

    def graded(self) -> Graded | None:
        """Return the grade of the repeats; None where they are too few."""
        if (found := self.spread()) is None:
            return None
        told = f"{100 * found[0]:.1f} % in the median, nine in ten by {100 * found[1]:.1f} % at most"
        return Graded(of_spread(*found), f"{len(self._differ())} {self.what} differ by {told}.")

    def _differ(self) -> FloatArray:
        differ = np.abs(np.log(np.asarray(self.ratios, dtype=np.float64)))
        return np.asarray(differ[np.isfinite(differ)])


def graded(environment: Mapping[str, Any], *repeats: Repeats) -> Graded | None:
    """Return a chapter's grade, the worst known; None where too little was repeated and nobody watched the processors.

    Args:
        environment: environment of the rows, as their stage wrote it.
        repeats: measurements that were made again.
    """
    told = [found for one in repeats if (found := one.graded())]
    share = environment.get(SHARE)
    if share is not None:
        name: Name = "good" if share <= _ALONE else "fair" if share <= _NEARLY else "poor"
        told.append(Graded(name, f"Others took {100 * share:.1f} % of the processors' time while it was measured."))
    if not told:
        return None
    return Graded(max((one.name for one in told), key=NAMES.index), " ".join(one.why for one in told))
