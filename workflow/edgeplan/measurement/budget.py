"""Bounds the time by the clock that measuring may take."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TimeBudget:
    """Says until when more may be measured; what must be measured in any case is, later too.

    Attributes:
        until: the end by `time.monotonic`; infinity never ends.
    """

    until: float = math.inf

    @classmethod
    def of(cls, seconds: float) -> TimeBudget:
        """Start a budget of seconds now; 0 seconds are unbounded."""
        return cls(time.monotonic() + seconds) if seconds else cls()

    @property
    def bounded(self) -> bool:
        """Tell whether the budget ends at all."""
        return self.until < math.inf

    @property
    def left_s(self) -> float:
        """Return the seconds that are left, at least 0."""
        return max(self.until - time.monotonic(), 0.0)

    @property
    def over(self) -> bool:
        """Tell whether nothing is left of the budget."""
        return self.left_s == 0.0

    def part(self, share: float) -> TimeBudget:
        """Return a budget of a share of what is left, from now on."""
        return TimeBudget(time.monotonic() + share * self.left_s) if self.bounded else self
