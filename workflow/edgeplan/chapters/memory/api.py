"""The interface for programs of the chapter on memory: `edgeplan.plan_memory`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

from edgeplan.chapters.memory.budget import MIB, Budget, require_free
from edgeplan.chapters.memory.plan import MemoryPlanned, TooSmallError, planning
from edgeplan.errors import ParamsError, require_known
from edgeplan.graph.onnx.prepare import OpenParts, Preparation, prepare_file
from edgeplan.measurement.process.stock import peak_bytes
from edgeplan.planning.memory.document import Held, MemoryPlan, MemoryUse
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.settings import cores_of, planning_device
from edgeplan.reporting.drawing import INK, PALETTE, PAPER, canvas, legend, legend_above, name_axes, svg
from edgeplan.runtime.folder import require_replaceable
from edgeplan.runtime.streaming.program import WEIGHTS, StreamProgram
from edgeplan.runtime.streaming.schedules import F32, Stored
from edgeplan.support.files import FilePath, write_atomically
from edgeplan.writable import require_writable

Inferences = Literal["isolated", "back-to-back"]


def plan_memory(
    model: FilePath,
    output: FilePath,
    budget: str | int = "",
    *,
    device: FilePath = "cpu-onednn",
    max_slowdown: str = "",
    threads: int = 0,
    mode: Inferences = "back-to-back",
    total: bool = False,
    curve: FilePath | None = None,
    memory_map: FilePath | None = None,
    weights: Stored = F32,
    **given: Unpack[OpenParts],
) -> MemoryPlanned:
    """Plan how a model runs within a budget of memory, and write what executes it.

    Args:
        model: ONNX file.
        output: folder to write the plan to; on the disk that weights are to be read from.
        budget: bytes over the idle process as a number, "64MB" or "64MiB", or a share of what ONNX Runtime takes as "10%".
        device: name of a device file of the engine onednn, or a path to one.
        max_slowdown: instead of a budget: the least one whose plan is at most so much slower, as "5%".
        threads: that compute; 0: all processors of the device but one.
        mode: memory is filled before each inference, or inferences follow each other.
        total: the budget, which has to be given then, is for the whole process.
        curve: file to draw latency against budget to, as SVG.
        memory_map: file to draw what the arena holds in each step to, as SVG.
        weights: how the file holds them: whole as "f32", or as "bf16" or "f16" in half the bytes, which takes half the time to
            read and rounds them (float16 that a model holds stays as it is); what that costs is `MemoryPlanned.error`.
        given: what the file leaves open (`OpenParts`). What had to be prepared is written beside the plan, as `<output>.onnx`.

    Raises:
        ParamsError: an argument is none that there is.
        InfeasibleError: it does not fit; the message says what is the least.
        EdgeplanError: see `edgeplan.chapters.memory.plan.Planner`.
    """
    slowdown, opened = _slowdown(max_slowdown), Preparation.given(**given)
    if total and not budget:
        what = "only a budget that is given can be for the whole process"
        raise ParamsError(what, where="--total", next_step="leave it out, or give --budget in place of --max-slowdown")
    wanted = Budget.parsed(str(budget)) if budget else None
    if wanted is not None:
        require_free(wanted, "--budget")
    require_known("mode", [mode], Mode, "--mode")
    require_known("kind of weights", [weights], get_args(Stored), "--weights")
    found = planning_device(device)
    processors = cores_of(found).all
    out = Path(output)
    require_writable(out, instead="choose another folder with -o")
    require_replaceable(out)
    source = prepare_file(Path(model), opened, out.with_name(f"{out.name}.onnx"))
    with planning(source, threads or max(1, len(processors) - 1), processors, out, weights=weights) as planner:
        if wanted is None:
            size = planner.least_for(slowdown, Mode(mode))
        elif wanted.share:
            size = int(wanted.share * peak_bytes(source, planner.programs.cores.compute))
            require_free(Budget(size), "--budget")
        else:
            size = wanted.size
        if total:
            planner.hold_total()
        try:
            made = planner.write(size - planner.beside_bytes, Mode(mode), out, found=wanted is None)
        except TooSmallError as refusal:
            raise planner.tried(refusal, Mode(mode)) from None
        if curve is not None:
            write_curve(planner.curve(Mode(mode)), source.stem, Path(curve))
        if memory_map is not None:
            write_map(made.document, made.candidate.program, Path(memory_map))
    return made


def _slowdown(text: str) -> float:
    """The largest slowdown as a share; 0 where there is none.

    Raises:
        ParamsError: it is no share.
    """
    found = Budget.parsed(text, "--max-slowdown", most_share=100.0).share if text else 0.0
    if text and not found:
        raise ParamsError(f"{text!r} is no share", where="--max-slowdown", next_step="give per cent, as in 5%")
    return found


_COLOURS = {MemoryUse.tensor: PALETTE[4], MemoryUse.weights: PALETTE[0], MemoryUse.stays: PALETTE[1]}


def write_curve(points: Sequence[tuple[int, float, float]], model: str, path: Path) -> None:
    """Draw budgets (bytes), predicted times and bounds (ms)."""
    figure, (axis,) = canvas(7.0, 4.0)
    budgets = [budget / MIB for budget, _, _ in points]
    axis.plot(budgets, [ms for _, ms, _ in points], color=PALETTE[0], marker="o", markersize=3, label="planned")
    axis.plot(budgets, [ms for _, _, ms in points], color=INK, linestyle="--", label="bound")
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter("{x:g}")
    axis.xaxis.set_minor_formatter("{x:g}")
    axis.set_ylim(bottom=0)
    name_axes(axis, "budget over idle (MiB)", "inference (ms)", model)
    legend(axis)
    _write(figure, path)


def write_map(plan: MemoryPlan, program: StreamProgram, path: Path) -> None:
    """Draw which addresses the arena holds what at, in each step.

    The program tells buffers that hold weights, those of steps that run in bands, from activations.
    """
    figure, (axis,) = canvas(9.0, 4.6)
    for use, held in held_by_use(plan, program).items():
        axis.bar(
            [h.lower for h in held], [h.size / MIB for h in held], [h.upper - h.lower for h in held],
            [h.offset / MIB for h in held], align="edge", color=_COLOURS[use], edgecolor=PAPER, linewidth=0.2, label=str(use),
        )  # fmt: skip
    axis.set_xlim(0, len(plan.steps))
    axis.set_ylim(0, plan.arena_bytes / MIB)
    name_axes(axis, f"step of {program.model}", "address (MiB)")
    legend_above(axis, len(_COLOURS))
    _write(figure, path)


def held_by_use(plan: MemoryPlan, program: StreamProgram) -> dict[MemoryUse, list[Held]]:
    """Group what memory holds by its use; uses of which there is nothing are left out."""
    keeping = {
        operand.buffer
        for step in program.steps
        if program.kernels[step.kernel].step.kind == "keep"
        for operand in step.operands
        if operand.buffer != WEIGHTS
    }
    found: dict[MemoryUse, list[Held]] = {}
    for number, held in enumerate(plan.held()):  # tensors first, in the order of the program's buffers
        found.setdefault(MemoryUse.weights if number in keeping else held.use, []).append(held)
    return found


def _write(figure: Any, path: Path) -> None:
    write_atomically(path, partial(Path.write_bytes, data=svg(figure)))
