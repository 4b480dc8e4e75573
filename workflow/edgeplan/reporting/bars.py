"""What figures of merit are held against."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure has to reach: at least `low`, at most `high`; `aim` is the wish beyond it, as text."""

    key: str
    title: str
    low: float = -math.inf
    high: float = math.inf
    aim: str = ""

    def reached(self, value: float) -> bool:
        """Whether a value passes."""
        return self.low <= value <= self.high

    def limits(self, number: Callable[[float], str]) -> str:
        """The bar as text, its numbers written by `number`."""
        told = [f"{sign} {number(limit)}" for sign, limit in ((">=", self.low), ("<=", self.high)) if math.isfinite(limit)]
        return " and ".join(told)
