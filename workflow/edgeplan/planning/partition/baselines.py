"""These baselines are compared with a partition: one processor, one ratio, every operator for itself.

All of them run one step at a time.
"""

from __future__ import annotations

from edgeplan.planning.partition.costs import CPU, GPU, KINDS, SPLIT, Choice, Option, PairCosts, PairStep
from edgeplan.planning.partition.simulate import in_sequence

EQUAL = 0.5


def single(costs: PairCosts, processor: int) -> Choice:
    """Everything on one processor; what it cannot run, on the other."""
    best = [s.best(processor) or s.best_whole for s in costs.steps]
    return tuple(s.options.index(o) for s, o in zip(costs.steps, best, strict=True))


def better_single(costs: PairCosts) -> tuple[str, float]:
    """Name and makespan of the better single processor."""
    found = {KINDS[p]: in_sequence(costs, single(costs, p)).makespan_ms for p in (CPU, GPU)}
    name = min(found, key=found.__getitem__)
    return name, found[name]


def at_ratio(costs: PairCosts, cpu_share: float) -> Choice:
    """Split every operator that can be split at the ratio nearest to one; others where they are fastest."""
    return tuple(s.options.index(nearest(s, cpu_share) or s.best_whole) for s in costs.steps)


def nearest(step: PairStep, cpu_share: float, dimension: str | None = None) -> Option | None:
    """Return the split whose ratio is nearest, the fastest of equally near ones."""
    splits = [o for o in step.options if o.kind == SPLIT and dimension in {None, o.dimension}]
    return min(splits, key=lambda o: (abs(o.cpu_share - cpu_share), o.span_ms), default=None)


def equal(costs: PairCosts) -> Choice:
    """One half for each processor: "Equal" of EOP's section 5.1."""
    return at_ratio(costs, EQUAL)


def fixed(costs: PairCosts) -> Choice:
    """Return the one ratio that is best for all operators together: "Fixed" of EOP's section 5.1.

    It is the best of the ratios that any operator has; EOP fixes one for each subgraph.
    """
    ratios = sorted({o.cpu_share for s in costs.steps for o in s.options if o.kind == SPLIT} or {EQUAL})
    step = max(len(ratios) * len(costs.steps) // _TRIED, 1)
    choices = [at_ratio(costs, ratio) for ratio in ratios[::step]]
    return min(choices, key=lambda choice: in_sequence(costs, choice).makespan_ms)


_TRIED = 200_000  # steps simulated to find the fixed ratio; beyond it fewer ratios are tried


def greedy(costs: PairCosts) -> Choice:
    """Every operator for itself, as LiPG splits (5.2, 5.4): the option that ends first.

    Hand-overs are not counted.
    """
    return tuple(s.options.index(min(s.options, key=lambda o: o.span_ms)) for s in costs.steps)
