"""Intervals of medians by order statistics: they take nothing for granted of how times are spread."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb


def around_median(values: Sequence[float], level: float = 0.95) -> tuple[float, float, bool]:
    """Return the ends of an interval of the median that values are drawn around, and whether there are enough for the level.

    Where there are too few the ends are the least and the greatest.

    Args:
        values: at least one.
        level: how often such an interval holds the median, at least.
    """
    ordered, count = sorted(values), len(values)
    left, below = (1 - level) / 2 * 2**count, 0
    for place in range(count // 2 + 1):
        below += comb(count, place)
        if below > left:
            inner = max(place - 1, 0)
            return ordered[inner], ordered[count - 1 - inner], place > 0
    return ordered[0], ordered[-1], False
