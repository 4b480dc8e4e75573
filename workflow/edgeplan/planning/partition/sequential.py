"""The best plan that runs one step at a time, by dynamic programming over the order of the steps.

A step's time enters a sequence by its kind alone: of each kind only the fastest option counts. The
state between two steps is the kind of the first: 3 states, O(steps) in all, and the result is the
optimum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edgeplan.planning.partition.costs import CPU, GPU, SPLIT, Choice, PairCosts

_KINDS = (CPU, GPU, SPLIT)


@dataclass(frozen=True, slots=True)
class InSequence:
    """The best choice of options has the least makespan of all."""

    choice: Choice
    makespan_ms: float


def sequential(costs: PairCosts) -> InSequence:
    """Plan one step at a time.

    Args:
        costs: with the options to choose from; the order of its steps is kept.
    """
    totals, parents = [0.0, math.inf, math.inf], list[list[int]]()
    for k, step in enumerate(costs.steps):
        waits = costs.delays_ms if k else ((0.0,) * len(_KINDS),) * len(_KINDS)
        parents.append([min(_KINDS, key=lambda a: totals[a] + waits[a][b]) for b in _KINDS])
        best = [step.best(kind) for kind in _KINDS]
        totals = [
            totals[a] + waits[a][b] + option.span_ms if option is not None else math.inf
            for a, b, option in zip(parents[-1], _KINDS, best, strict=True)
        ]
    kind = min(_KINDS, key=totals.__getitem__)
    makespan, choice = totals[kind], list[int]()
    for step, parent in zip(reversed(costs.steps), reversed(parents), strict=True):
        option = step.best(kind)
        assert option is not None  # noqa: S101  a state of this kind was reached by it
        choice.append(step.options.index(option))
        kind = parent[kind]
    return InSequence(tuple(reversed(choice)), makespan)
