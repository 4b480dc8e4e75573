"""Bars are limits that figures of merit are held against; a grade says how far a chapter's figures can be trusted.

A document of figures of merit is flat: `name: number`. A figure that rests on few repeats or layers has an interval, two more
entries named by `interval_keys`. A figure without a value, absent or not a number, fails its bar.

Two things tell of a grade: by how much what was measured again differs, and how much of the processors' time others took. A
machine that is disturbed all the time may repeat well, and one that nobody else uses may drift: the worse of both counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from edgeplan.measurement.others import SHARE

#: A figure is undecided whose own interval holds the bar.
Verdict = Literal["pass", "miss", "undecided"]
PASS, MISS, UNDECIDED = get_args(Verdict)
#: Stands in the place of a figure that has none.
NO_VALUE = "no value"
Grade = Literal["good", "fair", "poor"]
_GRADES: tuple[Grade, ...] = get_args(Grade)
#: Largest median and 90th percentile of what repeats differ by, relative, of good and of fair figures.
_SPREADS: Mapping[Grade, tuple[float, float]] = {"good": (0.025, 0.06), "fair": (0.06, 0.15)}
#: Largest share of the processors' time that others take, of good and of fair figures.
_ALONE, _NEARLY = 0.03, 0.10


def value_of(metrics: Mapping[str, Any], key: str) -> float | None:
    """Return the figure of a name; None where it is absent or not finite."""
    value = metrics.get(key)
    return value if value is not None and math.isfinite(value) else None


def interval_keys(key: str) -> tuple[str, str]:
    """Return the names under which the lower and the upper end of a figure's interval stand beside it."""
    return f"{key}.low", f"{key}.high"


def interval_of(metrics: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    """Return the interval of a figure; None where it has none."""
    low, high = (value_of(metrics, name) for name in interval_keys(key))
    return None if low is None or high is None else (low, high)


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar is a figure's limit: at least `low`, at most `high`; `aim` is the wish beyond it, as text."""

    key: str
    title: str
    low: float = -math.inf
    high: float = math.inf
    aim: str = ""

    def reached(self, value: float) -> bool:
        """Tell whether a value passes the bar."""
        return self.low <= value <= self.high

    def verdict(self, metrics: Mapping[str, Any]) -> Verdict:
        """Return the verdict on a figure: `miss` without a value, `undecided` where its interval holds the bar."""
        value = value_of(metrics, self.key)
        if value is None:
            return "miss"
        ends = interval_of(metrics, self.key) or (value, value)
        if all(map(self.reached, ends)):
            return "pass"
        return "miss" if ends[1] < self.low or ends[0] > self.high else "undecided"

    def limits(self, number: Callable[[float], str]) -> str:
        """Return the bar as text, its numbers written by `number`."""
        told = [f"{sign} {number(limit)}" for sign, limit in ((">=", self.low), ("<=", self.high)) if math.isfinite(limit)]
        return " and ".join(told)

    def told(self, metrics: Mapping[str, Any], number: Callable[[float], str]) -> str:
        """Return the figure as text, its interval behind it; `NO_VALUE` where there is none."""
        if (value := value_of(metrics, self.key)) is None:
            return NO_VALUE
        ends = interval_of(metrics, self.key)
        return f"{number(value)} ({number(ends[0])} to {number(ends[1])})" if ends else number(value)


@dataclass(frozen=True, slots=True)
class Graded:
    """Holds a grade, and why so in a sentence or two."""

    name: Grade
    why: str


@dataclass(frozen=True, slots=True)
class Repeats:
    """Holds ratios (n,) of measurements of the same thing, made again; what is not finite does not count.

    `what` is the plural of the things; a grade needs `least` repeats.
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
        grade: Grade = next((name for name, most in _SPREADS.items() if found[0] <= most[0] and found[1] <= most[1]), "poor")
        told = f"{100 * found[0]:.1f} % in the median, nine in ten by {100 * found[1]:.1f} % at most"
        return Graded(grade, f"{len(self._differ())} {self.what} differ by {told}.")

    def _differ(self) -> NDArray[np.float64]:
        differ = np.abs(np.log(np.asarray(self.ratios, dtype=np.float64)))
        return np.asarray(differ[np.isfinite(differ)])


def graded(environment: Mapping[str, Any], *repeats: Repeats) -> Graded | None:
    """Return a chapter's grade, the worst known; None where too little was repeated and nobody watched the processors."""
    told = [found for one in repeats if (found := one.graded())]
    share = environment.get(SHARE)
    if share is not None:
        name: Grade = "good" if share <= _ALONE else "fair" if share <= _NEARLY else "poor"
        told.append(Graded(name, f"Others took {100 * share:.1f} % of the processors' time while it was measured."))
    if not told:
        return None
    return Graded(max((one.name for one in told), key=_GRADES.index), " ".join(one.why for one in told))
