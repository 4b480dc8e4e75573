"""The command line of cold starts: `edgeplan plan cold-start`."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgeplan.errors import DeviceError, ParamsError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from edgeplan.planning.cold_start.plan import Plan
    from edgeplan.planning.cold_start.profile import Profile
    from edgeplan.runtime.dnnl import Dnnl

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
    device: Annotated[
        str, typer.Option("--device", "-d", help="Name of a device file in config/devices, or a path.")
    ] = "cpu-onednn",
    costs: Annotated[Costs, typer.Option(help="Measure this model, or predict from others.")] = Costs.profiled,
    planner: Annotated[str, typer.Option(help="optimal, nnv12, warm, K, K+C or K+C+P.")] = "optimal",
    layouts: Annotated[str, typer.Option(help="Home layouts to plan, separated by commas; all without.")] = "",
    reprofile: Annotated[bool, typer.Option(help="nnv12: measure what it tries again while it plans.")] = False,
    accept_noise: Annotated[bool, typer.Option(help="Keep what is measured on a busy machine.")] = False,
    rows: Annotated[Path, typer.Option(help="Folder of measured rows.")] = Path("data/rows"),
    results: Annotated[Path, typer.Option(help="Folder of the results, for predictors.")] = Path("results"),
) -> None:
    """Plan the fastest first inference of a model: kernels, cached weights, and which core does what when."""
    # imported here: `edgeplan --help` and the errors of its arguments should not wait for numpy and onnx
    from edgeplan.cold.profiling.command import Request, plan_model  # noqa: PLC0415
    from edgeplan.cold.profiling.settings import ProfileSettings  # noqa: PLC0415
    from edgeplan.devices.config import load_device  # noqa: PLC0415
    from edgeplan.planning.cold_start.planner import PLANNERS  # noqa: PLC0415
    from edgeplan.runtime.layouts import HOMES  # noqa: PLC0415

    homes = tuple(filter(None, layouts.split(","))) or HOMES
    if unknown := [home for home in homes if home not in HOMES]:
        raise ParamsError(f"there is no layout {unknown[0]!r}", where="--layouts", next_step=f"choose from {', '.join(HOMES)}")
    if planner not in PLANNERS:
        raise ParamsError(
            f"there is no planner {planner!r}", where="--planner", next_step=f"choose one of {', '.join(PLANNERS)}"
        )
    found = load_device(device)
    if found.engine != "onednn":
        raise DeviceError(
            f"device {found.name!r} runs {found.engine}, which executes no plans",
            where="--device",
            next_step="take a device of the engine onednn, e.g. cpu-onednn",
        )
    request = Request(
        found, costs.value, planner, homes, rows / found.name / "cold", results / found.name / "predictors", reprofile
    )
    if accept_noise:
        request = replace(request, settings=ProfileSettings(max_noisy_share=1.0))
    planned = plan_model(model, request)
    path = _write(planned.dnnl, model, planned.plan, output)
    for line in summary(planned.plan, planned.profiles, path):
        typer.echo(line)


def _write(dnnl: Dnnl, model: Path, plan: Plan, folder: Path) -> Path:
    """Write the plan folder."""
    from edgeplan.planning.cold_start.plan import write_plan  # noqa: PLC0415

    # build_plan_folder(dnnl, model, plan, folder) of runtime.plan_folder writes the program and the cache of weights beside it
    del dnnl, model
    path = folder / "plan.json"
    write_plan(plan, path)
    return path


def summary(plan: Plan, profiles: Sequence[Profile], path: Path) -> list[str]:
    """What a user wants to know about a plan."""
    from edgeplan.planning.cold_start.bounds import remaining_table  # noqa: PLC0415

    table = remaining_table(profiles).set_index("layout").loc[plan.layout]
    n = len(plan.steps)
    widen = "from the first step on" if plan.widen_from == 0 else f"from step {plan.widen_from} of {n} on"
    return [
        f"{plan.model}: {plan.makespan_ms:.2f} ms predicted ({plan.costs} costs, planner {plan.planner}: {plan.note})",
        f"  bound           {plan.lower_bound_ms:.2f} ms, gap {100 * plan.gap:.2f} % for these costs and this order",
        f"  layout          {plan.layout}",
        f"  all cores       {'never' if plan.widen_from == n else widen}",
        f"  cached weights  {plan.cache_bytes / 1e6:.1f} MB of {plan.read_bytes / 1e6:.1f} MB read",
        f"  candidates      {table['remaining']} of {table['candidates']} undominated, {table['remaining_mean']:.1f} a step",
        f"  written to      {path}",
    ]
