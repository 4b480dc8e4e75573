"""The command `edgeplan plan MODEL` prints the plans of a model that no other beats, and writes one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from edgeplan import front
from edgeplan.cli.preparation import BatchOption, SetOption, ShapeOption, preparation
from edgeplan.errors import ParamsError
from edgeplan.front import Front, FrontPlan, Goal
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
    budget: Annotated[str, typer.Option("--budget", "-b", help="Memory that -o has for the model, as in 64MiB.")] = "",
    pair: Annotated[
        str, typer.Option("--pair", help="Plan for two processors, too: name of a pair, or path of its file.")
    ] = "",
    device: Annotated[str, typer.Option("--device", "-d", help="Name of a device, or path of a device file.")] = "cpu-onednn",
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Plan a model in all ways: its fastest first inference, least memory and two processors, in one table."""
    prepared = preparation(shape, values, batch)
    if output is None:
        if budget or goal != "first":
            raise ParamsError(
                "--for and --budget choose a plan to write",
                where="--output",
                next_step="name a folder: -o plan, or leave both out",
            )
        print_front(front.plan_front(model, device=device, pair=pair, preparation=prepared), model)
        return
    found, written = front.write_front_plan(
        model, output, goal=goal, budget=budget, device=device, pair=pair, preparation=prepared
    )
    print_front(found, model)
    say(f"written to {escaped(str(written.folder))}: {written.chosen.kind}")
    say(f"next: edgeplan run {escaped(str(written.folder))}")


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
