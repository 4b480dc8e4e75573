"""Bars are limits that figures of merit are held against.

A document of figures of merit is flat: `name: number`. A figure that rests on few repeats or layers has an interval, two more
entries named by `interval_keys`. A figure without a value, absent or not a number, fails its bar.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

#: A figure is undecided whose own interval holds the bar.
Verdict = Literal["pass", "miss", "undecided"]
PASS, MISS, UNDECIDED = get_args(Verdict)
#: Stands in the place of a figure that has none.
NO_VALUE = "no value"


def value_of(metrics: Mapping[str, Any], key: str) -> float | str | None:
    """Return the figure of a name; None where it is absent or not finite."""
    value = metrics.get(key)
    return value if isinstance(value, str) or (value is not None and math.isfinite(value)) else None


def interval_keys(key: str) -> tuple[str, str]:
    """Return the names under which the lower and the upper end of a figure's interval stand beside it."""
    return f"{key}.low", f"{key}.high"


def interval_of(metrics: Mapping[str, Any], key: str) -> tuple[float, float] | None:
    """Return the interval of a figure; None where it has none."""
    low, high = (value_of(metrics, name) for name in interval_keys(key))
    return None if low is None or high is None else (float(low), float(high))


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
        if value is None or isinstance(value, str):
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
        value = value_of(metrics, self.key)
        if value is None or isinstance(value, str):
            return value or NO_VALUE
        ends = interval_of(metrics, self.key)
        return f"{number(value)} ({number(ends[0])} to {number(ends[1])})" if ends else number(value)


def worst(verdicts: list[Verdict]) -> Verdict:
    """Return the verdict on several figures together."""
    return "miss" if "miss" in verdicts else "undecided" if "undecided" in verdicts else "pass"
