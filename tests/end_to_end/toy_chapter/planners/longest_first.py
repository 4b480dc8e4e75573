"""Longest task first, each to the lane that is free first (Graham)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def longest_first(durations_ms: npt.NDArray[np.float64], lanes: int) -> npt.NDArray[np.intp]:
    """The lane of each task (tasks,)."""
    busy_ms, lane = np.zeros(lanes), np.zeros(len(durations_ms), dtype=np.intp)
    for task in np.argsort(-durations_ms, kind="stable"):
        lane[task] = busy_ms.argmin()
        busy_ms[lane[task]] += durations_ms[task]
    return lane
