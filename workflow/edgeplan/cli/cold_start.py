"""The command `edgeplan plan cold-start` prints what was planned."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edgeplan.chapters.cold_start import api
from edgeplan.chapters.cold_start.api import ColdStartPlan, Costs, OnNoise
from edgeplan.chapters.cold_start.gpu.planned import gpu_device, plan_gpu_start, refuse_for_gpu
from edgeplan.cli.models import BatchOption, ModelArgument, PlanOption, SetOption, ShapeOption
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.measurement.others import DISTURBED
from edgeplan.planning.document import Plan
from edgeplan.planning.profile import SOURCES, Profile
from edgeplan.profiling.frame import remaining_table
from edgeplan.runtime.folder import PlanFolder
from edgeplan.runtime.gpu_program import GpuPrediction, GpuProgram, GpuSchedule
from edgeplan.terminal import milliseconds, say
from edgeplan.workspace import ResultsOption, WorkspaceOption

_MB = 1e6


def plan_cold_start(
    model: ModelArgument,
    output: PlanOption,
    device: Annotated[
        str,
        typer.Option(
            "--device", "-d", help="Name of a device, or path of a device file; also a GPU, of the engine opencl or cuda."
        ),
    ] = "cpu-onednn",
    costs: Annotated[
        Costs, typer.Option(help="Costs to plan from: profiled on this machine, or predicted without measuring the model.")
    ] = "profiled",
    planner: Annotated[
        str,
        typer.Option(help="optimal, evicted (for weights on the disk), nnv12, warm, K, K+C or K+C+P; of a GPU also default."),
    ] = "optimal",
    layouts: Annotated[
        str,
        typer.Option(help="Home layouts to plan, separated by commas. Default: the likely best; with --budget-seconds 0 all."),
    ] = "",
    continuous: Annotated[
        bool, typer.Option(help="Let idle cores prepare the kernels that are fastest for the inferences after the first.")
    ] = False,
    cache_limit: Annotated[
        float | None,
        typer.Option(
            metavar="MB",
            help="Largest cache of weights, in MB; weights beyond it are transformed at every start, which is slower.",
        ),
    ] = None,
    on_noise: Annotated[
        OnNoise,
        typer.Option(help="Keep what is measured on a busy machine and say how noisy it is, or refuse to plan from it."),
    ] = "keep",
    budget_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=86400,
            help="Seconds of measuring, beyond which only the necessary is measured; 0: unbounded and thorough. "
            "Default: 20; unbounded with --on-noise refuse.",
        ),
    ] = None,
    rows: Annotated[Path | None, typer.Option(help="Folder of measured rows. Default: the user's own.")] = None,
    results: ResultsOption = None,
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Plan the fastest first inference of a model: kernels, cached weights, and which core does what when."""
    if (gpu := gpu_device(device)) is not None:
        refuse_for_gpu({
            "--costs": costs != "profiled", "--layouts": bool(layouts), "--continuous": continuous,
            "--cache-limit": cache_limit is not None, "--on-noise": on_noise != "keep",
            "--budget-seconds": budget_seconds is not None, "--rows": rows is not None, "--results": results is not None,
        })  # fmt: skip
        for line in gpu_lines(plan_gpu_start(model, output, gpu, planner, Preparation.parsed(shape, values, batch)).plan):
            say(line)
        return
    made = api.plan_cold_start(
        model, output, device,
        costs=costs, planner=planner, layouts=tuple(filter(None, layouts.split(","))), continuous=continuous,
        cache_limit=cache_limit, on_noise=on_noise, budget_seconds=budget_seconds, rows=rows, results=results,
        preparation=Preparation.parsed(shape, values, batch),
    )  # fmt: skip
    for line in (*made.about, *_summary(made.plan, made.profiles, made.folder), cache_line(made)):
        say(line)


def cache_line(made: ColdStartPlan) -> str:
    """The cache that was written, and what its limit, of which the plan knows nothing, left out of it."""
    limit_bytes, steps = made.limit_bytes, zip(made.plan.source, made.program.steps, strict=True)
    left_out = [step.weight_bytes for source, step in steps if SOURCES[source].startswith("cached") and not step.cached]
    line = f"  weight cache    {made.program.facts['cache_bytes'] / _MB:.2f} MB, "
    if limit_bytes is None:
        return line + "no limit"
    line += f"limit {limit_bytes / _MB:.2f} MB: "
    if not left_out:
        return line + "everything planned is in it"
    return line + (
        f"{sum(left_out) / _MB:.2f} MB of weights ({len(left_out)} steps) left out, transformed at every start: "
        "the prediction does not hold"
    )


def noise_line(plan: Plan) -> str:
    """Tell how much of what a plan was made from other work disturbed; it is no measure of how far off the plan is."""
    if plan.costs == "predicted":
        return "nothing was measured"
    if plan.others > DISTURBED:
        return (
            f"other work had {100 * plan.others:.0f} % of the processors' time while this was measured: on a quiet machine "
            "the plan takes less, and planned again there it is measured again"
        )
    if not plan.noise:
        return "none: every stage of every kernel was measured at least once with no disturbance seen"
    return (
        f"{100 * plan.noise:.1f} % of the kernels' stages, or of the starts, were disturbed each time, by other work or "
        "a CPU quota, whatever they cost and whether the plan has them; for others, plan again on a quiet machine with "
        "--on-noise refuse"
    )


def _summary(plan: Plan, profiles: Sequence[Profile], path: Path) -> list[str]:
    """List the lines that the command prints of a plan."""
    table = remaining_table(profiles, disk=plan.disk is not None).set_index("layout").loc[plan.layout]
    n = len(plan.steps)
    widen = "from the first step on" if plan.widen_from == 0 else f"from step {plan.widen_from} of {n} on"
    others = sum(cold != later for cold, later in zip(plan.implementation, plan.later, strict=False))
    disk = plan.disk
    state = "warm" if disk is None else f"evicted: {disk.mb_per_s:.0f} MB/s, {disk.latency_ms:.2f} ms until the first byte"
    return [
        f"{plan.model}: {milliseconds(plan.makespan_ms)} predicted ({plan.costs} costs, planner {plan.planner}: {plan.note})",
        f"  page cache      {state}",
        f"  bound           {milliseconds(plan.lower_bound_ms)}, gap {100 * plan.gap:.2f} % for these costs and this order",
        f"  layout          {plan.layout}",
        f"  all cores       {'never' if plan.widen_from == n else widen}",
        f"  later runs      {f'{others} of {n} steps switch kernels' if plan.later else 'with the kernels of the first one'}",
        f"  cached weights  {plan.cache_bytes / _MB:.1f} MB of {plan.read_bytes / _MB:.1f} MB read, by the plan",
        f"  candidates      {table['remaining']} of {table['candidates']} undominated, {table['remaining_mean']:.1f} a step",
        f"  noise           {noise_line(plan)}",
        f"  written to      {path}",
    ]


def gpu_lines(plan: PlanFolder) -> list[str]:
    """List the lines that the command prints of a plan for a GPU."""
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
