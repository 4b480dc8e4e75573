"""The command `edgeplan plan MODEL` prints the plans of a model, each as it ran, and writes one of them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edgeplan import front
from edgeplan.cli.models import BatchOption, DeviceOption, ModelArgument, SetOption, ShapeOption
from edgeplan.errors import ParamsError
from edgeplan.front import Front, Goal
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.runtime.gpu_program import GpuPrediction
from edgeplan.terminal import escaped, figures_table, milliseconds, say, show
from edgeplan.workspace import WorkspaceOption

_MIB, _DEVICE = 1 << 20, "cpu-onednn"


def plan_front(
    model: ModelArgument,
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
    device: DeviceOption = _DEVICE,
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Plan a model in all ways: its fastest first inference, least memory and two processors, in one table."""
    if budget:
        next_step = f"plan one: edgeplan plan memory {model} --budget {budget} -o {output or 'plan'}"
        raise ParamsError("a plan of memory alone holds a budget", where="--budget", next_step=next_step)
    prepared = Preparation.parsed(shape, values, batch)
    given = [str(model), *(word for text in shape or () for word in ("--shape", text))]
    given += [*(word for text in values or () for word in ("--set", text)), *(("--batch", str(batch)) if batch else ())]
    on = () if device == _DEVICE else ("--device", device)
    if output is None:
        if goal != "first":
            raise ParamsError(
                "--for chooses a plan to write", where="--output", next_step="name a folder: -o plan, or leave --for out"
            )
        print_front(front.plan_front(model, device=device, pair=pair, preparation=prepared), given, on)
        return
    found, written = front.write_front_plan(model, output, goal=goal, device=device, pair=pair, preparation=prepared)
    print_front(found, given, on)
    folder = escaped(str(written.folder))
    say(f"written to {folder}: {written.chosen.kind}")
    if (later := written.later) is not None:  # the processor that takes over from a cold start
        ready_ms = later.predicted(GpuPrediction).makespan_ms
        say(f"  later           {later.made_for.driver}: ready {ready_ms:.2f} ms after it is open; the faster one answers")
    say(f"next: edgeplan run {folder}")


def print_front(found: Front, given: Sequence[str], on: Sequence[str]) -> None:
    """Print what each plan took here, beside ONNX Runtime, and the command that writes it, with the words given for a model."""
    for line in found.about:
        say(escaped(line))
    table = figures_table("plan", "threads", "first, ms", "later, ms", "memory, MiB")
    for plan in (found.stock, *found.plans):
        kind = f"{plan.kind}, {plan.budget_bytes // _MIB} MiB over idle" if plan.budget_bytes else plan.kind
        times = (milliseconds(plan.first_ms, ""), milliseconds(plan.later_ms, ""))
        table.add_row(kind, str(plan.threads), *times, f"{plan.peak_bytes / _MIB:.1f}")
    show(table)
    say("they are written by:")
    for plan in found.plans:
        kind, *options = plan.arguments
        words = (kind, *given, *options, *(() if kind == "partition" else on), "-o", "plan")
        say(f"  edgeplan plan {escaped(shlex.join(words))}")
    say(
        f"{escaped(found.model)}: each was run here, {found.seconds:.0f} s in all. first: from the start of a process to its "
        "answer (edgeplan-run plan; ONNX Runtime in a program that imports nothing else); memory: the most that it held"
    )
