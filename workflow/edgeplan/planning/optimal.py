"""Plans optimally: kernels, sources, places and widening together, with a proven lower bound.

For each step from which execution may widen, the best schedule is a mixed-integer program (`mixed_integer`); the least over
them is the optimum. Programs are solved in the order of a cheap bound, and only while their bound is below the best schedule by
more than the gap asked for. What remains is small: the linear relaxation's reduced costs forbid most candidates, and HiGHS
decides about the rest. Where weights come from the disk, what is proven for weights in memory is a bound, too.

The bound holds for the costs of the profile, the contention factors included, and the fixed order of execution.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np

from edgeplan.planning.document import Plan, Target
from edgeplan.planning.local_search import Events, changed_at_random, cheap_bounds, improved_schedule, picked_candidates, spread
from edgeplan.planning.machine import MAIN, CostArrays, KernelSchedule, Span, cost_arrays, makespan_ms, sequential, simulate
from edgeplan.planning.mixed_integer import MixedIntegerProgram, Relaxation, carried_bounds, program, promising, relax, solve
from edgeplan.planning.profile import SOURCES, Candidate, Disk, Profile, cache_bytes, read_bytes

_ROUNDS, _SHAKEN = 200, 4
_SHAKEN_ON_DISK, _SHAKING_FIRST = 3, 0.25


@dataclass(frozen=True, slots=True)
class Search:
    """A search is limited by a relative gap to prove and a time, which is shared by the home layouts of a model.

    After that time the best schedule is returned with the bound proven so far.
    """

    gap: float = 1e-3
    time_limit_s: float = 1.7


@dataclass(frozen=True, slots=True)
class ProvenSchedule:
    """Holds a schedule, its predicted makespan, what no schedule of this profile beats, and a note how it was found."""

    schedule: KernelSchedule
    makespan_ms: float
    lower_bound_ms: float
    note: str

    @property
    def gap(self) -> float:
        """Return the relative distance of the makespan to the bound."""
        return self.makespan_ms / self.lower_bound_ms - 1 if self.lower_bound_ms > 0 else 0.0


def optimal(costs: CostArrays, search: Search | None = None, *, beat_ms: float = np.inf) -> ProvenSchedule:
    """Find a schedule and prove how far it is from the optimum: within the gap; on several queues, as near as it got.

    With a disk the costs are of all candidates: one that is slower everywhere may have fewer bytes to read. Where no schedule
    is faster than a makespan that is at hand already (`beat_ms`; but for the gap), the search ends.
    """
    search = search or Search()
    until = time.monotonic() + search.time_limit_s
    bounds, multipliers = cheap_bounds(costs)
    if costs.disk is None:
        best = sequential(costs, tuple((costs.alone_prepare + costs.alone_execute).argmin(axis=1).tolist()))
        found = _Incumbent(costs, best, search.gap, beat_ms)
        if costs.queues == 0:
            return ProvenSchedule(best, found.makespan_ms, found.makespan_ms, "one core: everything in sequence")
    else:
        in_memory = optimal(replace(costs, disk=None), replace(search, time_limit_s=search.time_limit_s / 4))
        bounds = np.maximum(bounds, in_memory.lower_bound_ms)
        found = _Streamed(costs, in_memory.schedule, search.gap, beat_ms)
    widenings = costs.widenings()
    starts = np.argsort(bounds, kind="stable")[: found.first if costs.queues > 0 else 0].tolist()
    first = (spread(costs, *picked_candidates(costs, widenings[i], multipliers[i]), widenings[i]) for i in starts)
    found.begin(first, float(bounds.min()), until)
    relaxed = solved = 0
    waiting = np.ones(len(bounds), dtype=bool)
    while waiting.any():
        i = int(np.where(waiting, bounds, np.inf).argmin())
        if found.good_enough(bounds[i]) or time.monotonic() > until:
            break
        waiting[i] = False
        full = program(costs, widenings[i])
        relaxation = relax(full)
        relaxed += 1
        bounds[i] = max(bounds[i], relaxation.bound)
        if costs.queues <= 1 and costs.wide is not None:
            bounds = np.maximum(bounds, carried_bounds(costs, full, relaxation))
        found.learn(full, relaxation, float(bounds.min()), until, solved)
        if not found.good_enough(bounds[i]):
            cutoff = found.makespan_to_beat_ms * (1 - search.gap / 2)
            keep = promising(full, relaxation, cutoff, costs.present)
            left_s = max((until - time.monotonic()) * found.solving, 0.1)
            solution = solve(program(costs, widenings[i], keep, cutoff), gap=search.gap / 2, time_limit_s=left_s)
            solved += 1
            bounds[i] = max(bounds[i], solution.bound)
            if solution.schedule is not None:
                found.improve(spread(costs, *solution.schedule, widenings[i]), solution.bound, until)
    bound = float(bounds.min())
    found.end(bound, until)
    note = f"{len(widenings)} widenings, {relaxed} relaxed, {solved} solved as mixed-integer programs{found.note()}"
    return ProvenSchedule(found.schedule, found.makespan_ms, min(bound, found.makespan_ms), note)


class _Incumbent:
    """The best schedule so far, weights being in memory; what is offered is improved by single changes before."""

    first, solving = 8, 1.0

    def __init__(self, costs: CostArrays, schedule: KernelSchedule, gap: float, beat_ms: float) -> None:
        self.costs, self.schedule = costs, schedule
        self._gap, self._beat_ms, self._random = gap, beat_ms, np.random.default_rng(0)
        self.makespan_ms = self._priced(schedule)

    def _priced(self, schedule: KernelSchedule) -> float:
        return makespan_ms(self.costs, schedule)

    @property
    def makespan_to_beat_ms(self) -> float:
        """The makespan of the best schedule so far, or of the one given."""
        return min(self.makespan_ms, self._beat_ms)

    def note(self) -> str:
        """What there is to say of the search besides."""
        return ""

    def good_enough(self, bound_ms: float) -> bool:
        """Tell whether a schedule is as near to a bound as was asked for."""
        return bound_ms >= self.makespan_to_beat_ms * (1 - self._gap)

    def offer(self, schedule: KernelSchedule) -> None:
        """Keep a schedule if it is faster."""
        if (time_ms := self._priced(schedule)) < self.makespan_ms:
            self.schedule, self.makespan_ms = schedule, time_ms

    def begin(self, first: Iterable[KernelSchedule], bound_ms: float, until: float) -> None:
        """Take the cheap schedules of the most promising widenings."""
        for schedule in first:
            self.improve(schedule, bound_ms, until)

    def learn(self, full: MixedIntegerProgram, relaxation: Relaxation, bound_ms: float, until: float, solved: int) -> None:
        """Take from a relaxation of each step the candidate and place with the largest share."""
        del solved
        x = np.zeros((*self.costs.main.shape, 2))
        x[full.step, full.candidate, np.where(full.place == MAIN, 1, 0)] = relaxation.x
        pick = x.reshape(self.costs.steps, -1).argmax(axis=1)
        rounded = spread(self.costs, pick // 2, np.where(pick % 2 == 0, 0, MAIN), full.widen_from)
        self.improve(rounded, bound_ms, until)

    def improve(self, schedule: KernelSchedule, bound_ms: float, until: float) -> None:
        """Offer what single changes make of a schedule."""
        del bound_ms, until
        self.offer(improved_schedule(self.costs, schedule))

    def end(self, bound_ms: float, until: float) -> None:
        """Search around the best schedule on several queues, which the program only relaxes."""
        if self.costs.queues <= 1 or bound_ms >= self._beat_ms:
            return
        for _ in range(_ROUNDS):
            if self.makespan_ms <= bound_ms * (1 + self._gap) or time.monotonic() > until:
                return
            self.improve(changed_at_random(self.costs, self.schedule, _SHAKEN, self._random), bound_ms, until)


class _Streamed(_Incumbent):
    """The best schedule so far with weights on the disk.

    The programs do not see all of what a waiting core costs. So every schedule is priced event by event, and improved by single
    changes of candidate and place of a step, or of the step that widens; before the first program, and then while there is
    time, the best one is shaken at random and improved again, some hundred times a second.
    """

    first, solving = 6, 0.5

    def __init__(self, costs: CostArrays, schedule: KernelSchedule, gap: float, beat_ms: float) -> None:
        self._events, self._starts = Events(costs), 0
        super().__init__(costs, schedule, gap, beat_ms)

    def note(self) -> str:
        return f", {self._starts} starts searched"

    def _priced(self, schedule: KernelSchedule) -> float:
        return self._events.makespan_ms(schedule)

    def begin(self, first: Iterable[KernelSchedule], bound_ms: float, until: float) -> None:
        for schedule in first:
            self.offer(schedule)
        self.improve(self.schedule, bound_ms, until)

    def learn(self, full: MixedIntegerProgram, relaxation: Relaxation, bound_ms: float, until: float, solved: int) -> None:
        del full, relaxation
        if solved == 0:  # the better the schedule, the smaller the program
            self.end(bound_ms, time.monotonic() + max(until - time.monotonic(), 0.0) * _SHAKING_FIRST)

    def improve(self, schedule: KernelSchedule, bound_ms: float, until: float) -> None:
        self.offer(schedule)
        if not self.good_enough(bound_ms):
            self._starts += 1
            self.offer(self._events.descended(schedule, until))

    def end(self, bound_ms: float, until: float) -> None:
        while not self.good_enough(bound_ms) and time.monotonic() < until:
            other = changed_at_random(self.costs, self.schedule, _SHAKEN_ON_DISK, self._random)
            widen_from = int(self._random.choice(self.costs.widenings()))
            self.improve(replace(other, widen_from=widen_from), bound_ms, until)


@dataclass(frozen=True, slots=True)
class Outcome:
    """An outcome is the planned schedule of one layout, with its bound.

    The profile has the candidates that the schedule's choice counts in; the makespan includes the start. No schedule of this
    layout beats the bound, if the planner proved something; beside a faster layout planned before, it is no more than is needed
    to give this one up. Weights come from the disk, if not from memory.
    """

    profile: Profile
    schedule: KernelSchedule
    makespan_ms: float
    note: str
    lower_bound_ms: float | None = None
    disk: Disk | None = None

    @property
    def chosen(self) -> tuple[Candidate, ...]:
        """Return the chosen candidates, by step."""
        return tuple(layer.candidates[o] for layer, o in zip(self.profile.layers, self.schedule.choice, strict=True))

    def timeline(self) -> tuple[Span, ...]:
        """Return the spans of work on each core, for a Gantt picture."""
        return simulate(self.profile, self.schedule, self.disk)[1]


def optimal_outcome(
    profile: Profile, search: Search | None = None, *, beat_ms: float = math.inf, disk: Disk | None = None
) -> Outcome:
    """Return the optimal planner's outcome for a profile, whose start counts.

    Only plans that are faster than `beat_ms`, the best makespan of another layout, are of interest.
    """
    start = profile.start_ms
    found = optimal(cost_arrays(profile, disk), search, beat_ms=beat_ms - start)
    return Outcome(profile, found.schedule, start + found.makespan_ms, found.note, start + found.lower_bound_ms, disk)


def plan_document(
    outcome: Outcome,
    planner: str,
    target: Target,
    *,
    bound_ms: float,
    costs: Literal["profiled", "predicted"] = "profiled",
    planning_ms: float = 0.0,
) -> Plan:
    """Write an outcome down as a plan."""
    profile, schedule, chosen = outcome.profile, outcome.schedule, outcome.chosen
    implementations = sorted({c.implementation for c in chosen})
    return Plan(
        **asdict(target),
        planner=planner,
        costs=costs,
        note=outcome.note,
        layout=profile.layout,
        equal_cores=profile.equal,
        little_ratio=profile.little_ratio,
        steps=tuple(layer.name for layer in profile.layers),
        implementations=tuple(implementations),
        implementation=tuple(implementations.index(c.implementation) for c in chosen),
        source=tuple(SOURCES.index(c.source) for c in chosen),
        main=schedule.queue(MAIN),
        queues=tuple(schedule.queue(q) for q in range(profile.queues)),
        widen_from=schedule.widen_from,
        makespan_ms=round(outcome.makespan_ms, 6),
        lower_bound_ms=round(min(bound_ms, outcome.makespan_ms), 6),
        planning_ms=round(planning_ms, 3),
        read_bytes=read_bytes(chosen),
        cache_bytes=cache_bytes(chosen),
        disk_mb_per_s=outcome.disk.mb_per_s if outcome.disk is not None else None,
        disk_latency_ms=outcome.disk.latency_ms if outcome.disk is not None else None,
        noise=round(profile.noise, 4),
        others=round(profile.others, 4),
    )
