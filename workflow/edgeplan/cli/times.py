"""Formats times as commands print them. Nothing heavy is imported."""

from __future__ import annotations

from collections.abc import Sequence


def median(values: Sequence[float]) -> float:
    """Return the value in the middle, or the mean of the two there (`statistics` takes a MiB)."""
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) / 2
