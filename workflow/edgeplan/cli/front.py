"""The command `edgeplan plan MODEL` prints the plans of a model, each as it ran, and writes one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from edgeplan import front
from edgeplan.cli.preparation import BatchOption, SetOption, ShapeOption, preparation
from edgeplan.cli.times import milliseconds
from edgeplan.errors import ParamsError
from edgeplan.front import Front, Goal, PlanForGoal
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
        print_front(front.plan_front(model, device=device, pair=pair, preparation=prepared), model)
        return
    found, written = front.write_front_plan(model, output, goal=goal, device=device, pair=pair, preparation=prepared)
    print_front(found, model)
    say(f"written to {escaped(str(written.folder))}: {written.chosen.kind}")
    for line in later_lines(written):
        say(line)
    say(f"next: edgeplan run {escaped(str(written.folder))}")


def later_lines(written: PlanForGoal) -> list[str]:
    """Tell which processor takes over from a cold start, and what is predicted of its own."""
    if (later := written.later) is None:
        return []
    makespan_ms = later.predicted(GpuPrediction).makespan_ms
    return [f"  later           {later.made_for.driver}: ready {makespan_ms:.2f} ms after it is open; the faster one answers"]


def print_front(found: Front, model: Path) -> None:
    """Print what each plan took here, beside ONNX Runtime, and how it is written."""
    for line in found.about:
        say(escaped(line))
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("plan")
    for name in ("threads", "process, ms", "later, ms", "memory, MiB"):
        table.add_column(name, justify="right")
    table.add_column("written by: edgeplan plan ...")
    for plan in (found.stock, *found.plans):
        words = (plan.arguments[0], escaped(model.name), *plan.arguments[1:], "-o plan") if plan.arguments else ()
        figures = (milliseconds(plan.first_ms), milliseconds(plan.later_ms), f"{plan.peak_bytes / _MIB:.1f}")
        table.add_row(plan.kind, str(plan.threads), *(figure.removesuffix(" ms") for figure in figures), " ".join(words))
    show(table)
    say(
        f"{escaped(found.model)}: each was run here, {found.seconds:.0f} s in all. process: from its start to its end, one "
        "inference (edgeplan run plan; ONNX Runtime in a program that imports nothing else); memory: the most that it held"
    )
