"""The command line of cold starts: `edgeplan plan cold-start`."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeplan.errors import DeviceError, ParamsError
from edgeplan.terminal import say
from edgeplan.workspace import WorkspaceOption

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeplan.planning.cold_start.plan import Plan
    from edgeplan.planning.cold_start.profile import Profile
    from edgeplan.runtime.linked import LinkedProgram

_MB = 1e6
_LARGEST_MB = 1_000_000  # whatever is above is a mistake

plan_app = typer.Typer(help="Plan how to run a model.", no_args_is_help=True)


class Costs(StrEnum):
    """Where the costs of a plan come from."""

    profiled = "profiled"
    predicted = "predicted"


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.add_typer(plan_app, name="plan")


@plan_app.callback()
def _plan() -> None:
    """Plan how to run a model."""


@plan_app.command("cold-start")
def plan_cold_start(
    model: Annotated[Path, typer.Argument(help="ONNX file of static shape.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the plan to.")],
    device: Annotated[str, typer.Option("--device", "-d", help="Name of a device, or path of a device file.")] = "cpu-onednn",
    costs: Annotated[Costs, typer.Option(help="Measure this model, or predict from others.")] = Costs.profiled,
    planner: Annotated[
        str, typer.Option(help="optimal, evicted (for weights on the disk), nnv12, warm, K, K+C or K+C+P.")
    ] = "optimal",
    layouts: Annotated[str, typer.Option(help="Home layouts to plan, separated by commas; all without.")] = "",
    continuous: Annotated[
        bool,
        typer.Option(
            help="More inferences follow the first: idle cores prepare the kernels that are fastest when warm for them."
        ),
    ] = False,
    reprofile: Annotated[bool, typer.Option(help="nnv12: measure what it tries again while it plans.")] = False,
    cache_limit: Annotated[
        float | None,
        typer.Option(
            metavar="MB",
            help="Most MB of weights in the cache; beyond it the largest are transformed at every start, which is slower.",
        ),
    ] = None,
    accept_noise: Annotated[bool, typer.Option(help="Keep what is measured on a busy machine.")] = False,
    rows: Annotated[Path | None, typer.Option(help="Folder of measured rows; without, that of the workspace.")] = None,
    results: Annotated[Path | None, typer.Option(help="Folder of the results, for predictors; likewise.")] = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Plan the fastest first inference of a model: kernels, cached weights, and which core does what when."""
    # imported here: `edgeplan --help` and the errors of its arguments should not wait for numpy and onnx
    from edgeplan.cold.profiling.command import Request, plan_model  # noqa: PLC0415
    from edgeplan.cold.profiling.settings import ProfileSettings  # noqa: PLC0415
    from edgeplan.devices.config import load_device  # noqa: PLC0415
    from edgeplan.files import state_folder  # noqa: PLC0415
    from edgeplan.planning.cold_start.later import with_warm_kernels  # noqa: PLC0415
    from edgeplan.planning.cold_start.planner import PLANNERS  # noqa: PLC0415
    from edgeplan.runtime.layouts import HOMES  # noqa: PLC0415
    from edgeplan.runtime.linked_file import read_linked  # noqa: PLC0415
    from edgeplan.runtime.plan_folder import PROGRAM_NAME, build_plan_folder  # noqa: PLC0415
    from edgeplan.workspace import workspace as find_workspace  # noqa: PLC0415
    from edgeplan.writable import require_writable  # noqa: PLC0415

    homes = tuple(filter(None, layouts.split(","))) or HOMES
    if unknown := [home for home in homes if home not in HOMES]:
        raise ParamsError(f"there is no layout {unknown[0]!r}", where="--layouts", next_step=f"choose from {', '.join(HOMES)}")
    if planner not in PLANNERS:
        raise ParamsError(
            f"there is no planner {planner!r}", where="--planner", next_step=f"choose one of {', '.join(PLANNERS)}"
        )
    if reprofile and planner != "nnv12":
        raise ParamsError(
            f"the planner {planner!r} does not profile again while it plans",
            where="--reprofile",
            next_step="leave the option out, or add --planner nnv12",
        )
    if cache_limit is not None and not 0 <= cache_limit <= _LARGEST_MB:
        raise ParamsError(
            f"{cache_limit:g} MB is no limit for a cache",
            where="--cache-limit",
            next_step=f"name 0 to {_LARGEST_MB} MB, or leave it out",
        )
    found = load_device(device)
    if found.engine != "onednn":
        raise DeviceError(
            f"device {found.name!r} runs {found.engine}, which executes no plans",
            where="--device",
            next_step="take a device of the engine onednn, e.g. cpu-onednn",
        )
    here = find_workspace()
    measured, predictors = (rows or here.rows) / found.name, (results or here.results) / found.name / "predictors"
    # before minutes of measuring, not after them
    require_writable(output, instead="choose another folder with -o")
    require_writable(measured, instead="choose another folder with --rows")
    require_writable(state_folder())
    request = Request(
        found, costs.value, planner, homes, measured / "cold", measured / "cold_start" / "profiles", predictors, reprofile
    )
    if accept_noise:
        request = replace(request, settings=ProfileSettings(max_noisy_share=1.0))
    planned = plan_model(model, request)
    made = with_warm_kernels(planned.plan, planned.profiles) if continuous else planned.plan
    limit_bytes = None if cache_limit is None else int(cache_limit * _MB)
    path = build_plan_folder(planned.dnnl, model, made, output, limit_bytes=limit_bytes)
    program = read_linked(path / PROGRAM_NAME)
    for line in [*summary(made, planned.profiles, path), cache_line(made, program, limit_bytes)]:
        say(line)


def cache_line(plan: Plan, program: LinkedProgram, limit_bytes: int | None) -> str:
    """The cache that was written, and what its limit left out of it.

    Args:
        plan: the plan, which knows no limit.
        program: what was built from it.
        limit_bytes: most bytes of weights in the cache; None without a limit.
    """
    from edgeplan.planning.cold_start.profile import SOURCES  # noqa: PLC0415  see `plan_cold_start`

    steps = zip(plan.source, program.steps, strict=True)
    left_out = [step.weight_bytes for source, step in steps if SOURCES[source].startswith("cached") and not step.cached]
    line = f"  weight cache    {program.cache_bytes / _MB:.2f} MB, "
    if limit_bytes is None:
        return line + "no limit"
    line += f"limit {limit_bytes / _MB:.2f} MB: "
    if not left_out:
        return line + "everything planned is in it"
    return line + (
        f"{sum(left_out) / _MB:.2f} MB of weights ({len(left_out)} steps) left out, transformed at every start: "
        "the prediction does not hold"
    )


def summary(plan: Plan, profiles: Sequence[Profile], path: Path) -> list[str]:
    """What a user wants to know about a plan."""
    from edgeplan.planning.cold_start.bounds import remaining_table  # noqa: PLC0415

    table = remaining_table(profiles, disk=plan.disk is not None).set_index("layout").loc[plan.layout]
    n = len(plan.steps)
    widen = "from the first step on" if plan.widen_from == 0 else f"from step {plan.widen_from} of {n} on"
    others = sum(cold != later for cold, later in zip(plan.implementation, plan.later, strict=False))
    disk = plan.disk
    state = "warm" if disk is None else f"evicted: {disk.mb_per_s:.0f} MB/s, {disk.latency_ms:.2f} ms until the first byte"
    return [
        f"{plan.model}: {plan.makespan_ms:.2f} ms predicted ({plan.costs} costs, planner {plan.planner}: {plan.note})",
        f"  page cache      {state}",
        f"  bound           {plan.lower_bound_ms:.2f} ms, gap {100 * plan.gap:.2f} % for these costs and this order",
        f"  layout          {plan.layout}",
        f"  all cores       {'never' if plan.widen_from == n else widen}",
        f"  later runs      {f'{others} of {n} steps switch kernels' if plan.later else 'with the kernels of the first one'}",
        f"  cached weights  {plan.cache_bytes / _MB:.1f} MB of {plan.read_bytes / _MB:.1f} MB read, by the plan",
        f"  candidates      {table['remaining']} of {table['candidates']} undominated, {table['remaining_mean']:.1f} a step",
        f"  written to      {path}",
    ]
