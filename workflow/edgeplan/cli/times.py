"""Formats times as commands print them. Nothing heavy is imported."""

from __future__ import annotations

import math
from collections.abc import Sequence

_SHORT_MS = 0.1


def median(values: Sequence[float]) -> float:
    """Return the value in the middle, or the mean of the two there (`statistics` takes a MiB)."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2


def milliseconds(ms: float) -> str:
    """Return milliseconds with two decimals, or as many as two digits other than leading zeros take."""
    return f"{ms:.{1 - math.floor(math.log10(ms)) if 0 < ms < _SHORT_MS else 2}f} ms"
