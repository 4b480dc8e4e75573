"""Intervals of medians by order statistics: they take nothing for granted of how values are spread."""

from __future__ import annotations

from collections.abc import Sequence
from math import comb


def median_ends(count: int, chance: float) -> tuple[int, int] | None:
    """Return the places, in sorted values, of the ends of an interval of their median; None of too few values.

    Args:
        count: of values.
        chance: that the median lies beyond an end, for each of both at most.
    """
    beyond, low = 0.0, -1
    while (beyond := beyond + comb(count, low + 1) / 2**count) <= chance:
        low += 1
    return None if low < 0 else (low, count - 1 - low)


def around_median(values: Sequence[float], level: float = 0.95) -> tuple[float, float, bool]:
    """Return the ends of an interval of the median that values are drawn around, and whether there are enough for the level.

    Where there are too few the ends are the least and the greatest.

    Args:
        values: at least one.
        level: how often such an interval holds the median, at least.
    """
    ordered, ends = sorted(values), median_ends(len(values), (1 - level) / 2)
    low, high = ends or (0, -1)
    return ordered[low], ordered[high], ends is not None
