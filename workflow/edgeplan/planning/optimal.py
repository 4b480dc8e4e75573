"""Plans optimally: kernels, sources, places and widening together, with a proven lower bound.

For each step from which execution may widen, the best schedule is a mixed-integer program (`mixed_integer`); the least over
them is the optimum. Programs are solved in the order of a cheap bound, and only while their bound is below the best schedule by
more than the gap asked for. What remains is small: the linear relaxation's reduced costs forbid most candidates, and HiGHS
decides about the rest. Where weights come from the disk, what is proven for weights in memory is a bound, too.

The bound holds for the costs of the profile, the contention factors included, and the fixed order of execution.
"""

from __future__ import annotations

import ctypes
import math
import time
from collections.abc import Iterable
from ctypes import POINTER, c_double, c_int, c_int64, c_void_p
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np

from edgeplan.planning.document import Plan, Target
from edgeplan.planning.machine import MAIN, CostArrays, Floats, Ints, KernelSchedule, cost_arrays, makespan_ms, sequential
from edgeplan.planning.mixed_integer import MixedIntegerProgram, Relaxation, carried_bounds, program, promising, relax, solve
from edgeplan.planning.profile import SOURCES, Candidate, Disk, Profile, cache_bytes, read_bytes
from edgeplan.support.numerics import array, when_needed

_MULTIPLIERS, _DISK_STEPS = 65, 16
_ABSENT_MS = 1e12  # infinity times zero is not a number: absent candidates are merely out of the question here


def _finite(costs: CostArrays, times: Floats) -> Floats:
    return np.where(costs.present, times, _ABSENT_MS)


def cheap_bounds(costs: CostArrays) -> tuple[Floats, Floats]:
    """Return a lower bound on the makespan for each step from which execution can widen, all in one sweep.

    Lagrangian relaxation with two rows, the main core's work (multiplier u) and the end of all preparations, and a third one
    where weights come from the disk, the end of all reading; the multipliers add up to 1. Each step then chooses its candidate
    and place alone. The best of a grid of multipliers is taken; with a disk, or the largest of A_k + least executions behind.
    Bounds (ms) come with their multipliers (main core, preparing cores, disk), both in the order of `costs.widenings()`.
    """
    grid, disk = _multipliers(disk=costs.disk is not None), costs.disk
    u, queued, streamed = (column[:, None, None] for column in grid.T)
    main, queue, narrow = (_finite(costs, a) for a in (costs.main, costs.queue, costs.narrow))
    place = main * u if costs.queues == 0 else np.minimum(main * u, queue / costs.queues * queued)
    if disk is not None:
        place = place + _finite(costs, disk.read) * streamed
    before = (place + narrow * u).min(axis=2)
    total = np.cumsum(before, axis=1)
    if costs.wide is None:
        bounds = total[:, -1:]
    else:
        after = (place + _finite(costs, costs.wide)).min(axis=2)
        zero = np.zeros((len(u), 1))
        bounds = np.hstack([zero, total]) + np.hstack([np.cumsum(after[:, ::-1], axis=1)[:, ::-1], zero])
    if disk is None:
        return bounds.max(axis=0), grid[bounds.argmax(axis=0)]
    read = np.cumsum(disk.read.min(axis=1))
    bounds = bounds + (disk.latency_ms if read[-1] > 0 else 0.0) * streamed[:, :, 0]
    arrivals = np.where(read > 0, disk.latency_ms + read, 0.0)
    least = np.append(0.0, np.cumsum(narrow.min(axis=1)))
    behind = np.maximum.accumulate(np.append(-np.inf, arrivals - least[:-1])) + least
    if costs.wide is None:
        behind = behind[-1:]
    else:
        behind = np.maximum(behind, arrivals[-1])
        behind = behind + np.append(np.cumsum(_finite(costs, costs.wide).min(axis=1)[::-1])[::-1], 0.0)
    return np.maximum(bounds.max(axis=0), behind), grid[bounds.argmax(axis=0)]


def _multipliers(*, disk: bool) -> Floats:
    """Return a grid of multipliers that add up to 1: rows of main core, preparing cores, disk."""
    if disk:
        points = [(i, j, _DISK_STEPS - i - j) for i in range(_DISK_STEPS + 1) for j in range(_DISK_STEPS + 1 - i)]
        return np.array(points) / _DISK_STEPS
    u = np.linspace(0.0, 1.0, _MULTIPLIERS)
    return np.stack([u, 1 - u, np.zeros_like(u)], axis=1)


def picked_candidates(costs: CostArrays, widen_from: int, multipliers: Floats) -> tuple[Ints, Ints]:
    """Return the candidate and place (0: a queue) of each step, each chosen alone at multipliers of `cheap_bounds`."""
    u, queued, streamed = multipliers.tolist()
    weight = np.where(np.arange(costs.steps) < widen_from, u, 1.0)[:, None]
    alone = _finite(costs, costs.execution(widen_from)) * weight
    if costs.disk is not None:
        alone = alone + _finite(costs, costs.disk.read) * streamed
    main, queue = (_finite(costs, a) for a in (costs.main, costs.queue))
    both = np.stack([alone + queue / max(costs.queues, 1) * queued, alone + main * u], axis=2).reshape(costs.steps, -1)
    best = both.argmin(axis=1)
    return best // 2, np.where(best % 2 == 0, 0, MAIN)


def improved_schedule(costs: CostArrays, schedule: KernelSchedule) -> KernelSchedule:
    """Change one step's candidate and place after the other, each time the best change, while the makespan falls.

    All changes are judged at once. With `ends[q, k]` = preparations of steps <= k on queue q + executions of steps >= k,
    changing the execution of step j by de moves the columns k <= j by de, and changing what it adds to queue q by da moves the
    columns k >= j of that row by da: running maxima from both ends give every new makespan.
    """
    w, rows = schedule.widen_from, np.arange(costs.steps)
    execution, queue, main = (_finite(costs, a) for a in (costs.execution(w), costs.queue, costs.main))
    choice, place = np.array(schedule.choice), np.array(schedule.place)
    column = np.minimum(rows, w)  # steps that execute wide wait, all of them, for the moment of widening
    while True:
        e, a, m = (array[rows, choice] for array in (execution, queue, main))
        on = place == np.arange(costs.queues)[:, None]
        load = np.cumsum(np.where(on, a, 0.0), axis=1)
        tail = np.append(np.cumsum(e[::-1])[::-1], 0.0)
        ends = np.hstack([load[:, :w], load[:, -1:]]) + tail[: w + 1]
        work = tail[0] + m[place == MAIN].sum()
        now = max(work, ends.max())
        lowest = np.full((costs.queues, 1), -np.inf)
        before = np.hstack([lowest, np.maximum.accumulate(ends, axis=1)[:, :-1]])[:, column, None]
        after = np.hstack([np.maximum.accumulate(ends[:, ::-1], axis=1)[:, ::-1][:, 1:], lowest])[:, column, None]
        here = ends[:, column, None]
        de = execution - e[:, None]
        gone = np.where(on, a, 0.0)[:, :, None]
        without = np.maximum(np.maximum(before + de, here + de - gone), after - gone)
        added = np.maximum(np.maximum(before + de, here + de - gone + queue), after - gone + queue)
        work_without = work + de - np.where(place == MAIN, m, 0.0)[:, None]
        makespans = np.empty((costs.queues + 1, *queue.shape))
        for q in range(costs.queues):
            others = np.delete(without, q, axis=0).max(axis=0, initial=-np.inf)
            makespans[q] = np.maximum(np.maximum(others, added[q]), work_without)
        makespans[MAIN] = np.maximum(without.max(axis=0), work_without + main)
        q, k, o = map(int, np.unravel_index(int(makespans.argmin()), makespans.shape))
        if not makespans[q, k, o] < now * (1 - 1e-9):
            return KernelSchedule(tuple(choice.tolist()), tuple(place.tolist()), w)
        choice[k], place[k] = o, q if q < costs.queues else MAIN


def spread(costs: CostArrays, choice: Ints, place: Ints, widen_from: int) -> KernelSchedule:
    """Split the preparations off the main core over the queues.

    Steps before widening go in their order to the queue that is free first (their tails shrink with the order); the others,
    which all wait for the same moment, longest first.
    """
    places = place.copy()
    if costs.queues > 1:
        time = costs.queue[np.arange(costs.steps), choice]
        free = np.zeros(costs.queues)
        for k in sorted(np.flatnonzero(place != MAIN), key=lambda k: (k, 0.0) if k < widen_from else (costs.steps, -time[k])):
            places[k] = int(np.argmin(free))
            free[places[k]] += time[k]
    return KernelSchedule(tuple(choice.tolist()), tuple(places.tolist()), widen_from)


def changed_at_random(costs: CostArrays, schedule: KernelSchedule, count: int, random: np.random.Generator) -> KernelSchedule:
    """Return other candidates and places for so many steps: where no single change helps, several may."""
    choice, place = list(schedule.choice), list(schedule.place)
    candidates = costs.present.sum(axis=1)
    for k in random.integers(costs.steps, size=count):
        choice[k] = int(random.integers(candidates[k]))
        place[k] = int(random.integers(MAIN, costs.queues))
    return KernelSchedule(tuple(choice), tuple(place), schedule.widen_from)


class _SearchTimes(ctypes.Structure):
    """Times of a search, as the library reads them.

    Of each candidate, ms, shape (steps, candidates, 7): reading from the disk; what of a preparation does not wait for weights,
    on the main core and on others; the whole preparation on them; narrow and wide execution, which is not read where execution
    never widens.
    """

    _fields_ = (
        ("_times", c_void_p),
        ("_candidates", c_void_p),
        *((name, c_int64) for name in ("_steps", "_width", "_queues", "_widens")),
        ("_latency_ms", c_double),
    )

    def __init__(self, costs: CostArrays) -> None:
        disk, wide = costs.disk, costs.narrow if costs.wide is None else costs.wide
        assert disk is not None  # noqa: S101  schedules without one have a closed form
        times = (disk.read, disk.early_main, disk.early_queue, costs.main, costs.queue, costs.narrow, wide)
        self._arrays = np.ascontiguousarray(np.stack(times, axis=-1)), costs.present.sum(axis=1)
        sizes = (*costs.main.shape, costs.queues, costs.wide is not None)
        super().__init__(*(own.ctypes.data for own in self._arrays), *sizes, disk.latency_ms)


class _Scratch(ctypes.Structure):
    """The memory of one search, for a profile of so many steps on so many preparing cores."""

    _fields_ = tuple((name, c_void_p) for name in ("_steps", "_cores", "_own"))

    def __init__(self, steps: int, queues: int) -> None:
        cores = queues + 1
        self._arrays = np.zeros((steps, 4)), np.zeros((cores, 3), np.int64), np.zeros((cores, steps), np.int64)
        super().__init__(*(own.ctypes.data for own in self._arrays))


_SCHEDULE = (POINTER(_SearchTimes), POINTER(_Scratch), array(np.int64), array(np.int64))
_priced = when_needed("schedule_priced", c_double, *_SCHEDULE, c_int64, c_double)
_descended = when_needed("schedule_descended", c_int, *_SCHEDULE, POINTER(c_int64), POINTER(c_double))


class Events:
    """Prices schedules whose weights are on the disk event by event, and improves them; `costs` say which disk."""

    def __init__(self, costs: CostArrays) -> None:
        self._given = _SearchTimes(costs), _Scratch(costs.steps, costs.queues)

    def makespan_ms(self, schedule: KernelSchedule) -> float:
        """Return when the last step has been executed, ms."""
        choice, place = np.array(schedule.choice, np.int64), np.array(schedule.place, np.int64)
        return float(_priced()(*self._given, choice, place, schedule.widen_from, np.inf))

    def descended(self, schedule: KernelSchedule, until: float) -> KernelSchedule:
        """Improve a schedule by single changes, until none helps or `until` (`time.monotonic()`) has come.

        A round changes the step that widens, then candidate and place of each step; each change is kept if it helps.
        """
        choice, place = np.array(schedule.choice, np.int64), np.array(schedule.place, np.int64)
        widen_from, now_ms = c_int64(schedule.widen_from), c_double(self.makespan_ms(schedule))
        helped = True
        while helped and time.monotonic() < until:
            helped = bool(_descended()(*self._given, choice, place, widen_from, now_ms))
        return KernelSchedule(tuple(choice.tolist()), tuple(place.tolist()), widen_from.value)


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
