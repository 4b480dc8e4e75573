"""Plans optimally: kernels, sources, places and widening together, with a proven lower bound.

For each step from which execution may widen, the best schedule is a mixed-integer program (`mixed_integer`); the least over
them is the optimum. Programs are solved in the order of a cheap bound, and only while their bound is below the best schedule by
more than the gap asked for. What remains is small: the linear relaxation's reduced costs forbid most candidates, and HiGHS
decides about the rest.

The bound holds for the costs of the profile, the contention factors included, and the fixed order of execution.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np

from edgeplan.planning.local_search import assigned, carried_bounds, cheap_bounds, priced, shaken
from edgeplan.planning.machine import MAIN, CostArrays, Ints, KernelSchedule, makespan_ms, sequential
from edgeplan.planning.mixed_integer import MixedIntegerProgram, Relaxation, program, promising, relax, solve


@dataclass(frozen=True, slots=True)
class Search:
    """A search is limited by a gap and a time.

    Attributes:
        gap: relative gap to prove.
        time_limit_s: after this time, shared by the home layouts of a model, the best schedule is returned with the bound
            proven so far.
    """

    gap: float = 1e-3
    time_limit_s: float = 1.7


@dataclass(frozen=True, slots=True)
class ProvenSchedule:
    """Holds a schedule with what is known about it.

    Attributes:
        schedule: candidate and place of each step.
        makespan_ms: predicted.
        lower_bound_ms: no schedule of this profile is faster.
        note: how it was found.
    """

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

    Args:
        costs: costs of the profile.
        search: how hard to search.
        beat_ms: a makespan that is at hand already: where no schedule is faster than that (but for the gap), search no further.
    """
    search = search or Search()
    until = time.monotonic() + search.time_limit_s
    found = _Incumbent(costs, sequential(costs, tuple((costs.alone_prepare + costs.alone_execute).argmin(axis=1).tolist())))
    bound = found.makespan_ms
    if costs.queues == 0:
        return ProvenSchedule(found.schedule, bound, bound, "one core: everything in sequence")
    widenings = costs.widenings()
    bounds, multipliers = cheap_bounds(costs)
    for i in np.argsort(bounds, kind="stable")[:_FIRST]:
        found.offer(priced(costs, widenings[i], multipliers[i]))
    relaxed = solved = 0
    waiting = np.ones(len(bounds), dtype=bool)
    while waiting.any():
        i = int(np.where(waiting, bounds, np.inf).argmin())
        goal = min(found.makespan_ms, beat_ms) * (1 - search.gap)
        if bounds[i] >= goal or time.monotonic() > until:
            break
        waiting[i] = False
        w = widenings[i]
        full = program(costs, w, None, np.inf)
        relaxation = relax(full)
        relaxed += 1
        found.offer(assigned(costs, *_rounded(costs, full, relaxation), w))
        bounds[i] = max(bounds[i], relaxation.bound)
        if costs.wide is not None and costs.queues == 1:
            due, multipliers_of = np.zeros(costs.steps), relaxation.multipliers / relaxation.multipliers.sum()
            due[:w] = multipliers_of[1 : w + 1]
            bounds = np.maximum(bounds, carried_bounds(costs, costs.wide, float(multipliers_of[0]), due))
        goal = min(found.makespan_ms, beat_ms) * (1 - search.gap)
        if bounds[i] < goal:
            cutoff = min(found.makespan_ms, beat_ms) * (1 - search.gap / 2)
            keep = promising(full, relaxation, cutoff, costs.present)
            solution = solve(
                program(costs, w, keep, cutoff), gap=search.gap / 2, time_limit_s=max(until - time.monotonic(), 0.1)
            )
            solved += 1
            bounds[i] = max(bounds[i], solution.bound)
            if solution.schedule is not None:
                found.offer(assigned(costs, *solution.schedule, w))
    if costs.queues > 1 and bounds.min() < beat_ms:  # the program only relaxes them
        goal = float(bounds.min()) * (1 + search.gap)
        found.offer(shaken(costs, found.schedule, rounds=_ROUNDS, goal_ms=goal, until=until))
    note = f"{len(widenings)} widenings, {relaxed} relaxed, {solved} solved as mixed-integer programs"
    bound = min(bound, float(bounds.min()), found.makespan_ms)
    return ProvenSchedule(found.schedule, found.makespan_ms, bound, note)


_FIRST = 8
_ROUNDS = 200


class _Incumbent:
    """The incumbent is the best schedule so far."""

    def __init__(self, costs: CostArrays, schedule: KernelSchedule) -> None:
        self.costs, self.schedule, self.makespan_ms = costs, schedule, makespan_ms(costs, schedule)

    def offer(self, schedule: KernelSchedule) -> None:
        """Keep a schedule if it is faster."""
        time_ms = makespan_ms(self.costs, schedule)
        if time_ms < self.makespan_ms:
            self.schedule, self.makespan_ms = schedule, time_ms


def _rounded(costs: CostArrays, full: MixedIntegerProgram, relaxation: Relaxation) -> tuple[Ints, Ints]:
    """Return the candidate and place (0: a queue) of each step with the largest share in the relaxation."""
    x = np.zeros((*costs.main.shape, 2))
    x[full.step, full.candidate, np.where(full.place == MAIN, 1, 0)] = relaxation.x
    pick = x.reshape(costs.steps, -1).argmax(axis=1)
    return pick // 2, np.where(pick % 2 == 0, 0, MAIN)
