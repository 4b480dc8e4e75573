"""The command `edgeplan plan memory` prints what was planned."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Annotated

import typer

from edgeplan.chapters.memory import api
from edgeplan.chapters.memory.api import Inferences
from edgeplan.chapters.memory.plan import MemoryPlanned
from edgeplan.chapters.memory.proof import Proof
from edgeplan.cli.models import BatchOption, DeviceOption, ModelArgument, PlanOption, SetOption, ShapeOption
from edgeplan.errors import ParamsError
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.measurement.others import DISTURBED
from edgeplan.profiling.streaming import StreamProfile
from edgeplan.runtime.streaming.schedules import F32, HALVES_TOLERANCE, Stored
from edgeplan.terminal import escaped, milliseconds, say
from edgeplan.workspace import WorkspaceOption

_MIB = 1 << 20


def plan_memory(
    model: ModelArgument,
    output: PlanOption,
    budget: Annotated[
        str,
        typer.Option(
            "--budget", "-b", help="Memory for the model, all pages counted: 64MB, 64MiB, or 10% of what ONNX Runtime takes."
        ),
    ] = "",
    max_slowdown: Annotated[
        str, typer.Option(help="Largest slowdown, as in 5%, in place of a budget: the least budget that keeps it is taken.")
    ] = "",
    device: DeviceOption = "cpu-onednn",
    threads: Annotated[
        int, typer.Option(min=0, max=1024, help="Computing threads; 0: all processors of the device but one, which reads.")
    ] = 0,
    mode: Annotated[
        Inferences, typer.Option(help="Memory is filled before each inference, or they follow each other at once.")
    ] = "back-to-back",
    total: Annotated[bool, typer.Option("--total", help="The budget is for the whole process, runtime included.")] = False,
    curve: Annotated[Path | None, typer.Option(help="File to draw latency against budget to, as SVG.")] = None,
    memory_map: Annotated[
        Path | None, typer.Option("--map", help="File to draw what memory holds in each step to, as SVG.")
    ] = None,
    weights: Annotated[Stored, typer.Option(help="Weights in the file: f32 whole, bf16 or f16 in half their bytes.")] = F32,
    shape: ShapeOption = None,
    values: SetOption = None,
    batch: BatchOption = None,
    workspace: WorkspaceOption = None,  # noqa: ARG001  see `WorkspaceOption`
) -> None:
    """Plan how a model runs within a budget of memory: its weights are read from the disk while it runs."""
    if bool(budget) == bool(max_slowdown):
        raise ParamsError(
            "a plan is for a budget or for a slowdown", where="--budget, --max-slowdown", next_step="give one of them"
        )
    made = api.plan_memory(
        model, output, budget,
        device=device, max_slowdown=max_slowdown, threads=threads, mode=mode, total=total, curve=curve,
        memory_map=memory_map, weights=weights, preparation=Preparation.parsed(shape, values, batch),
    )  # fmt: skip
    for line in memory_lines(made):
        say(line)
    if curve is not None:
        say(f"  curve           {curve}")
    if memory_map is not None:
        say(f"  map             {memory_map}")


def memory_lines(made: MemoryPlanned) -> list[str]:
    """List the lines that the command prints of a plan."""
    plan, run, profile = made.document, made.run, made.candidate.profile
    resident, proof = sum(profile.compute_ms), made.proof
    idle = proof.limit_bytes - made.budget if proof.total and proof.limit_bytes else profile.idle_bytes
    weights = sum(plan.weight_bytes)
    rates = "" if made.weights == F32 else " of values"  # as memory holds them
    per = "an inference" if plan.mode == "isolated" else "an inference, one after the other"
    return [
        (
            f"{escaped(made.candidate.program.model)}: {milliseconds(plan.predicted_ms)} {per}, predicted; "
            f"{milliseconds(resident)} with all weights in memory"
        ),
        f"  budget          {made.budget / _MIB:.2f} MiB over the idle process ({idle / _MIB:.1f} MiB)",
        (
            f"  measured peak   {run.peak_over_idle / _MIB:.2f} MiB from opening the plan on, all pages; "
            f"{milliseconds(statistics.median(run.phases[0].run_ms))} an inference (median of {len(run.phases[0].run_ms)})"
        ),
        *_proof(made.proof),
        f"  of which        {plan.arena_bytes / _MIB:.2f} MiB arena, {profile.objects_bytes / _MIB:.2f} MiB library, kernels",
        (
            f"  bound           {milliseconds(plan.lower_bound_ms)} for these slices and {plan.bytes_per_ms / 1e3:.0f} MB/s"
            f"{rates}, gap {100 * plan.gap:.2f} %"
        ),
        f"  weights         {weights / _MIB:.1f} MiB, {made.read_bytes / _MIB:.1f} MiB read in each inference",
        *_halved(made),
        f"  steps           {len(plan.steps)}{_sliced(made)}",
        *sureness_lines(profile),
        f"  written to      {made.folder}",
    ]


def _proof(proof: Proof) -> list[str]:
    """Tell what a memory cgroup showed of the budget."""
    if proof.reason:
        return [f"  held to it      not proven from outside: {escaped(proof.reason)}"]
    group = "from the start of `edgeplan run` on" if proof.total else "for the idle process and the budget"
    return [
        (
            f"  held to it      {proof.limit_bytes / _MIB:.2f} MiB {group}, by a memory cgroup that pays for the library: "
            f"{proof.peak_bytes / _MIB:.2f} MiB at most, no page waited for"
        )
    ]


def _halved(made: MemoryPlanned) -> list[str]:
    """Tell how much is stored of weights in half their bytes, and what that costs."""
    if made.weights == F32:
        return []
    told = "not known" if made.error is None else f"{made.error:.1e} of the largest magnitude from ONNX Runtime"
    if made.inexact:
        told += f", MORE THAN {HALVES_TOLERANCE:g}: plan again with --weights {F32}"
    stored = made.candidate.program.weights_bytes / _MIB
    return [f"  stored          {stored:.1f} MiB as {made.weights}", f"  error           {told}"]


def sureness_lines(profile: StreamProfile) -> list[str]:
    """Tell how far the measured times can be trusted, and what disturbed them."""
    lines = [
        f"  sure to         {100 * profile.unsure:.0f} %: the quartiles of inferences with all weights in memory differ by that"
    ]
    if profile.others > DISTURBED:
        told = f"other work had {100 * profile.others:.0f} % of the processors' time while the steps were measured"
        lines.append(f"  noise           {told}: plan again on a quiet machine")
    return lines


def _sliced(made: MemoryPlanned) -> str:
    names, form = made.document.steps, made.candidate.form
    parts, bands = sum("[" in name for name in names), sum("@" in name for name in names)
    told = f", {parts} of them parts of at most {form.limit / _MIB:g} MiB" if parts else ""
    return told + (f", {bands} of bands of rows" if bands else "")
