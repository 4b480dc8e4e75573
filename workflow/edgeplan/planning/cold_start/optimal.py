"""The optimal planner: kernels, sources, places and widening together, with a proven lower bound.

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

from edgeplan.planning.cold_start.local_search import assigned, cheap_bounds, priced
from edgeplan.planning.cold_start.machine import MAIN, Costs, Schedule, makespan_ms, sequential
from edgeplan.planning.cold_start.mixed_integer import program, relax, solve


@dataclass(frozen=True, slots=True)
class Search:
    """How hard to search.

    Attributes:
        gap: relative gap to prove.
        time_limit_s: after this time the best schedule is returned with the bound proven so far.
    """

    gap: float = 1e-3
    time_limit_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A schedule with what is known about it.

    Attributes:
        schedule: which candidate and place for each step.
        makespan_ms: predicted.
        lower_bound_ms: no schedule of this profile is faster.
        note: how it was found.
    """

    schedule: Schedule
    makespan_ms: float
    lower_bound_ms: float
    note: str

    @property
    def gap(self) -> float:
        """Relative distance of the makespan to the bound."""
        return self.makespan_ms / self.lower_bound_ms - 1 if self.lower_bound_ms > 0 else 0.0


def optimal(costs: Costs, search: Search | None = None) -> Planned:
    """Find a schedule and prove how far it is from the optimum: within the gap; on several queues, as near as it got."""
    search = search or Search()
    until = time.monotonic() + search.time_limit_s
    best = sequential(costs, tuple(int(o) for o in (costs.alone_prepare + costs.alone_execute).argmin(axis=1)))
    best_ms = bound = makespan_ms(costs, best)
    if costs.queues == 0:
        return Planned(best, best_ms, bound, "one core: everything in sequence")
    widenings = list(costs.widenings())
    cheap, multipliers = cheap_bounds(costs)
    order = np.argsort(cheap, kind="stable")
    for i in order[:_FIRST]:
        best, best_ms = _better(costs, best, best_ms, priced(costs, widenings[i], float(multipliers[i])))
    relaxed = solved = 0
    for i in order:
        if cheap[i] >= best_ms * (1 - search.gap):
            bound = min(bound, float(cheap[i]))
            break
        w, lower = widenings[i], float(cheap[i])
        if time.monotonic() < until:
            full = program(costs, w, None, np.inf)
            relaxation = relax(full)
            relaxed += 1
            lower = max(lower, relaxation.bound)
            x = np.zeros((costs.steps, costs.main.shape[1] * 2))
            x[full.step, full.candidate * 2 + (full.place != 0)] = relaxation.x
            pick = x.argmax(axis=1)
            best, best_ms = _better(costs, best, best_ms, assigned(costs, pick // 2, np.where(pick % 2 == 0, 0, MAIN), w))
            cutoff = best_ms * (1 - search.gap / 2)
            if lower < best_ms * (1 - search.gap):
                keep = np.zeros((*costs.main.shape, 2), dtype=bool)
                alive = relaxation.bound + relaxation.reduced <= cutoff
                keep[full.step[alive], full.candidate[alive], np.where(full.place[alive] == 0, 0, 1)] = True
                solution = solve(
                    program(costs, w, keep, cutoff), gap=search.gap / 2, time_limit_s=max(until - time.monotonic(), 0.1)
                )
                solved += 1
                lower = max(lower, solution.bound)
                if solution.schedule is not None:
                    best, best_ms = _better(costs, best, best_ms, assigned(costs, *solution.schedule, w))
        bound = min(bound, lower)
    note = f"{len(widenings)} widenings, {relaxed} relaxed, {solved} solved as mixed-integer programs"
    return Planned(best, best_ms, min(bound, best_ms), note)


_FIRST = 8


def _better(costs: Costs, best: Schedule, best_ms: float, other: Schedule) -> tuple[Schedule, float]:
    other_ms = makespan_ms(costs, other)
    return (other, other_ms) if other_ms < best_ms else (best, best_ms)
