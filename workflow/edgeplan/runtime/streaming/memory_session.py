"""A plan of memory, opened: its weights come from the disk while it runs, and its budget can be changed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from edgeplan.errors import FormatError, InfeasibleError
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import (
    FINER_NAME,
    MEMORY,
    SCHEDULES_NAME,
    WEIGHTS_NAME,
    PlanFolder,
    plan_again,
    read_folder,
)
from edgeplan.runtime.plan_session import Session
from edgeplan.runtime.streaming.halves import F32, Stored
from edgeplan.runtime.streaming.library_pages import KeptPages, LibraryPages, Runs
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.reader import WeightsFile
from edgeplan.runtime.streaming.schedules import ScheduleFile, StoredSchedule
from edgeplan.runtime.streaming.session import Schedule, StreamSession
from edgeplan.support.cgroups import memory_limit
from edgeplan.support.machine import fingerprint

if TYPE_CHECKING:
    from edgeplan.runtime.streaming.again import Again

ISOLATED = "isolated"
#: Beside a budget: the idle process, and all of the libraries' files, which the system reads ahead.
_WIDE_BYTES = 256 << 20
_MIB = 1 << 20


class MemorySchedule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where and when of a plan of memory.

    Attributes:
        mode: "isolated", memory is filled before each inference, or "back-to-back", inferences follow each other.
        budget_bytes: over the idle process, all pages counted.
        limit_bytes: the most bytes of weights of a part of a step.
        regions: first and last step, and rows of a band, of what runs in bands.
        compute, reader: processors of the computing and of the reading threads.
        placed: addresses, and what each load waits for.
        weights: how they are stored; whole where a plan does not say it, as plans of before.
    """

    mode: str
    budget_bytes: int
    limit_bytes: int
    regions: tuple[tuple[int, int, int], ...]
    compute: tuple[int, ...]
    reader: tuple[int, ...]
    placed: Schedule
    weights: Stored = F32


class MemoryPrediction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The prediction of a plan of memory, and the profile that plans for other budgets are made from.

    Attributes:
        ms: latency, or the mean time between inferences.
        lower_bound_ms: proven.
        loaded_bytes: read during an inference.
        profile: what the program takes on its machine (`profiling.streaming.StreamProfile`); none while it is measured.
        error: of weights in half their bytes: the largest difference of outputs from ONNX Runtime's on the inputs that the plan
            was tried with, relative to the largest magnitude; None where it is not known.
    """

    ms: float = 0.0
    lower_bound_ms: float = 0.0
    loaded_bytes: int = 0
    profile: dict[str, Any] = {}
    error: float | None = None


class _Measured(msgspec.Struct, frozen=True):
    """The bandwidth of a stored profile, and the share of the processors' time that other work had meanwhile."""

    bytes_per_ms: float = 0.0
    others: float = 0.0
    widened_per_ms: float = 0.0


class _Latency(msgspec.Struct, frozen=True):
    """The latency of a stored prediction, and the disk's bandwidth: a whole profile takes a share of a small budget."""

    ms: float = 0.0
    profile: _Measured = _Measured()


class _Needed(msgspec.Struct, frozen=True):
    """The pages of the library that a stored profile names, and nothing else of it."""

    making: tuple[int, ...] = ()
    running: tuple[int, ...] = ()


class _Pages(msgspec.Struct, frozen=True):
    """The profile of a stored prediction, reduced likewise."""

    profile: _Needed = _Needed()


class _Budget(msgspec.Struct, frozen=True):
    """The budget of a stored schedule alone."""

    budget_bytes: int


class _Mode(msgspec.Struct, frozen=True):
    """The mode of a stored schedule alone."""

    mode: str


class _Weights(msgspec.Struct, frozen=True):
    """The kind of stored weights of a schedule alone."""

    weights: Stored = F32


class MemorySession(Session):
    """A plan of memory that is open.

    Args:
        plan: the plan folder.
        dnnl: the library; None: it is loaded.
        budgets: bytes over idle that will be asked for (`adapt`): the session opens by the schedule of the first one that is
            enough for any; empty: as it was planned.

    Attributes:
        program: what is run.
        stream: the session that runs it.
        mode: how inferences follow each other.
        isolated: whether memory is filled before each inference; else they follow each other.
        budget_bytes: that it was planned for.
        predicted_ms: of an inference under that budget.
        bytes_per_ms: of reading weights, when it was planned; 0: nobody knows.
        others: share of the processors' time that other work had while it was planned, 0 to 1.
    """

    def __init__(self, plan: PlanFolder, dnnl: Dnnl | None = None, budgets: Sequence[int] = ()) -> None:
        dnnl = dnnl or Dnnl()
        given = plan
        found = next(filter(None, (choose(by_coarseness(plan), budget) for budget in budgets)), None)
        if budgets and found is None:
            raise _too_small(plan, budgets[0])
        plan = found[0] if found else plan
        plan.require_here(fingerprint(), dnnl.info.version, dnnl.info.isa)
        read = plan.require_whole(WEIGHTS_NAME)
        schedule, self.program, self._plan = plan.scheduled(MemorySchedule), plan.program_of(StreamProgram), plan
        predicted = plan.predicted(_Latency)
        self.predicted_ms, measured = predicted.ms, predicted.profile
        self.bytes_per_ms = measured.bytes_per_ms / (2 if measured.widened_per_ms else 1)  # of the file
        self.others = measured.others
        self.mode, self.isolated, self.budget_bytes = schedule.mode, schedule.mode == ISOLATED, schedule.budget_bytes
        placed = schedule.placed
        if found is not None:
            _, stored, placed = found
            self.predicted_ms, self.budget_bytes = stored.predicted_ms, stored.budget_bytes
        super().__init__(self.program.inputs, plan.path)
        file = WeightsFile(plan.path / WEIGHTS_NAME, self.program.weights_bytes, drop=read)
        library = pages_of(plan, dnnl.info.path)
        self.stream = StreamSession(dnnl, self.program, placed, file, processors=schedule.reader, library=library)
        self._dnnl, self._given = dnnl, given

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        import numpy as np  # noqa: PLC0415  who takes bytes needs none

        found = self.stream.run({name: np.ascontiguousarray(value).data for name, value in inputs.items()})
        return {b.name: np.frombuffer(found[b.name], b.dtype).reshape(b.shape) for b in self.program.outputs}

    def adapt(self, budget: int) -> tuple[float, float]:
        """Run by the fastest stored schedule that a budget is enough for from now on.

        A budget that is too small for the parts of the plan's steps is one for the plan in finer parts that lies beside it: its
        kernels are made then, which takes longer.

        Args:
            budget: bytes over idle.

        Returns:
            The milliseconds predicted of an inference, and those that choosing took.
        """
        began = time.perf_counter()
        if (found := choose(by_coarseness(self._given), budget)) is None:
            raise _too_small(self._given, budget)
        plan, stored, schedule = found
        chosen_ms = (time.perf_counter() - began) * 1e3
        if plan.path != self._plan.path or schedule != self.stream.schedule:
            self._use(plan, schedule)
        return stored.predicted_ms, chosen_ms

    def _use(self, plan: PlanFolder, schedule: Schedule) -> None:
        """Run by a schedule of this plan or of the one in finer parts."""
        if plan.path == self._plan.path:
            self.stream.apply(schedule)
            return
        read = plan.require_whole(WEIGHTS_NAME)
        program = plan.program_of(StreamProgram)
        file = WeightsFile(plan.path / WEIGHTS_NAME, program.weights_bytes, drop=read)
        self.stream.close()  # both at once would take too much
        processors = plan.scheduled(MemorySchedule).reader
        library = pages_of(plan, self._dnnl.info.path)
        self.stream = StreamSession(self._dnnl, program, schedule, file, processors=processors, library=library)
        self.program, self._plan = program, plan

    def _close(self) -> None:
        self.stream.close()


def stored_as(plan: PlanFolder) -> Stored:
    """The kind of stored weights of a plan; those of plans of other kinds are stored whole."""
    return plan.scheduled(_Weights).weights if plan.kind == MEMORY else F32


def narrow_limit(plan: PlanFolder) -> int | None:
    """Return the limit of the memory group around this process, bytes, where it leaves a plan little room; else None."""
    limit = memory_limit()
    if limit is None or limit > plan.scheduled(_Budget).budget_bytes + _WIDE_BYTES:
        return None
    return limit


def pages_of(plan: PlanFolder, path: str) -> LibraryPages | None:
    """The pages of the library that a plan's process has in memory; None where no limit leaves it little room.

    Args:
        plan: whose profile says what is needed.
        path: of the library.
    """
    making, running = needed_pages(plan)
    return KeptPages(path, making, running) if running and narrow_limit(plan) is not None else None


def needed_pages(plan: PlanFolder) -> tuple[Runs, Runs]:
    """Return the pages of the library that making the kernels of a plan needs, and those that executing them does."""
    needed = plan.predicted(_Pages).profile
    return needed.making, needed.running


def by_coarseness(plan: PlanFolder) -> Iterator[PlanFolder]:
    """Yield a plan, then the one in finer parts beside it, if there is one."""
    yield plan
    if (plan.path / FINER_NAME).is_dir():
        yield read_folder(plan.path / FINER_NAME, MEMORY)


def choose(plans: Iterable[PlanFolder], budget: int) -> tuple[PlanFolder, StoredSchedule, Schedule] | None:
    """The fastest stored schedule that a budget is enough for, of the first of some plans that has any; None without one.

    What the budget leaves is filled with weights that it reads in each inference.
    """
    for plan in plans:
        schedules = schedules_of(plan)
        weights = plan.program_of(StreamProgram).columns.weight_bytes
        if schedules is not None and (found := schedules.fitting(budget, weights)) is not None:
            return plan, *found
    return None


def _too_small(plan: PlanFolder, budget: int) -> InfeasibleError:
    """A refusal of a budget that no schedule is stored for."""
    found = (stored for each in by_coarseness(plan) if (of := schedules_of(each)) for stored in of.stored)
    least = min((stored.budget_bytes for stored in found), default=plan.scheduled(_Budget).budget_bytes)
    what = f"{budget / _MIB:.2f} MiB is not enough: the least is {least / _MIB:.2f} MiB over idle for the slices of this plan"
    next_step = f"give {-(-least // _MIB)}MiB or more, or plan the model again with finer slices: edgeplan plan memory"
    return InfeasibleError(what, where="--budgets", next_step=next_step, proven=False)


def schedules_of(plan: PlanFolder) -> ScheduleFile | None:
    """The stored schedules of a plan; None if it has none, as plans of before."""
    if SCHEDULES_NAME not in plan.files:
        return None
    plan.require_whole(SCHEDULES_NAME)
    program, mode = plan.program_of(StreamProgram), plan.scheduled(_Mode).mode
    return ScheduleFile(
        plan.path / SCHEDULES_NAME, len(program.step_names), len(program.buffer_names), back_to_back=mode != ISOLATED
    )


def again_of(plan: PlanFolder) -> Again:
    """Read the values that plans for other budgets are made from."""
    from edgeplan.runtime.streaming.again import Again  # noqa: PLC0415  this loads numpy

    profile = plan.predicted(MemoryPrediction).profile
    if not profile:
        what = "the plan holds no profile to plan other budgets from"
        raise FormatError(what, where=str(plan.path), next_step=plan_again(plan.kind))
    layout = plan.scheduled(MemorySchedule).placed.buffer_offset
    return Again.of(plan.program_of(StreamProgram), profile, layout)
