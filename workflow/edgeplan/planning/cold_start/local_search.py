"""Cheap schedules and cheap bounds around the mixed-integer program of the optimal planner."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from edgeplan.planning.cold_start.machine import MAIN, Costs, Floats, Ints, Schedule, makespan_ms

_MULTIPLIERS = 65
_ABSENT_MS = 1e12  # infinity times zero is not a number: absent candidates are merely out of the question here


def _finite(costs: Costs, times: Floats) -> Floats:
    return np.where(costs.present, times, _ABSENT_MS)


def cheap_bounds(costs: Costs) -> tuple[Floats, Floats]:
    """A lower bound on the makespan for each step from which execution can widen, all in one sweep.

    Lagrangian relaxation with two rows, the main core's work (multiplier u) and the end of all preparations (1 - u): each step then chooses
    its candidate and place alone. The best of a grid of u is taken.

    Returns:
        Bounds (ms) and the best u, both in the order of `costs.widenings()`.
    """
    u = np.linspace(0.0, 1.0, _MULTIPLIERS)[:, None, None]
    main, queue, narrow = (_finite(costs, a) for a in (costs.main, costs.queue, costs.narrow))
    place = main * u if costs.queues == 0 else np.minimum(main * u, queue / costs.queues * (1 - u))
    before = (place + narrow * u).min(axis=2)
    total = np.cumsum(before, axis=1)
    if costs.wide is None:
        bounds = total[:, -1:]
    else:
        after = (place + _finite(costs, costs.wide)).min(axis=2)
        zero = np.zeros((len(u), 1))
        bounds = np.hstack([zero, total]) + np.hstack([np.cumsum(after[:, ::-1], axis=1)[:, ::-1], zero])
    return bounds.max(axis=0), u[bounds.argmax(axis=0), 0, 0]


def priced(costs: Costs, widen_from: int, u: float) -> Schedule:
    """The schedule in which each step chooses alone at the multiplier `u` of `cheap_bounds`, improved by single changes."""
    weight = np.where(np.arange(costs.steps) < widen_from, u, 1.0)[:, None]
    execution = _finite(costs, costs.execution(widen_from)) * weight
    main, queue = (_finite(costs, a) for a in (costs.main, costs.queue))
    both = np.stack([execution + queue / max(costs.queues, 1) * (1 - u), execution + main * u], axis=2).reshape(costs.steps, -1)
    best = both.argmin(axis=1)
    return improved(costs, best // 2, np.where(best % 2 == 0, 0, MAIN), widen_from)


def improved(costs: Costs, choice: Ints, place: Ints, widen_from: int) -> Schedule:
    """Change one step's candidate and place after the other, each time the best change, while the makespan falls.

    All changes are judged at once: changing step j by (da, de) moves the rows k >= j of the makespan by da and those k <= j by de, so running
    maxima from both ends give every new makespan. Several queues count as one of their joint speed until `assigned` splits them.
    """
    n, rows, queues = costs.steps, np.arange(costs.steps), max(costs.queues, 1)
    execution, queue, main = (_finite(costs, a) for a in (costs.execution(widen_from), costs.queue, costs.main))
    choice, on_main = choice.copy(), place == MAIN
    row = np.minimum(rows, widen_from)
    options_prepare = np.stack([queue / queues, np.zeros_like(queue)], axis=2)
    options_main = np.stack([np.zeros_like(main), main], axis=2)
    while True:
        e = execution[rows, choice]
        a = np.where(on_main, 0.0, queue[rows, choice] / queues)
        m = np.where(on_main, main[rows, choice], 0.0)
        tail = np.append(np.cumsum(e[::-1])[::-1], 0.0)
        ends = np.append(np.cumsum(a)[:widen_from], a.sum()) + tail[: widen_from + 1]
        lowest = np.full(1, -np.inf)
        left = np.concatenate([lowest, np.maximum.accumulate(ends)[:-1]])[row]
        right = np.concatenate([np.maximum.accumulate(ends[::-1])[::-1][1:], lowest])[row]
        work = tail[0] + m.sum()
        da = options_prepare - a[:, None, None]
        de = (execution - e[:, None])[:, :, None]
        dm = options_main - m[:, None, None]
        after = np.maximum(left[:, None, None] + de, ends[row][:, None, None] + da + de)
        after = np.maximum(np.maximum(after, right[:, None, None] + da), work + de + dm)
        after = np.where(costs.present[:, :, None], after, np.inf)
        if costs.queues == 0:
            after[:, :, 0] = np.inf
        k, o, p = np.unravel_index(int(after.argmin()), after.shape)
        if not after[k, o, p] < max(work, ends.max()) * (1 - 1e-9):
            break
        choice[k], on_main[k] = o, p == 1
    return assigned(costs, choice, np.where(on_main, MAIN, 0)[:n], widen_from)


def assigned(costs: Costs, choice: Ints, place: Ints, widen_from: int) -> Schedule:
    """Split the preparations off the main core over the queues.

    Steps before widening go in their order to the queue that is free first (their tails shrink with the order); the others, which all wait
    for the same moment, longest first. Then single preparations move or change place while the makespan falls.
    """
    schedule = Schedule(tuple(map(int, choice)), tuple(map(int, place)), widen_from)
    if costs.queues <= 1:
        return schedule
    time = costs.queue[np.arange(costs.steps), choice]
    waiting = [int(k) for k in np.flatnonzero(place != MAIN)]
    free = [0.0] * costs.queues
    places = [int(p) for p in place]
    for k in sorted(waiting, key=lambda k: (k, 0.0) if k < widen_from else (costs.steps, -time[k])):
        places[k] = int(np.argmin(free))
        free[places[k]] += time[k]
    return _moved(costs, replace(schedule, place=tuple(places)))


def _moved(costs: Costs, schedule: Schedule) -> Schedule:
    best = makespan_ms(costs, schedule)
    better = True
    while better:
        better = False
        for k in range(costs.steps):
            for q in range(MAIN, costs.queues):
                if q == schedule.place[k]:
                    continue
                other = replace(schedule, place=(*schedule.place[:k], q, *schedule.place[k + 1 :]))
                if (time := makespan_ms(costs, other)) < best * (1 - 1e-9):
                    schedule, best, better = other, time, True
    return schedule
