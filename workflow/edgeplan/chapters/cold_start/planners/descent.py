"""Prices schedules whose weights are on the disk, and improves them by single changes: thousands a second, so compiled.

The order of events is that of `events.finished_ms`, which tells what happens when and is too slow to search with: a test holds
the two together.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numba import types

from edgeplan.planning.machine import Floats, Ints
from edgeplan.support.compiled import compiled

_MAIN_LANE = 0
_JUMPS = np.array([1, 2, 4, 8, 16, -1, -2, -4, -8, -16])
_HELPS = 1 - 1e-9


class SearchTimes(NamedTuple):
    """Holds the times of a search; arrays of shape (steps, candidates) in ms, as in `streams.Streams`.

    Attributes:
        read: reading from the disk.
        early_main, early_queue, main, queue: preparations, and what of them does not wait for weights.
        narrow, wide: executions; where execution never widens, `wide` is not read.
        candidates: how many, by step.
        queues: one row for each preparing core.
        widens: whether execution may widen: 1, or 0.
        latency_ms: latency of the disk.
    """

    read: Floats
    early_main: Floats
    early_queue: Floats
    main: Floats
    queue: Floats
    narrow: Floats
    wide: Floats
    candidates: Ints
    queues: int
    widens: int
    latency_ms: float


class Scratch(NamedTuple):
    """Holds the memory of one search: times by step, the steps of each lane (the main core's first), and how far a lane is.

    A lane has prepared the steps before place `at` of its own, and made the kernels of those before `made`.
    """

    early: Floats
    late: Floats
    arrives: Floats
    ready: Floats
    own: Ints
    length: Ints
    at: Ints
    made: Ints


def scratch(steps: int, queues: int) -> Scratch:
    """Allocate memory for a profile of so many steps on so many preparing cores."""
    early, late, arrives, ready = (np.zeros(steps) for _ in range(4))
    length, at, made = (np.zeros(queues + 1, np.int64) for _ in range(3))
    return Scratch(early, late, arrives, ready, np.zeros((queues + 1, steps), np.int64), length, at, made)


@compiled
def _make(m: Scratch, lane: int, now: float) -> float:
    step = m.own[lane, m.made[lane]]
    m.made[lane] += 1
    end: float = now + m.early[step]
    return end


@compiled
def _prepare(m: Scratch, lane: int, now: float) -> float:
    if m.made[lane] == m.at[lane]:
        now = _make(m, lane, now)
    step = m.own[lane, m.at[lane]]
    m.at[lane] += 1
    end: float = max(now, m.arrives[step]) + m.late[step]
    m.ready[step] = end
    return end


@compiled
def _can_make(m: Scratch, lane: int, now: float) -> bool:
    return bool(m.made[lane] < m.length[lane] and m.arrives[m.own[lane, m.at[lane]]] > now)


@compiled
def _prepare_all(m: Scratch, lane: int, now: float) -> float:
    while m.at[lane] < m.length[lane]:
        now = _make(m, lane, now) if _can_make(m, lane, now) else _prepare(m, lane, now)
    return now


@compiled
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
    steps, come = len(choice), t.latency_ms
    m.length[:] = 0
    m.at[:] = 0
    m.made[:] = 0
    for k in range(steps):
        o, lane = choice[k], place[k] + 1
        on_main = lane == _MAIN_LANE
        m.early[k] = t.early_main[k, o] if on_main else t.early_queue[k, o]
        m.late[k] = (t.main[k, o] if on_main else t.queue[k, o]) - m.early[k]
        come += t.read[k, o]
        m.arrives[k] = come if t.read[k, o] > 0 else 0.0  # what has no weights waits for none
        m.ready[k] = np.inf
        m.own[lane, m.length[lane]] = k
        m.length[lane] += 1
    now: float = 0.0
    together, free = widen_from if t.widens else steps, 0.0
    for lane in range(1, t.queues + 1):
        free = max(free, _prepare_all(m, lane, 0.0))
    for k in range(steps):
        if k == together:
            now = max(_prepare_all(m, _MAIN_LANE, now), free)
        while m.ready[k] > now:
            if m.at[_MAIN_LANE] == m.length[_MAIN_LANE]:
                now = m.ready[k]
            elif _can_make(m, _MAIN_LANE, now):
                now = _make(m, _MAIN_LANE, now)
            else:
                following = m.own[_MAIN_LANE, m.at[_MAIN_LANE]]
                if following == k or m.arrives[following] <= now:
                    now = _prepare(m, _MAIN_LANE, now)
                else:
                    now = min(m.ready[k], m.arrives[following])
        now += t.wide[k, choice[k]] if k >= together else t.narrow[k, choice[k]]
        if now >= cutoff:
            return now
    return now


@compiled
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
    helped, steps = False, len(choice)
    widest = widen_from
    for jump in _JUMPS:
        wider = widen_from + jump
        if t.widens and 0 <= wider <= steps:
            changed_ms = priced(t, m, choice, place, wider, now_ms)
            if changed_ms < now_ms * _HELPS:
                now_ms, widest, helped = changed_ms, wider, True
    for k in range(steps):
        best_choice, best_place = choice[k], place[k]
        for o in range(t.candidates[k]):
            for where in range(-1, t.queues):
                if o == best_choice and where == best_place:
                    continue
                choice[k], place[k] = o, where
                changed_ms = priced(t, m, choice, place, widest, now_ms)
                if changed_ms < now_ms * _HELPS:
                    now_ms, best_choice, best_place, helped = changed_ms, o, where, True
        choice[k], place[k] = best_choice, best_place
    return widest, now_ms, helped


@cache
def load() -> None:
    """Compile or load the search for the types that it is called with: a search that is timed does not wait for it."""
    times, steps, real = types.float64[:, ::1], types.int64[::1], types.float64
    profile = types.NamedTuple(  # type: ignore[no-untyped-call]
        (*[times] * 7, steps, types.int64, types.int64, real), SearchTimes
    )
    memory = types.NamedTuple(  # type: ignore[no-untyped-call]
        (*[types.float64[::1]] * 4, types.int64[:, ::1], *[steps] * 3), Scratch
    )
    for function in (priced, descended):
        dispatcher: Any = function
        dispatcher.compile((profile, memory, steps, steps, types.int64, real))
