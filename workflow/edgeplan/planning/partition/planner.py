"""One entry to all planners of a partition.

Plans of both modes use the admitted options only (`margin`). The plans of each single processor are
always candidates, so that none is slower than the better of them under the costs. Side by side a
sequential plan is a candidate, too: it is kept where nothing is gained.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from edgeplan.errors import ParamsError
from edgeplan.planning.partition import baselines
from edgeplan.planning.partition.costs import CPU, GPU, KINDS, SPLIT, Choice, PairCosts
from edgeplan.planning.partition.eop import eop
from edgeplan.planning.partition.margin import admitted, why_whole
from edgeplan.planning.partition.parallel import SearchLimits, parallel
from edgeplan.planning.partition.plan import PartitionPlan, PlannedStep
from edgeplan.planning.partition.sequential import sequential
from edgeplan.planning.partition.simulate import OptionSchedule, PairTimeline, in_sequence, simulate

Mode = Literal["sequential", "parallel"]
_SAME = 1e-9


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """An outcome is a planned partition, with its bound.

    Attributes:
        costs: with the options that the schedule chooses among.
        schedule: what runs where.
        timeline: when, by simulation.
        lower_bound_ms: what no plan of the mode beats.
        note: how it was found.
    """

    costs: PairCosts
    schedule: OptionSchedule
    timeline: PairTimeline
    lower_bound_ms: float
    note: str


def _sequential(costs: PairCosts, _: SearchLimits) -> PartitionOutcome:
    found = sequential(costs)
    note = "one step at a time, by dynamic programming"
    return _better(costs, [OptionSchedule(found.choice)], found.lower_bound_ms, note)


def _parallel(costs: PairCosts, search: SearchLimits) -> PartitionOutcome:
    found = parallel(costs, search)
    return _better(costs, [OptionSchedule(sequential(costs).choice), found.schedule], found.lower_bound_ms, found.note)


def _better(costs: PairCosts, schedules: list[OptionSchedule], bound_ms: float, note: str) -> PartitionOutcome:
    """Return the fastest of some schedules and both single processors; the first of equally fast ones."""
    schedules = [*(OptionSchedule(baselines.single(costs, p)) for p in (CPU, GPU)), *schedules]
    best, timeline = schedules[0], simulate(costs, schedules[0])
    for schedule in schedules[1:]:
        found = simulate(costs, schedule)
        if found.makespan_ms < timeline.makespan_ms * (1 - _SAME):
            best, timeline = schedule, found
    return PartitionOutcome(costs, best, timeline, min(bound_ms, timeline.makespan_ms), note)


_MODES: dict[str, Callable[[PairCosts, SearchLimits], PartitionOutcome]] = {"sequential": _sequential, "parallel": _parallel}

#: Plans to compare with, all in sequence and from all options, admitted or not.
BASELINES: dict[str, Callable[[PairCosts], Choice]] = {
    "all on the CPU": lambda costs: baselines.single(costs, CPU),
    "all on the GPU": lambda costs: baselines.single(costs, GPU),
    "equal": baselines.equal,
    "fixed": baselines.fixed,
    "greedy": baselines.greedy,
    "EOP": lambda costs: eop(costs).choice,
    "EOP as drawn": lambda costs: eop(costs, overlapped=True).choice,
}


def outcome(costs: PairCosts, mode: str, search: SearchLimits | None = None) -> PartitionOutcome:
    """Plan a partition in one mode."""
    if mode not in _MODES:
        raise ParamsError(f"there is no mode {mode!r}", next_step=f"choose one of {', '.join(_MODES)}")
    return _MODES[mode](admitted(costs), search or SearchLimits())


def plan(costs: PairCosts, mode: Mode, search: SearchLimits | None = None) -> PartitionPlan:
    """Plan a partition and write down what is known about it.

    Args:
        costs: of the model.
        mode: one step at a time, or side by side.
        search: how hard to search side by side.
    """
    started = time.monotonic()
    return described(costs, outcome(costs, mode, search), mode, started)


def described(costs: PairCosts, found: PartitionOutcome, mode: Mode, started: float) -> PartitionPlan:
    """Write down an outcome: its steps, and why those that are whole are not split.

    Args:
        costs: of the model, as given.
        found: with the options that it chooses among.
        mode: one step at a time, or side by side.
        started: when planning began, by `time.monotonic`.
    """
    schedule, timeline = found.schedule, found.timeline
    in_order = schedule.queues is None
    reasons = why_whole(costs, found.costs, schedule.choice, timeline, parallel=not in_order)
    steps = []
    for step, option, span, reason in zip(
        costs.steps, found.costs.chosen(schedule.choice), timeline.spans, reasons, strict=True
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
        mode=mode,
        note=found.note,
        steps=tuple(steps),
        cpu=schedule.queues[CPU] if schedule.queues is not None else (),
        gpu=schedule.queues[GPU] if schedule.queues is not None else (),
        makespan_ms=timeline.makespan_ms,
        lower_bound_ms=found.lower_bound_ms,
        better_single=single,  # type: ignore[arg-type]
        better_single_ms=single_ms,
        admitted_splits=sum(any(o.kind == SPLIT for o in s.options) for s in found.costs.steps),
        planning_ms=(time.monotonic() - started) * 1e3,
    )


def compared(costs: PairCosts) -> dict[str, float]:
    """Return makespans of the plans to compare with, by name."""
    return {name: in_sequence(costs, choose(costs)).makespan_ms for name, choose in BASELINES.items()}
