"""Prints the lines on plans of cold starts on a GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgeplan.cli.times import milliseconds
from edgeplan.runtime.gpu_program import GpuPrediction, GpuProgram, GpuSchedule

if TYPE_CHECKING:
    from edgeplan.runs import Run
    from edgeplan.runtime.folder import PlanFolder

_MB = 1e6


def plan_lines(plan: PlanFolder) -> list[str]:
    """List the lines that the command prints of a plan that was made."""
    program, schedule = plan.program_of(GpuProgram), plan.scheduled(GpuSchedule)
    told = plan.predicted(GpuPrediction)
    weights = [step.weights for step in program.steps if step.weights is not None]
    kept = sum(one.cached for one in weights)
    how = "all before the first kernel runs" if schedule.in_sequence else f"{len(schedule.queues)} thread(s) beside the GPU"
    to = "from an open device to the outputs"
    return [
        f"{program.model}: {milliseconds(told.makespan_ms)} predicted, {to} (planner {schedule.planner})",
        f"  bound           {milliseconds(told.lower_bound_ms)}, gap {100 * told.gap:.2f} % for these costs and this order",
        f"  device          {plan.made_for.driver}",
        f"  preparation     {how}",
        f"  weights         {kept} of {len(weights)} steps packed in the folder, {program.packed_bytes / _MB:.1f} MB",
        f"  kernels         {'machine code in the folder' if schedule.code else 'compiled at every start'}",
        f"  planned in      {told.planning_s:.1f} s",
        f"  written to      {plan.path}",
    ]


def run_lines(found: Run) -> list[str]:
    """List what was started, and the parts of the start in this process."""
    program = found.plan.program_of(GpuProgram)
    lines = [f"{program.model}: {len(program.steps)} steps on {found.plan.made_for.driver}"]
    if found.stages_ms:
        lines.append("milliseconds of all threads: " + ", ".join(f"{stage} {ms:.2f}" for stage, ms in found.stages_ms.items()))
    return lines
