"""Finds cheap schedules and cheap bounds around the mixed-integer program of the optimal planner."""

from __future__ import annotations

import time

import numpy as np

from edgeplan.planning.machine import MAIN, CostArrays, Floats, Ints, KernelSchedule, makespan_ms

_MULTIPLIERS, _DISK_STEPS = 65, 16
_SHAKEN = 4
_ABSENT_MS = 1e12  # infinity times zero is not a number: absent candidates are merely out of the question here


def _finite(costs: CostArrays, times: Floats) -> Floats:
    return np.where(costs.present, times, _ABSENT_MS)


def cheap_bounds(costs: CostArrays, read: Floats | None = None, latency_ms: float = 0.0) -> tuple[Floats, Floats]:
    """Return a lower bound on the makespan for each step from which execution can widen, all in one sweep.

    Lagrangian relaxation with two rows, the main core's work (multiplier u) and the end of all preparations, and a third one
    where weights come from the disk, the end of all reading; the multipliers add up to 1. Each step then chooses its candidate
    and place alone. The best of a grid of multipliers is taken.

    Args:
        costs: costs of the profile.
        read: time of the disk by step and candidate (ms); without it the weights are in memory.
        latency_ms: latency of the disk.

    Returns:
        Bounds (ms) and the best multipliers (main core, preparing cores, disk), both in the order of `costs.widenings()`.
    """
    grid = _multipliers(disk=read is not None)
    u, queued, streamed = (column[:, None, None] for column in grid.T)
    main, queue, narrow = (_finite(costs, a) for a in (costs.main, costs.queue, costs.narrow))
    place = main * u if costs.queues == 0 else np.minimum(main * u, queue / costs.queues * queued)
    if read is not None:
        place = place + _finite(costs, read) * streamed
    before = (place + narrow * u).min(axis=2)
    total = np.cumsum(before, axis=1)
    if costs.wide is None:
        bounds = total[:, -1:]
    else:
        after = (place + _finite(costs, costs.wide)).min(axis=2)
        zero = np.zeros((len(u), 1))
        bounds = np.hstack([zero, total]) + np.hstack([np.cumsum(after[:, ::-1], axis=1)[:, ::-1], zero])
    bounds = bounds + latency_ms * streamed[:, :, 0]
    return bounds.max(axis=0), grid[bounds.argmax(axis=0)]


def _multipliers(*, disk: bool) -> Floats:
    """Return a grid of multipliers that add up to 1: rows of main core, preparing cores, disk."""
    if disk:
        points = [(i, j, _DISK_STEPS - i - j) for i in range(_DISK_STEPS + 1) for j in range(_DISK_STEPS + 1 - i)]
        return np.array(points) / _DISK_STEPS
    u = np.linspace(0.0, 1.0, _MULTIPLIERS)
    return np.stack([u, 1 - u, np.zeros_like(u)], axis=1)


def carried_bounds(costs: CostArrays, wide: Floats, main: float, due: Floats) -> Floats:
    """Return lower bounds for every widening from the multipliers of one relaxation: neighbours have nearly the same.

    Any multipliers give a bound. Those of steps that execute wide go to the row that waits for all preparations. There
    is one queue only.

    Args:
        costs: costs of the profile.
        wide: execution on all cores.
        main: multiplier of the main core's work.
        due: multiplier of each step's row `C >= P_k + E_k`, zero where there is none; the rest up to 1 is the row of widening.

    Returns:
        Bounds (ms) in the order of `costs.widenings()`.
    """
    passed = np.append(0.0, np.cumsum(due))[:, None]  # multipliers of the rows before
    own, queue, narrow = (_finite(costs, a) for a in (costs.main, costs.queue, costs.narrow))
    on_main = own * main
    left = np.maximum(1.0 - main - passed, 0.0)
    before = (np.minimum(on_main, queue * left[:-1]) + narrow * (main + passed[1:])).min(axis=1)
    after = (np.minimum(on_main, queue * left[:, :, None]) + _finite(costs, wide)).min(axis=2)  # widening, step
    behind = np.where(np.arange(costs.steps) >= np.arange(costs.steps + 1)[:, None], after, 0.0).sum(axis=1)
    bounds: Floats = np.append(0.0, np.cumsum(before)) + behind
    return bounds


def picked(costs: CostArrays, widen_from: int, multipliers: Floats, read: Floats | None = None) -> tuple[Ints, Ints]:
    """Return the candidate and place (0: a queue) of each step, each chosen alone at multipliers of `cheap_bounds`."""
    u, queued, streamed = multipliers.tolist()
    weight = np.where(np.arange(costs.steps) < widen_from, u, 1.0)[:, None]
    alone = _finite(costs, costs.execution(widen_from)) * weight
    if read is not None:
        alone = alone + _finite(costs, read) * streamed
    main, queue = (_finite(costs, a) for a in (costs.main, costs.queue))
    both = np.stack([alone + queue / max(costs.queues, 1) * queued, alone + main * u], axis=2).reshape(costs.steps, -1)
    best = both.argmin(axis=1)
    return best // 2, np.where(best % 2 == 0, 0, MAIN)


def priced(costs: CostArrays, widen_from: int, multipliers: Floats) -> KernelSchedule:
    """Return the schedule that is `picked` at these multipliers, improved by single changes."""
    return assigned(costs, *picked(costs, widen_from, multipliers), widen_from)


def improved(costs: CostArrays, schedule: KernelSchedule) -> KernelSchedule:
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


def assigned(costs: CostArrays, choice: Ints, place: Ints, widen_from: int) -> KernelSchedule:
    """Spread the steps over the cores by `spread`, then improve the schedule by single changes."""
    return improved(costs, spread(costs, choice, place, widen_from))


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


def shaken(costs: CostArrays, schedule: KernelSchedule, *, rounds: int, goal_ms: float, until: float) -> KernelSchedule:
    """Search locally again and again: change a few steps at random, improve, keep what is faster.

    Args:
        costs: costs of the profile.
        schedule: schedule to start from.
        rounds: how often.
        goal_ms: fast enough.
        until: `time.monotonic()` at which to stop.
    """
    random = np.random.default_rng(0)
    best_ms = makespan_ms(costs, schedule)
    for _ in range(rounds):
        if best_ms <= goal_ms or time.monotonic() > until:
            break
        other = improved(costs, changed_at_random(costs, schedule, _SHAKEN, random))
        if (other_ms := makespan_ms(costs, other)) < best_ms:
            schedule, best_ms = other, other_ms
    return schedule
