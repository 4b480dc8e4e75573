"""Prints the lines of `edgeplan run` for a plan of a pair."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from edgeplan.errors import FormatError
from edgeplan.runtime.folder import PLAN_NAME, EnginePlan, PlanFolder, plan_again
from edgeplan.runtime.partitioned.build import PairCheck, PairPrediction, PairSchedule
from edgeplan.terminal import escaped, median

if TYPE_CHECKING:
    from edgeplan.runs import Run


class ShownStep(msgspec.Struct, frozen=True):
    """A shown step is what a run tells of a `planning.partition.planner.PlannedStep`, which has more fields."""

    on: str


class ShownPlan(msgspec.Struct, frozen=True):
    """A shown plan is what a run tells of a `planning.partition.planner.PartitionPlan`, which has more fields."""

    model: str
    processors: tuple[str, str]
    steps: tuple[ShownStep, ...]
    makespan_ms: float


def run_lines(found: Run) -> list[str]:
    """Show the times of a run beside the plan's, and how long each processor was busy."""
    plan, times = planned(found.plan), found.warm_ms
    split = sum(step.on == "split" for step in plan.steps)
    middle = f" (median of {len(times)}, least {min(times):.3f})" if len(times) > 1 else ""
    schedule = found.plan.scheduled(PairSchedule)
    how = f"{split} split; waits by {schedule.synchronisation}"
    if len(schedule.processors) == 1:
        cores = schedule.processors[0].cores
        how = f"all on {schedule.processors[0].engine}, core{'s' if len(cores) > 1 else ''} {', '.join(map(str, cores))}"
    busy = [sum(span[lane] - span[0] for span in found.spans_ms) for lane in (1, 2)]
    each = " and ".join(f"{escaped(name)} {ms:.3f} ms" for name, ms in zip(plan.processors, busy, strict=True))
    end = max(max(span[1:]) for span in found.spans_ms)
    return [
        f"{escaped(plan.model)}: {len(plan.steps)} operators, {how}",
        f"{median(times):.3f} ms{middle}, predicted {plan.makespan_ms:.3f} ms",
        f"busy: {each} of {end:.3f} ms, in a run that notes it",
    ]


def engine_lines(found: Run) -> list[str]:
    """Show the times of a run by a stock engine, and how to open it."""
    made, version = found.plan.program_of(EnginePlan), found.plan.made_for.library
    cores = ", ".join(map(str, made.processors))
    return [
        f"{escaped(Path(found.plan.made_for.model).name)}: by {made.setting} {version}, one thread on each of cores {cores}"
    ]


def check_lines(check: PairCheck | None) -> list[str]:
    """Show what executing a plan beside the other ways told; nothing of a plan that was predicted alone."""
    if check is None:
        return []
    others = sorted((ms, way) for way, ms in check.median_ms.items())
    lines = [f"  checked     {', '.join(f'{way} {ms:.3f} ms' for ms, way in others)}; {check.turns} turns of each"]
    margin = f", {check.margin:.2f} times as fast as {check.next_best} (95 %: {check.low:.2f} to {check.high:.2f})"
    lines.append(f"  fastest     {check.way}{margin if check.next_best else ''}: this is the plan")
    lines += [f"  left out    {way}: {escaped(why)}" for way, why in check.left_out.items()]
    parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in check.steps.items())
    return [*lines, f"  checked in  {check.seconds:.1f} s ({parts})"]


def planned(folder: PlanFolder) -> ShownPlan:
    """Read the plan of a pair's folder, as far as it is shown; FormatError where it does not fit."""
    parts = folder.scheduled(PairSchedule).plan | folder.predicted(PairPrediction).plan
    try:
        return msgspec.convert(parts, ShownPlan)
    except msgspec.ValidationError as error:
        where = str(folder.path / PLAN_NAME)
        raise FormatError(f"the plan does not fit: {error}", where=where, next_step=plan_again(folder.kind)) from error
