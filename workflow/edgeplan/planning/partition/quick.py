"""A schedule and a bound of a module without a solver: list scheduling, load, longest path."""

from __future__ import annotations

import math

import numpy as np
import scipy

from edgeplan.planning.partition.costs import CPU, GPU, Option, PairCosts
from edgeplan.planning.partition.simulate import Boundary, OptionSchedule, queues_by

#: How much an option's busy time counts against it, beside when it ends: splits keep both busy.
_WEIGHTS = (0.0, 0.1, 0.3, 0.6, 1.0)


def list_schedules(costs: PairCosts, boundary: Boundary) -> list[OptionSchedule]:
    """Schedules of steps taken by their longest way to the end, with the option that ends first."""
    ranks = _ranks(costs, boundary)
    return list(dict.fromkeys(_listed(costs, boundary, ranks, weight) for weight in _WEIGHTS))


def _ranks(costs: PairCosts, boundary: Boundary) -> list[float]:
    """Longest way from the start of each step to the end, with the fastest of all."""
    ranks = [0.0] * len(costs.steps)
    for k in range(len(ranks) - 1, -1, -1):
        behind = max((ranks[r] + min(map(min, costs.delays_ms[k])) for r in costs.readers[k]), default=0.0)
        ranks[k] = min(o.span_ms + max(behind, boundary.exit_ms[k][o.kind]) for o in costs.steps[k].options)
    return ranks


def _listed(costs: PairCosts, boundary: Boundary, ranks: list[float], weight: float) -> OptionSchedule:
    n = len(costs.steps)
    free = [0.0, 0.0]
    ends, starts, choice = [0.0] * n, [0.0] * n, [0] * n
    chosen: list[Option | None] = [None] * n
    for k in sorted(range(n), key=lambda k: (-ranks[k], k)):
        step = costs.steps[k]
        best = math.inf
        for position, option in enumerate(step.options):
            start = boundary.entry_ms[k][option.kind]
            for i in step.inputs:
                before = chosen[i]
                assert before is not None  # noqa: S101  ranks fall along edges, equal ones in the order of the model
                start = max(start, ends[i] + costs.delays_ms[i][before.kind][option.kind])
            start = max(start, free[CPU] if option.cpu_ms else 0.0, free[GPU] if option.gpu_ms else 0.0)
            score = start + option.span_ms + weight * (option.cpu_ms + option.gpu_ms)
            if score < best:
                best, starts[k], choice[k], chosen[k] = score, start, position, option
        option = step.options[choice[k]]
        ends[k] = starts[k] + option.span_ms
        free[CPU] = starts[k] + option.cpu_ms if option.cpu_ms else free[CPU]
        free[GPU] = starts[k] + option.gpu_ms if option.gpu_ms else free[GPU]
    return OptionSchedule(tuple(choice), queues_by(costs, tuple(choice), starts))


def path_bound_ms(costs: PairCosts, boundary: Boundary) -> float:
    """Return the longest path of a module, with the fastest options."""
    n = len(costs.steps)
    at = [0.0] * n
    longest = 0.0
    for k, step in enumerate(costs.steps):
        before = max((at[i] for i in step.inputs), default=0.0)
        at[k] = min(max(before, boundary.entry_ms[k][o.kind]) + o.span_ms for o in step.options)
        longest = max(longest, min(at[k] + boundary.exit_ms[k][o.kind] for o in step.options))
    return max(boundary.direct_ms, longest)


def load_bound_ms(costs: PairCosts) -> float:
    """Return the larger load of the two processors at best, slowed by contention where both are busy.

    It is the linear relaxation, by its one multiplier: for every m between 0 and 1 the makespan is
    at least the sum over the steps of the least of m times one sum of `PairCosts.load_weights` and
    1 - m times the other. That is concave in m; any m gives a bound.
    """
    if not costs.steps:
        return 0.0
    weighed = np.array([costs.weighed_ms(o, s.load) for s in costs.steps for o in s.options])
    first = np.cumsum([0, *(len(s.options) for s in costs.steps[:-1])])

    def at(m: float) -> float:
        return float(np.minimum.reduceat(weighed @ (m, 1 - m), first).sum())

    found = scipy.optimize.minimize_scalar(lambda m: -at(m), bounds=(0.0, 1.0), method="bounded")
    return max(at(float(found.x)), at(0.0), at(1.0))
