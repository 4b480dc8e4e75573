"""The command `edgeplan plan MODEL` prints the plans of a model that no other beats, and writes one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from edgeplan import front
from edgeplan.cli.front_picture import write_front
from edgeplan.cli.preparation import BatchOption, SetOption, ShapeOption, preparation
from edgeplan.errors import ParamsError
from edgeplan.front import Front, FrontPlan, Goal, PlanForGoal
from edgeplan.runtime.gpu_program import GpuPrediction
from edgeplan.terminal import escaped, say, show
from edgeplan.workspace import WorkspaceOption

_MIB = 1 << 20


def plan_front(
    model: Annotated[Path, typer.Argument(help="ONNX file.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder to write one of the plans to: the best for the goal.")
    ] = None,
    goal: Annotated[
        Goal, typer.Option("--for", help="Goal of the plan that -o writes: the fastest first inference, later ones, or both.")
    ] = "first",
    budget: Annotated[str, typer.Option("--budget", "-b", hidden=True)] = "",
    pair: Annotated[
        str, typer.Option("--pair", help="Plan for two processors, too: name of a pair, or path of its file.")
    ] = "",
    device: Annotated[str, typer.Option("--device", "-d", help="Name of a device, or path of a device file.")] = "cpu-onednn",
    picture: Annotated[
        Path | None, typer.Option("--front", help="File to draw the plans to, as SVG: memory against time.")
    ] = None,
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Plan a model in all ways: its fastest first inference, least memory and two processors, in one table."""
    if budget:
        next_step = f"plan one: edgeplan plan memory {model} --budget {budget} -o {output or 'plan'}"
        raise ParamsError("a plan of memory alone holds a budget", where="--budget", next_step=next_step)
    prepared = preparation(shape, values, batch)
    if output is None:
        if goal != "first":
            raise ParamsError(
                "--for chooses a plan to write", where="--output", next_step="name a folder: -o plan, or leave --for out"
            )
        _shown(front.plan_front(model, device=device, pair=pair, preparation=prepared), model, picture)
        return
    found, written = front.write_front_plan(model, output, goal=goal, device=device, pair=pair, preparation=prepared)
    _shown(found, model, picture)
    say(f"written to {escaped(str(written.folder))}: {written.chosen.kind}")
    for line in later_lines(written):
        say(line)
    say(f"next: edgeplan run {escaped(str(written.folder))}")


def _shown(found: Front, model: Path, picture: Path | None) -> None:
    """Print a front, and draw it where that was asked for."""
    print_front(found, model)
    if picture is not None:
        write_front(found, picture)
        say(f"picture: {escaped(str(picture))}")


def later_lines(written: PlanForGoal) -> list[str]:
    """Tell which processor takes over from a cold start, and what is predicted of its own."""
    if (later := written.later) is None:
        return []
    makespan_ms = later.predicted(GpuPrediction).makespan_ms
    return [f"  later           {later.made_for.driver}: ready {makespan_ms:.2f} ms after it is open; the faster one answers"]


def print_front(found: Front, model: Path) -> None:
    """Print the table of a front, and how each of its plans is written."""
    for line in found.about:
        say(escaped(line))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("plan")
    for name in ("first, ms", "later, ms", "bound, ms", "memory, MiB"):
        table.add_column(name, justify="right")
    table.add_column("written by: edgeplan plan ...")
    for plan in found.plans:
        command = " ".join((plan.arguments[0], escaped(model.name), *plan.arguments[1:], "-o plan"))
        table.add_row(plan.kind, *_figures(plan), command)
    show(table)
    left = f"; {len(found.beaten)} that another beats are left out" if found.beaten else ""
    say(f"{escaped(found.model)}: {len(found.plans)} plans in {found.seconds:.0f} s, all predicted{left}")


def _figures(plan: FrontPlan) -> tuple[str, str, str, str]:
    times = (plan.first_ms, plan.later_ms, plan.bound_ms)
    first, later, bound = (f"{ms:.2f}" for ms in times)
    return first, later, bound, f"{plan.peak_bytes / _MIB:.1f}"
