"""These baselines are compared with a partition: one processor, one ratio, every operator for itself.

All of them run one step at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

from edgeplan.planning.partition.costs import CPU, GPU, KINDS, SPLIT, Choice, Option, PairCosts, PairStep


@dataclass(frozen=True, slots=True)
class PairSpan:
    """When a step runs (ms).

    Attributes:
        start_ms: on both processors at once if it is split.
        cpu_end_ms, gpu_end_ms: end of its part on each; its start where it has none.
    """

    start_ms: float
    cpu_end_ms: float
    gpu_end_ms: float

    @property
    def end_ms(self) -> float:
        """End of the slower part."""
        return max(self.cpu_end_ms, self.gpu_end_ms)


@dataclass(frozen=True, slots=True)
class PairTimeline:
    """A timeline holds the simulated times of all steps."""

    makespan_ms: float
    spans: tuple[PairSpan, ...]


def in_sequence(costs: PairCosts, choice: Choice) -> PairTimeline:
    """Execute one step at a time, in the order of the steps.

    An output is moved into a processor's memory once, before its first reader there; both
    directions move at once.
    """
    now, before = 0.0, -1
    spans: list[PairSpan] = []
    there: list[set[int]] = []
    for step, option in zip(costs.steps, costs.chosen(choice), strict=True):
        if before >= 0:
            now += costs.synchronisation_ms[before][option.kind]
        moved = [0.0, 0.0]
        for processor in (CPU, GPU):
            if option.kind in {processor, SPLIT}:
                for i in step.inputs:
                    if processor not in there[i]:
                        there[i].add(processor)
                        source = costs.steps[i]
                        moved[processor] += source.to_gpu_ms if processor == GPU else source.to_cpu_ms
        now += max(moved)
        spans.append(PairSpan(now, now + option.cpu_ms, now + option.gpu_ms))
        there.append({option.kind} - {SPLIT})
        now, before = spans[-1].end_ms, option.kind
    return PairTimeline(now, tuple(spans))


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
