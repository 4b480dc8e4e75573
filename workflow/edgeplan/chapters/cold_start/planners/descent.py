"""Prices schedules whose weights are on the disk, and improves them by single changes: thousands a second, so natively.

The order of events is that of `events.finished_ms`, which tells what happens when and is too slow to search with: a test holds
the two together.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_int, c_int64, c_void_p

import numpy as np

from edgeplan.planning.machine import Floats, Ints
from edgeplan.support.numerics import array, when_needed


class SearchTimes(ctypes.Structure):
    """Holds the times of a search, as the library reads them.

    Args:
        times: of each candidate, ms, shape (steps, candidates, 7): reading from the disk; what of a preparation does not wait
            for weights, on the main core and on others; the whole preparation on them; narrow and wide execution. Where
            execution never widens, the last is not read.
        candidates: how many, by step.
        queues: number of preparing cores.
        latency_ms: latency of the disk.
        widens: whether execution may widen.
    """

    _fields_ = (
        ("_times", c_void_p),
        ("_candidates", c_void_p),
        *((name, c_int64) for name in ("_steps", "_width", "_queues", "_widens")),
        ("_latency_ms", c_double),
    )

    def __init__(self, times: Floats, candidates: Ints, queues: int, latency_ms: float, *, widens: bool) -> None:
        self._arrays = np.ascontiguousarray(times, np.float64), np.ascontiguousarray(candidates, np.int64)
        super().__init__(*(own.ctypes.data for own in self._arrays), *times.shape[:2], queues, widens, latency_ms)


class Scratch(ctypes.Structure):
    """Holds the memory of one search, for a profile of so many steps on so many preparing cores."""

    _fields_ = tuple((name, c_void_p) for name in ("_steps", "_cores", "_own"))

    def __init__(self, steps: int, queues: int) -> None:
        cores = queues + 1
        self._arrays = np.zeros((steps, 4)), np.zeros((cores, 3), np.int64), np.zeros((cores, steps), np.int64)
        super().__init__(*(own.ctypes.data for own in self._arrays))


_SCHEDULE = (POINTER(SearchTimes), POINTER(Scratch), array(np.int64), array(np.int64))
_priced = when_needed("schedule_priced", c_double, *_SCHEDULE, c_int64, c_double)
_descended = when_needed("schedule_descended", c_int, *_SCHEDULE, POINTER(c_int64), POINTER(c_double))


def priced(t: SearchTimes, m: Scratch, choice: Ints, place: Ints, widen_from: int, cutoff: float) -> float:
    """Return when the last step has been executed (ms), or what has passed when that is known not to be below the cutoff.

    Args:
        t: the profile and its disk.
        m: is overwritten.
        choice: candidate of each step.
        place: preparing core of each step, -1 for the main core.
        widen_from: first step executed on all cores.
        cutoff: no makespan above this is of interest.
    """
    return float(_priced()(t, m, choice, place, widen_from, cutoff))


def descended(t: SearchTimes, m: Scratch, choice: Ints, place: Ints, widen_from: int, now_ms: float) -> tuple[int, float, bool]:
    """Make one round of single changes: the widening, then candidate and place of each step; each is kept if it helps.

    Args:
        t: the profile and its disk.
        m: is overwritten.
        choice: candidate of each step; changed in place.
        place: preparing core of each step; changed in place.
        widen_from: first step executed on all cores.
        now_ms: the makespan.

    Returns:
        The step that widens, the makespan, and whether anything helped: if so, another round may.
    """
    widest, makespan_ms = c_int64(widen_from), c_double(now_ms)
    helped = _descended()(t, m, choice, place, widest, makespan_ms)
    return widest.value, makespan_ms.value, bool(helped)
