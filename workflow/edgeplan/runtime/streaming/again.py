"""Plans made again for another budget, from the stored profile.

Layers need not be cut again, nor kernels made: where buffers and weights lie changes, and when weights are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgeplan.errors import FormatError, InfeasibleError
from edgeplan.planning.layout.buffers import Buffers, Ints, buffers
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.quick import Mode, PlannedMemory, best
from edgeplan.planning.memory.workload import Reader, Workload
from edgeplan.runtime.creation import ALIGNMENT
from edgeplan.runtime.streaming.program import AGAIN, BUFFER_COLUMNS, PAGE_BYTES, STEP_COLUMNS, StreamProgram
from edgeplan.runtime.streaming.session import Schedule

_MIB = 1 << 20


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


@dataclass(frozen=True, slots=True)
class Again:
    """Plans of a program for other budgets are made from these values.

    Attributes:
        workload: its steps as they were profiled.
        reader: the disk.
        objects_bytes: what running takes beside the arena.
        layouts: addresses of buffers that plans begin with.
    """

    workload: Workload
    reader: Reader
    objects_bytes: int
    layouts: tuple[Ints, ...]

    @classmethod
    def of(cls, program: StreamProgram, profile: Mapping[str, Any], layout: Sequence[int]) -> Again:
        """From the documents of a plan folder.

        Args:
            program: the program.
            profile: of it.
            layout: of the plan that is stored: addresses of buffers to begin with.
        """
        compute, layouts = profile["compute_ms"], (profile["lowest"], layout)
        if len(compute) != len(program.step_names) or any(len(layout) != len(program.buffer_names) for layout in layouts):
            raise FormatError("the profile is of another program", where=program.model, next_step=AGAIN)
        rates = profile["bytes_per_ms"], profile["lanes"], profile.get("read_ms", 0.0), profile.get("widened_per_ms", 0.0)
        addresses = tuple(np.array(layout, dtype=np.int64) for layout in layouts)
        return cls(workload_of(program, compute), Reader.measured(*rates), profile["objects_bytes"], addresses)

    def planned(self, budget: int, mode: str) -> PlannedMemory:
        """A plan for another budget.

        Args:
            budget: bytes over idle, all pages.
            mode: one of `Mode`.
        """
        needed = bounds.least_bytes(self.workload) + self.objects_bytes
        found = None
        if budget >= needed:
            found = best(self.workload, self.reader, budget - self.objects_bytes, Mode(mode), self.layouts, again=True)
        if found is None:
            raise InfeasibleError(
                f"{budget / _MIB:.2f} MiB is not enough: the least is {needed / _MIB:.2f} MiB over idle for the slices of this "
                "plan, or more",
                where="--budgets",
                next_step="give more, or plan the model again with finer slices: edgeplan plan memory",
                proven=budget < needed,
            )
        return found


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
