"""Finds cheap schedules and cheap bounds around the mixed-integer program of the optimal planner.

With weights on the disk schedules are priced and improved natively, thousands a second. The order of events is that of
`machine.simulate`, which tells what happens when and is too slow to search with: a test holds the two together.
"""

from __future__ import annotations

import ctypes
import time
from ctypes import POINTER, c_double, c_int, c_int64, c_void_p

import numpy as np

from edgeplan.planning.machine import MAIN, CostArrays, Floats, Ints, KernelSchedule
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
        """Return when the last step has been executed, ms: `machine.simulate` without a timeline."""
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
