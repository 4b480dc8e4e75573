"""Programs as planners know them, and plans as sessions do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgeplan.planning.layout import greedy
from edgeplan.planning.layout.buffers import Buffers, buffers
from edgeplan.planning.memory.quick import Mode, PlannedMemory
from edgeplan.planning.memory.workload import Workload
from edgeplan.runtime.creation import ALIGNMENT
from edgeplan.runtime.streaming.program import BUFFER_COLUMNS, PAGE_BYTES, STEP_COLUMNS, StreamProgram
from edgeplan.runtime.streaming.schedules import Schedule


def buffers_of(program: StreamProgram) -> Buffers:
    """Activations and scratch, as planners know them."""
    size, lower, upper = np.frombuffer(program.buffer_rows, np.int64).reshape(-1, BUFFER_COLUMNS).T
    return buffers(lower, upper, size, [ALIGNMENT] * len(size))


def workload_of(program: StreamProgram, compute_ms: Sequence[float]) -> Workload:
    """Build the planner's workload from the program's steps and their times.

    Args:
        program: the program.
        compute_ms: of each step.
    """
    *_, weights = np.frombuffer(program.step_rows, np.int64).reshape(-1, STEP_COLUMNS).T.copy()  # as memory holds them
    return Workload(np.array(compute_ms, dtype=np.float64), weights, buffers_of(program), PAGE_BYTES)


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
    lowest = greedy.lowest(buffers)
    at = -(-int((lowest + buffers.size).max(initial=0)) // PAGE_BYTES) * PAGE_BYTES
    offsets = []
    for size in program.columns.weight_bytes:
        offsets.append(at if size else -1)
        at += size
    return {
        "mode": "back-to-back",
        "arena_bytes": at,
        "tensor_offset": lowest.tolist(),
        "weight_offset": offsets,
        "after": [-1] * len(offsets),
        "again": [k if offset >= 0 else -1 for k, offset in enumerate(offsets)],
    }
