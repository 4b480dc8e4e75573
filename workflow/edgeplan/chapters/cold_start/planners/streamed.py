"""Plans cold starts with the page cache evicted: weights stream from the disk (`streams`) while kernels are made.

It searches with a proven lower bound. For each step from which execution may widen the bound is the largest of a cheap one
(those of `local_search` with the disk as one more row, and max over k of least A_k + least executions of steps >= k), what the
optimal planner proves for weights in memory, and a mixed-integer program with the disk (`streamed_program`): its relaxation,
which bounds all other widenings too, and where that leaves room the program itself. As in `optimal`, the most promising
widening comes first, and only while its bound is below the best schedule by more than the gap asked for.

The programs do not see all of what a waiting core costs. So every schedule is priced event by event, and improved by single
changes (candidate and place of a step, or the step that widens); before the first program, and then while there is time, the
best one is shaken at random and improved again, some hundred times a second (`descent`).
"""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np

from edgeplan.chapters.cold_start.planners.streamed_program import carried_bounds, streamed_program
from edgeplan.chapters.cold_start.planners.streams import Streams, descended, streamed_ms, streams_of
from edgeplan.planning.local_search import changed_at_random, cheap_bounds, picked, spread
from edgeplan.planning.machine import Floats, KernelSchedule
from edgeplan.planning.mixed_integer import promising, relax, solve
from edgeplan.planning.optimal import ProvenSchedule, Search, optimal
from edgeplan.planning.profile import Disk, Profile

_STARTS = 6
_SHAKEN, _SHAKING_FIRST = 3, 0.25


def streamed_bounds(s: Streams) -> tuple[Floats, Floats]:
    """Return a lower bound on `streamed_ms` for each step from which execution can widen.

    Returns:
        Bounds (ms) and the multipliers of `cheap_bounds`, in the order of `CostArrays.widenings`.
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


def streamed(profile: Profile, disk: Disk, search: Search | None = None, *, beat_ms: float = np.inf) -> ProvenSchedule:
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
    found = _Incumbent(s, in_memory.schedule, search.gap, beat_ms)
    if costs.queues > 0:
        for i in np.argsort(bounds, kind="stable")[:_STARTS].tolist():
            found.offer(_start(s, widenings[i], multipliers[i]))
    found.improve(found.schedule, float(bounds.min()), until)
    relaxed = solved = 0
    waiting = np.ones(len(bounds), dtype=bool)
    while waiting.any():
        i = int(np.where(waiting, bounds, np.inf).argmin())
        if found.good_enough(bounds[i]) or time.monotonic() > until:
            break
        waiting[i] = False
        full = streamed_program(s, widenings[i], None, np.inf)
        relaxation = relax(full.program)
        relaxed += 1
        bounds[i] = max(bounds[i], relaxation.bound)
        if costs.queues <= 1:
            bounds = np.maximum(bounds, carried_bounds(s, full, relaxation))
        if solved == 0:  # the better the schedule, the smaller the program
            found.shake(float(bounds.min()), time.monotonic() + max(until - time.monotonic(), 0.0) * _SHAKING_FIRST)
        if not found.good_enough(bounds[i]):
            cutoff = found.makespan_to_beat_ms * (1 - search.gap / 2)
            keep = promising(full.program, relaxation, cutoff, costs.present)
            left_s = max((until - time.monotonic()) / 2, 0.1)
            small = streamed_program(s, widenings[i], keep, cutoff).program
            solution = solve(small, gap=search.gap / 2, time_limit_s=left_s)
            solved += 1
            bounds[i] = max(bounds[i], solution.bound)
            if solution.schedule is not None:
                found.improve(spread(costs, *solution.schedule, widenings[i]), solution.bound, until)
    bound = float(bounds.min())
    found.shake(bound, until)
    searched = f"{relaxed} relaxed, {solved} solved as mixed-integer programs, {found.starts} starts searched"
    note = f"{len(widenings)} widenings, {searched}"
    return ProvenSchedule(found.schedule, found.makespan_ms, min(bound, found.makespan_ms), note)


class _Incumbent:
    """Keeps the best schedule so far."""

    def __init__(self, s: Streams, schedule: KernelSchedule, gap: float, beat_ms: float) -> None:
        self.s, self.schedule, self.makespan_ms = s, schedule, streamed_ms(s, schedule)
        self.starts = 0
        self._gap, self._beat_ms = gap, beat_ms
        self._random = np.random.default_rng(0)

    @property
    def makespan_to_beat_ms(self) -> float:
        """Return the makespan of the best schedule so far, or of the one given."""
        return min(self.makespan_ms, self._beat_ms)

    def good_enough(self, bound_ms: float) -> bool:
        """Tell whether a schedule is as near to a bound as was asked for."""
        return bound_ms >= self.makespan_to_beat_ms * (1 - self._gap)

    def offer(self, schedule: KernelSchedule) -> None:
        """Keep a schedule if it is faster."""
        makespan_ms = streamed_ms(self.s, schedule)
        if makespan_ms < self.makespan_ms:
            self.schedule, self.makespan_ms = schedule, makespan_ms

    def improve(self, schedule: KernelSchedule, bound_ms: float, until: float) -> None:
        """Offer a schedule, and what single changes make of it unless the best one is good enough."""
        self.offer(schedule)
        if not self.good_enough(bound_ms):
            self.starts += 1
            self.offer(descended(self.s, schedule, until))

    def shake(self, bound_ms: float, until: float) -> None:
        """Improve what random changes make of the best schedule, until that is good enough or the time is up."""
        while not self.good_enough(bound_ms) and time.monotonic() < until:
            self.improve(_shaken(self.s, self.schedule, self._random), bound_ms, until)


def _start(s: Streams, widen_from: int, multipliers: Floats) -> KernelSchedule:
    choice, place = picked(s.costs, widen_from, multipliers, s.read)
    return spread(s.costs, choice, place, widen_from)


def _shaken(s: Streams, schedule: KernelSchedule, random: np.random.Generator) -> KernelSchedule:
    other = changed_at_random(s.costs, schedule, _SHAKEN, random)
    return replace(other, widen_from=int(random.choice(s.costs.widenings())))
