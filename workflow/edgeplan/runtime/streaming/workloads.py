"""Programs as planners know them, and plans as sessions do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeplan.planning import layout
from edgeplan.planning.layout import Buffers, buffers
from edgeplan.planning.memory.quick import Mode, PlannedMemory
from edgeplan.planning.memory.workload import Workload
from edgeplan.runtime.creation import ALIGNMENT, PAGE_BYTES, paged
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.schedules import Schedule


def buffers_of(program: StreamProgram) -> Buffers:
    """Activations and scratch, as planners know them."""
    rows = [(buffer.size, buffer.lower, buffer.upper) for buffer in program.buffers]
    size, lower, upper = np.array(rows, np.int64).reshape(-1, 3).T
    return buffers(lower, upper, size, [ALIGNMENT] * len(size))


def workload_of(program: StreamProgram, compute_ms: Sequence[float]) -> Workload:
    """Build the planner's workload from the program's steps and their times."""
    weights = np.array([step.weight_bytes for step in program.steps], np.int64)  # as memory holds them
    return Workload(np.array(compute_ms, dtype=np.float64), weights, buffers_of(program), PAGE_BYTES)


def untimed_workload(program: StreamProgram) -> Workload:
    """The workload of a program that was not profiled: what it takes of memory is known."""
    return workload_of(program, [0.0] * len(program.steps))


def schedule_of(planned: PlannedMemory) -> Schedule:
    """The part of a plan that running needs."""
    placed = planned.placement
    waits = (placed.weight_offset >= 0) & (placed.after < 0)
    return Schedule(
        planned.mode is Mode.back_to_back,
        placed.height,
        placed.tensor_offset.tolist(),
        placed.weight_offset.tolist(),
        placed.after.tolist(),
        np.where(waits, placed.again, -1).tolist(),
    )


def all_resident(program: StreamProgram) -> dict[str, Any]:
    """Return a schedule that keeps all weights in memory, above activations and scratch."""
    buffers = buffers_of(program)
    lowest = layout.lowest(buffers)
    at = paged(int((lowest + buffers.size).max(initial=0)))
    offsets = []
    for step in program.steps:
        offsets.append(at if step.weight_bytes else -1)
        at += step.weight_bytes
    return {
        "mode": "back-to-back",
        "arena_bytes": at,
        "tensor_offset": lowest.tolist(),
        "weight_offset": offsets,
        "after": [-1] * len(offsets),
        "again": [k if offset >= 0 else -1 for k, offset in enumerate(offsets)],
    }
