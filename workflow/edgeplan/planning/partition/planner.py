"""Plans a partition, and writes down what is known about the plan.

Plans use the admitted options only (`margin`). The plans of each single processor are always candidates, so that none is slower
than the better of them under the costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from edgeplan.planning.partition import baselines
from edgeplan.planning.partition.costs import CPU, GPU, KINDS, SPLIT, Choice, PairCosts
from edgeplan.planning.partition.eop import eop
from edgeplan.planning.partition.margin import admitted, why_whole
from edgeplan.planning.partition.plan import PartitionPlan, PlannedStep
from edgeplan.planning.partition.sequential import sequential
from edgeplan.planning.partition.simulate import PairTimeline, in_sequence

_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """An outcome is a planned partition, with its bound."""

    costs: PairCosts
    choice: Choice
    timeline: PairTimeline
    lower_bound_ms: float


#: Plans to compare with, from all options, admitted or not.
BASELINES: dict[str, Callable[[PairCosts], Choice]] = {
    "all on the CPU": lambda costs: baselines.single(costs, CPU),
    "all on the GPU": lambda costs: baselines.single(costs, GPU),
    "equal": baselines.equal,
    "fixed": baselines.fixed,
    "greedy": baselines.greedy,
    "EOP": lambda costs: eop(costs).choice,
    "EOP as drawn": lambda costs: eop(costs, overlapped=True).choice,
}


def outcome(costs: PairCosts) -> PartitionOutcome:
    """Plan a partition; of equally fast plans a single processor's is taken."""
    kept = admitted(costs)
    found = sequential(kept)
    best, *others = (baselines.single(kept, CPU), baselines.single(kept, GPU), found.choice)
    timeline = in_sequence(kept, best)
    for choice in others:
        other = in_sequence(kept, choice)
        if other.makespan_ms < timeline.makespan_ms * (1 - _SAME):
            best, timeline = choice, other
    return PartitionOutcome(kept, best, timeline, min(found.lower_bound_ms, timeline.makespan_ms))


def plan(costs: PairCosts) -> PartitionPlan:
    """Plan a partition; write down its steps, and why those that are whole are not split."""
    started = time.monotonic()
    found = outcome(costs)
    reasons = why_whole(costs, found.costs, found.choice)
    steps = []
    for step, option, span, reason in zip(
        costs.steps, found.costs.chosen(found.choice), found.timeline.spans, reasons, strict=True
    ):
        planned = PlannedStep(
            name=step.name,
            on=KINDS[option.kind],  # type: ignore[arg-type]
            option=option.index,
            cpu_share=option.cpu_share,
            dimension=option.dimension,
            implementation=option.implementation,
            start_ms=span.start_ms,
            cpu_end_ms=span.cpu_end_ms,
            gpu_end_ms=span.gpu_end_ms,
            whole_because=reason,
        )
        steps.append(planned)
    single, single_ms = baselines.better_single(costs)
    return PartitionPlan(
        model=costs.model,
        costs_sha256=costs.sha256,
        processors=costs.names,
        steps=tuple(steps),
        makespan_ms=found.timeline.makespan_ms,
        lower_bound_ms=found.lower_bound_ms,
        better_single=single,  # type: ignore[arg-type]
        better_single_ms=single_ms,
        admitted_splits=sum(any(o.kind == SPLIT for o in s.options) for s in found.costs.steps),
        planning_ms=(time.monotonic() - started) * 1e3,
    )


def compared(costs: PairCosts) -> dict[str, float]:
    """Return makespans of the plans to compare with, by name."""
    return {name: in_sequence(costs, choose(costs)).makespan_ms for name, choose in BASELINES.items()}
