"""Cold starts with the page cache evicted: weights stream from the disk while kernels are made and steps are executed.

The disk is one more machine. It reads the weights of the steps in the order of execution, ahead of everything, as the executor
asks for them, and with the weights of step k come

    A_k = latency + bytes of steps <= k / bandwidth.

A preparation makes its kernel first, then waits for A_k, then fetches. So a core that prepares may stand still, the main core
too, and the closed form of `machine` is no longer the makespan: schedules are priced by `streamed_ms`, event by event, as
`machine.simulate` does with a disk. That order is the model's, and the bound holds for it: a core that prepares a later step
reads its weights at once, which puts them before others.

Planning is a search with a proven lower bound. The bounds are those of `local_search`, the disk being one more row, for each
widening the larger one of that and of max over k of (least A_k + least executions of steps >= k), and what the optimal planner
proves for weights in memory. The search starts from its optimum and from the schedules that these relaxations price, and makes
single changes (candidate and place of a step, or the step that widens) while they help; then, while there is time, from
schedules shaken at random.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, repeat

import numpy as np

from edgeplan.planning.cold_start.local_search import changed_at_random, cheap_bounds, picked, spread
from edgeplan.planning.cold_start.machine import MAIN, Costs, Floats, Schedule, costs_of
from edgeplan.planning.cold_start.optimal import Planned, Search, optimal
from edgeplan.planning.cold_start.profile import BIG, LITTLE, Disk, Profile, prepare_ms

_STARTS = 6
_ROUNDS, _SHAKEN = 50, 3
_JUMPS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Streams:
    """A profile on a machine with a disk, as arrays of shape (steps, candidates of the richest step); ms.

    Attributes:
        costs: of the cores.
        read: of the disk; absent candidates cost infinity.
        early_main, early_queue: the part of a preparation that does not wait for the weights, on the main core and on others.
        latency_ms: before the first byte.
    """

    costs: Costs
    read: Floats
    early_main: Floats
    early_queue: Floats
    latency_ms: float


def streams_of(profile: Profile, disk: Disk) -> Streams:
    """The arrays of a profile."""
    costs = costs_of(profile)
    if costs.queues == 0:  # nothing overlaps but the disk
        costs = replace(costs, main=costs.alone_prepare, narrow=costs.alone_execute)
    alone = costs.queues == 0
    read, early_main, early_queue = (np.full(costs.main.shape, np.inf) for _ in range(3))
    core = BIG if profile.equal else LITTLE
    for k, layer in enumerate(profile.layers):
        for o, c in enumerate(layer.candidates):
            read[k, o] = disk.transfer_ms(c.read_bytes)
            _, early_main[k, o], _ = prepare_ms(profile, c, BIG, overlapped=not alone, main=True)
            _, early_queue[k, o], _ = prepare_ms(profile, c, core, overlapped=True)
    return Streams(costs, read, early_main, early_queue, disk.latency_ms)


def streamed_ms(s: Streams, schedule: Schedule) -> float:
    """The makespan of a schedule whose weights are on the disk: `machine.simulate` with arrivals, without its timeline.

    With several cores, preparations and executions are taken as overlapping others.
    """
    costs, rows = s.costs, np.arange(s.costs.steps)
    choice, place, widen = np.asarray(schedule.choice), schedule.place, schedule.widen_from
    read = s.read[rows, choice]
    arrivals = np.where(read > 0, s.latency_ms + np.cumsum(read), 0.0).tolist()  # what has no weights waits for none
    main, queue = costs.main[rows, choice].tolist(), costs.queue[rows, choice].tolist()
    early_main, early_queue = s.early_main[rows, choice].tolist(), s.early_queue[rows, choice].tolist()
    execute = costs.execution(widen)[rows, choice].tolist()
    n = costs.steps
    last = n if costs.wide is None else widen
    ready, free = [0.0] * n, [0.0] * costs.queues
    own = []
    for k in range(n):
        q = place[k]
        if q == MAIN:
            own.append(k)
        else:
            early = early_queue[k]
            free[q] = ready[k] = max(free[q] + early, arrivals[k]) + (queue[k] - early)
    now, i, count = 0.0, 0, len(own)
    for k in range(n):
        while i < count and (k == last or own[i] <= k or ready[k] > now):
            j = own[i]
            now = ready[j] = max(now + early_main[j], arrivals[j]) + (main[j] - early_main[j])
            i += 1
        now = max(now, ready[k])
        if k == last:
            now = max([now, *free])
        now += execute[k]
    return now


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
    bounds, multipliers = streamed_bounds(s)
    widenings = s.costs.widenings()
    in_memory = optimal(s.costs, replace(search, time_limit_s=search.time_limit_s / 2))
    starts = [in_memory.schedule]
    if s.costs.queues > 0:
        nearest = np.argsort(bounds, kind="stable")[:_STARTS].tolist()
        starts += [_start(s, widenings[i], multipliers[i]) for i in nearest]
    ranked = sorted(((streamed_ms(s, schedule), schedule) for schedule in starts), key=lambda pair: pair[0])
    bound = max(float(bounds.min()), in_memory.lower_bound_ms)
    best_ms, best = ranked[0]
    random, tried = np.random.default_rng(0), 0
    for start in chain((schedule for _, schedule in ranked), repeat(None, _ROUNDS)):
        if min(best_ms, beat_ms) <= bound * (1 + search.gap) or (tried and time.monotonic() > until):
            break
        schedule = start or _shaken(s, best, random)
        found_ms, found = _descended(s, schedule, streamed_ms(s, schedule), until)
        tried += 1
        if found_ms < best_ms:
            best_ms, best = found_ms, found
    note = f"{len(widenings)} widenings bounded, {tried} starts improved by single changes"
    return Planned(best, best_ms, min(bound, best_ms), note)


def _start(s: Streams, widen_from: int, multipliers: Floats) -> Schedule:
    choice, place = picked(s.costs, widen_from, multipliers, s.read)
    return spread(s.costs, choice, place, widen_from)


def _shaken(s: Streams, schedule: Schedule, random: np.random.Generator) -> Schedule:
    other = changed_at_random(s.costs, schedule, _SHAKEN, random)
    return replace(other, widen_from=int(random.choice(s.costs.widenings())))


def _descended(s: Streams, schedule: Schedule, now_ms: float, until: float) -> tuple[float, Schedule]:
    """Single changes, each kept if it helps, until none does or the time is up."""
    helped = True
    while helped:
        helped = False
        for k in range(-1, s.costs.steps):
            for changed in _widened(s, schedule) if k < 0 else _changed(s, schedule, k):
                if time.monotonic() > until:
                    return now_ms, schedule
                if (changed_ms := streamed_ms(s, changed)) < now_ms * (1 - 1e-9):
                    now_ms, schedule, helped = changed_ms, changed, True
    return now_ms, schedule


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
