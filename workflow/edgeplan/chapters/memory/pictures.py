"""A plan as pictures: latency against budget with the bound, and what memory holds, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from edgeplan.chapters.memory.budget import MIB
from edgeplan.planning.memory.document import Held, MemoryPlan, MemoryUse
from edgeplan.reporting.drawing import INK, PALETTE, PAPER, canvas, legend, legend_above, name_axes, svg
from edgeplan.runtime.streaming.program import WEIGHTS, StreamProgram
from edgeplan.support.files import write_atomically

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

    Args:
        plan: of the program.
        program: it tells buffers that hold weights, those of steps that run in bands, from activations.
        path: where to write, as SVG.
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
