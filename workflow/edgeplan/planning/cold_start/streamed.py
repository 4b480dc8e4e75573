"""Planning cold starts with the page cache evicted: weights stream from the disk (`streams`) while kernels are made.

A search with a proven lower bound. For each step from which execution may widen the bound is the largest of a cheap one (those
of `local_search` with the disk as one more row, and max over k of least A_k + least executions of steps >= k), what the optimal
planner proves for weights in memory, and a mixed-integer program with the disk (`streamed_program`): its relaxation, which
bounds all other widenings too, and where that leaves room the program itself. As in `optimal`, the most promising widening
comes first, and only while its bound is below the best schedule by more than the gap asked for.

The programs do not see all of what a waiting core costs. So every schedule is priced event by event, and improved by single
changes (candidate and place of a step, or the step that widens); then, while there is time, the best one is shaken at random.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, repeat

import numpy as np

from edgeplan.planning.cold_start.local_search import changed_at_random, cheap_bounds, picked, spread
from edgeplan.planning.cold_start.machine import MAIN, Floats, Schedule
from edgeplan.planning.cold_start.mixed_integer import promising, relax, solve
from edgeplan.planning.cold_start.optimal import Planned, Search, optimal
from edgeplan.planning.cold_start.profile import Disk, Profile
from edgeplan.planning.cold_start.streamed_program import carried_bounds, streamed_program
from edgeplan.planning.cold_start.streams import Streams, streamed_ms, streams_of

_STARTS = 6
_ROUNDS, _SHAKEN = 50, 3
_JUMPS = (1, 2, 4, 8, 16)


def streamed_bounds(s: Streams) -> tuple[Floats, Floats]:
    """A lower bound on `streamed_ms` for each step from which execution can widen.

    Returns:
        Bounds (ms) and the multipliers of `cheap_bounds`, in the order of `Costs.widenings`.
    """
    costs = s.costs
    read = np.cumsum(s.read.min(axis=1))
    arrivals = np.where(read > 0, s.latency_ms + read, 0.0)
    bounds, multipliers = cheap_bounds(costs, s.read, s.latency_ms if read[-1] > 0 else 0.0)
    absent = np.where(costs.present, 0.0, np.inf)
    narrow = np.append(0.0, np.cumsum((costs.narrow + absent).min(axis=1)))
    behind = np.maximum.accumulate(np.append(-np.inf, arrivals - narrow[:-1])) + narrow
    if costs.wide is None:
        return np.maximum(bounds, behind[-1]), multipliers
    wide = np.append(np.cumsum((costs.wide + absent).min(axis=1)[::-1])[::-1], 0.0)
    return np.maximum(bounds, np.maximum(behind, arrivals[-1]) + wide), multipliers


def streamed(profile: Profile, disk: Disk, search: Search | None = None, *, beat_ms: float = np.inf) -> Planned:
    """Search a schedule for weights on the disk, and prove how far it is from the optimum.

    Args:
        profile: with all candidates: one that is slower everywhere may have fewer bytes to read.
        disk: where the weights are.
        search: how hard to search.
        beat_ms: a makespan that is at hand already: where the bound is not below it (but for the gap), search no further.
    """
    search = search or Search()
    until = time.monotonic() + search.time_limit_s
    s = streams_of(profile, disk)
    costs, widenings = s.costs, s.costs.widenings()
    bounds, multipliers = streamed_bounds(s)
    in_memory = optimal(costs, replace(search, time_limit_s=search.time_limit_s / 4))
    bounds = np.maximum(bounds, in_memory.lower_bound_ms)
    found = _Incumbent(s, in_memory.schedule)
    if costs.queues > 0:
        for i in np.argsort(bounds, kind="stable")[:_STARTS].tolist():
            found.offer(_start(s, widenings[i], multipliers[i]))
    relaxed = solved = 0
    waiting = np.ones(len(bounds), dtype=bool)
    while waiting.any():
        i = int(np.where(waiting, bounds, np.inf).argmin())
        best_ms = min(found.makespan_ms, beat_ms)
        if bounds[i] >= best_ms * (1 - search.gap) or time.monotonic() > until:
            break
        waiting[i] = False
        full = streamed_program(s, widenings[i], None, np.inf)
        relaxation = relax(full.program)
        relaxed += 1
        bounds[i] = max(bounds[i], relaxation.bound)
        if costs.queues <= 1:
            bounds = np.maximum(bounds, carried_bounds(s, full, relaxation))
        if bounds[i] < best_ms * (1 - search.gap):
            cutoff = best_ms * (1 - search.gap / 2)
            keep = promising(full.program, relaxation, cutoff, costs.present)
            left_s = max((until - time.monotonic()) / 2, 0.1)
            small = streamed_program(s, widenings[i], keep, cutoff).program
            solution = solve(small, gap=search.gap / 2, time_limit_s=left_s)
            solved += 1
            bounds[i] = max(bounds[i], solution.bound)
            if solution.schedule is not None:
                found.improve(spread(costs, *solution.schedule, widenings[i]), solution.bound * (1 + search.gap), until)
    bound = float(bounds.min())
    random, shaken = np.random.default_rng(0), 0
    for schedule in chain([found.schedule], repeat(None, _ROUNDS)):
        if min(found.makespan_ms, beat_ms) * (1 - search.gap) <= bound or time.monotonic() > until:
            break
        shaken += 1
        found.improve(schedule or _shaken(s, found.schedule, random), bound * (1 + search.gap), until)
    note = f"{len(widenings)} widenings, {relaxed} relaxed, {solved} solved as mixed-integer programs, {shaken} starts searched"
    return Planned(found.schedule, found.makespan_ms, min(bound, found.makespan_ms), note)


class _Incumbent:
    """The best schedule so far."""

    def __init__(self, s: Streams, schedule: Schedule) -> None:
        self.s, self.schedule, self.makespan_ms = s, schedule, streamed_ms(s, schedule)

    def offer(self, schedule: Schedule) -> float:
        """Keep a schedule if it is faster; returns its makespan."""
        makespan_ms = streamed_ms(self.s, schedule)
        if makespan_ms < self.makespan_ms:
            self.schedule, self.makespan_ms = schedule, makespan_ms
        return makespan_ms

    def improve(self, schedule: Schedule, goal_ms: float, until: float) -> None:
        """Offer a schedule, and what single changes make of it unless it is good enough."""
        makespan_ms = self.offer(schedule)
        if makespan_ms > goal_ms:
            self.offer(_descended(self.s, schedule, makespan_ms, until))


def _start(s: Streams, widen_from: int, multipliers: Floats) -> Schedule:
    choice, place = picked(s.costs, widen_from, multipliers, s.read)
    return spread(s.costs, choice, place, widen_from)


def _shaken(s: Streams, schedule: Schedule, random: np.random.Generator) -> Schedule:
    other = changed_at_random(s.costs, schedule, _SHAKEN, random)
    return replace(other, widen_from=int(random.choice(s.costs.widenings())))


def _descended(s: Streams, schedule: Schedule, now_ms: float, until: float) -> Schedule:
    """Single changes, each kept if it helps, until none does or the time is up."""
    helped = True
    while helped:
        helped = False
        for k in range(-1, s.costs.steps):
            for changed in _widened(s, schedule) if k < 0 else _changed(s, schedule, k):
                if time.monotonic() > until:
                    return schedule
                if (changed_ms := streamed_ms(s, changed)) < now_ms * (1 - 1e-9):
                    now_ms, schedule, helped = changed_ms, changed, True
    return schedule


def _widened(s: Streams, schedule: Schedule) -> Iterator[Schedule]:
    for jump in (*_JUMPS, *(-jump for jump in _JUMPS)):
        if schedule.widen_from + jump in s.costs.widenings():
            yield Schedule(schedule.choice, schedule.place, schedule.widen_from + jump)


def _changed(s: Streams, schedule: Schedule, k: int) -> Iterator[Schedule]:
    for o in np.flatnonzero(s.costs.present[k]).tolist():
        for place in range(MAIN, s.costs.queues):
            if (o, place) != (schedule.choice[k], schedule.place[k]):
                choice, places = list(schedule.choice), list(schedule.place)
                choice[k], places[k] = o, place
                yield Schedule(tuple(choice), tuple(places), schedule.widen_from)
