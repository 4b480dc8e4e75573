"""Plans several models as one program within one budget: weights of which of them stay in memory is part of the plan.

What each model takes was profiled by itself. Activations of models that run in turns share their memory, and pages of the
library that several need are counted once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np

from edgeplan.errors import InfeasibleError
from edgeplan.planning.layout.buffers import Ints
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.planner import lowest
from edgeplan.planning.memory.quick import Mode, PlannedMemory, best
from edgeplan.planning.memory.search import WORK, improved
from edgeplan.planning.memory.workload import Reader, Workload
from edgeplan.runtime.folder import PlanFolder
from edgeplan.runtime.streaming.again import Again, schedule_of, workload_of
from edgeplan.runtime.streaming.library_pages import Runs
from edgeplan.runtime.streaming.memory_session import again_of, by_coarseness, needed_pages
from edgeplan.runtime.streaming.program import PAGE_BYTES, StreamProgram
from edgeplan.runtime.streaming.schedules import packed
from edgeplan.runtime.streaming.together import joined, require_joinable
from edgeplan.support.files import write_atomically

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class CostedJoin:
    """A joined program with what it takes.

    Attributes:
        plans: of the models, in coarse or in fine parts.
        program: of all of them.
        workload: its steps as they were profiled.
        reader: the disk.
        objects_bytes: what running takes beside the arena.
        layouts: addresses of buffers that plans begin with.
    """

    plans: tuple[PlanFolder, ...]
    program: StreamProgram
    workload: Workload
    reader: Reader
    objects_bytes: int
    layouts: tuple[Ints, ...]

    @classmethod
    def of(cls, plans: tuple[PlanFolder, ...]) -> CostedJoin:
        """From the folders of plans that can be joined.

        Raises:
            FormatError: one holds no profile, or one of another program.
        """
        each = [again_of(plan) for plan in plans]
        program = joined([plan.program_of(StreamProgram) for plan in plans]).program
        work = workload_of(program, np.concatenate([one.workload.compute_ms for one in each]).tolist())
        layouts = (*(np.concatenate(own) for own in zip(*(one.layouts for one in each), strict=True)), lowest(work))
        objects = sum(one.objects_bytes for one in each) - shared_bytes([needed_pages(plan)[1] for plan in plans])
        return cls(plans, program, work, _reader(each), objects, layouts)

    @property
    def least_bytes(self) -> int:
        """Return the budget below which nothing fits, objects counted."""
        return bounds.least_bytes(self.workload) + self.objects_bytes

    def planned(self, budget: int) -> PlannedMemory | None:
        """Plan within a budget; None where nothing is found."""
        if budget < self.least_bytes:
            return None
        return best(self.workload, self.reader, budget - self.objects_bytes, Mode.back_to_back, self.layouts)


def shared_bytes(needed: Sequence[Runs]) -> int:
    """Return the bytes of the library's pages that are counted more than once.

    Args:
        needed: pages that each model needs.
    """
    pages = [
        {page for first, count in zip(runs[::2], runs[1::2], strict=True) for page in range(first, first + count)}
        for runs in needed
    ]
    return PAGE_BYTES * (sum(map(len, pages)) - len(set().union(*pages)))


def _reader(each: Sequence[Again]) -> Reader:
    """The disk as all profiles together saw it: each by the bytes that it reads."""
    weights = np.array([float(one.workload.weight_bytes.sum()) + 1 for one in each])
    rate = weights.sum() / (weights / [one.reader.bytes_per_ms for one in each]).sum()
    widened = max(one.reader.widened_per_ms for one in each)
    return Reader.measured(float(rate), each[0].reader.lanes, max(one.reader.read_ms for one in each), widened)


def plan_together(plans: Sequence[PlanFolder], budget: int, path: Path) -> tuple[PlanFolder, ...]:
    """Plan models within one budget, and write the schedule.

    Args:
        plans: of memory.
        budget: bytes over idle for all of them.
        path: file to write to, as one of stored schedules.

    Returns:
        The plans that the schedule is for, each in coarse or in fine parts.

    Raises:
        ParamsError: see `require_joinable`.
        InfeasibleError: the budget is below the sum of what they need.
        FormatError: a plan is damaged.
    """
    require_joinable(plans)
    costed = list(_forms(plans))
    found = [(made, form) for form in costed if (made := form.planned(budget)) is not None]
    if not found:
        least = min(form.least_bytes for form in costed)
        raise InfeasibleError(
            f"{budget / _MIB:.2f} MiB is not enough for {len(plans)} models in turns: the least is {least / _MIB:.2f} MiB over "
            "idle, or somewhat more",
            where="--budget",
            next_step=f"give --budget {-(-max(least, budget + 1) // _MIB)}MiB or more, or run fewer models at a time",
            proven=budget < least,
        )
    made, form = min(found, key=lambda one: one[0].predicted_ms)
    made = improved(form.workload, form.reader, made, WORK)
    row = budget, made.predicted_ms, made.lower_bound_ms, schedule_of(made)
    content = packed([row], len(form.program.step_names), len(form.program.buffer_names))
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return form.plans


def _forms(plans: Sequence[PlanFolder]) -> Iterator[CostedJoin]:
    """Yield the models in coarse parts and in fine ones, in all combinations."""
    for forms in product(*map(by_coarseness, plans)):
        yield CostedJoin.of(forms)
