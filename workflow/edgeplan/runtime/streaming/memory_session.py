"""A plan of memory, opened: its weights come from the disk while it runs, and its budget can be changed."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
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
from edgeplan.support.lazy import lazily
from edgeplan.support.machine import fingerprint

if TYPE_CHECKING:
    from edgeplan.runtime.streaming import background
    from edgeplan.runtime.streaming.again import Again
    from edgeplan.runtime.streaming.background import BackgroundPlan
else:  # whose budget does not change starts no process
    background = lazily("edgeplan.runtime.streaming.background")

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
        budget: bytes over idle, to run by the fastest stored schedule that they are enough for; None: as it was planned.

    Attributes:
        program: what is run.
        stream: the session that runs it.
        mode: how inferences follow each other.
        isolated: whether memory is filled before each inference; else they follow each other.
        budget_bytes: that it was planned for.
        predicted_ms: of an inference under that budget.
        bytes_per_ms: of reading weights, when it was planned; 0: nobody knows.
        others: share of the processors' time that other work had while it was planned, 0 to 1.

    Raises:
        FormatError: the plan is for another machine or library, or a file is damaged.
        ModelError: the weights are missing or damaged.
        InfeasibleError: no stored schedule is within the budget.
    """

    def __init__(self, plan: PlanFolder, dnnl: Dnnl | None = None, budget: int | None = None) -> None:
        dnnl = dnnl or Dnnl()
        given = plan
        plan, chosen = (plan, None) if budget is None else _chosen(plan, budget)
        plan.require_here(fingerprint(), dnnl.info.version, dnnl.info.isa)
        read = plan.require_whole(WEIGHTS_NAME)
        schedule, self.program, self._plan = plan.scheduled(MemorySchedule), plan.program_of(StreamProgram), plan
        predicted = plan.predicted(_Latency)
        self.predicted_ms, measured = predicted.ms, predicted.profile
        self.bytes_per_ms = measured.bytes_per_ms / (2 if measured.widened_per_ms else 1)  # of the file
        self.others = measured.others
        self.mode, self.isolated, self.budget_bytes = schedule.mode, schedule.mode == ISOLATED, schedule.budget_bytes
        placed = schedule.placed
        if chosen is not None:
            stored, placed = chosen
            self.predicted_ms, self.budget_bytes = stored.predicted_ms, stored.budget_bytes
        super().__init__(self.program.inputs, plan.path)
        file = WeightsFile(plan.path / WEIGHTS_NAME, self.program.weights_bytes, drop=read)
        library = pages_of(plan, dnnl.info.path)
        self.stream = StreamSession(dnnl, self.program, placed, file, processors=schedule.reader, library=library)
        self._dnnl, self._given = dnnl, given
        self._anew: BackgroundPlan | None = None

    @cached_property
    def again(self) -> Again:
        """Return the values that plans for other budgets are made from.

        Who asks first waits for numpy, and for a plan made for nothing.
        """
        from edgeplan.runtime.streaming.again import warm_up  # noqa: PLC0415  this loads numpy

        warm_up()  # so that a change of the budget waits for planning alone
        return again_of(self._finest)

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        import numpy as np  # noqa: PLC0415  who takes bytes needs none

        self.take_better()
        found = self.stream.run({name: np.ascontiguousarray(value).data for name, value in inputs.items()})
        return {b.name: np.frombuffer(found[b.name], b.dtype).reshape(b.shape) for b in self.program.outputs}

    def adapt(self, budget: int) -> tuple[float, float]:
        """Run by the fastest stored schedule that a budget is enough for from now on.

        A budget that is too small for the parts of the plan's steps is one for the plan in finer parts that lies beside it: its
        kernels are made then, which takes longer. Where memory is left over, another process plans for all of it meanwhile; see
        `take_better`.

        Args:
            budget: bytes over idle.

        Returns:
            The milliseconds predicted of an inference, and those that choosing took.

        Raises:
            InfeasibleError: the budget is too small.
        """
        self._forget_plan()
        began = time.perf_counter()
        if (chosen := choose(by_coarseness(self._given), budget)) is not None:
            plan, stored, schedule = chosen
            chosen_ms = (time.perf_counter() - began) * 1e3
            self._use(plan, schedule)
            if budget > stored.budget_bytes and schedule.reads:
                self._anew = background.BackgroundPlan(str(self._plan.path), budget)
            return stored.predicted_ms, chosen_ms
        made = self.again.planned(budget, self.mode)  # of plans without schedules; else it says what is too small
        planned_ms = (time.perf_counter() - began) * 1e3
        from edgeplan.runtime.streaming.again import schedule_of  # noqa: PLC0415  this loads numpy

        self._use(self._finest, schedule_of(made))
        return made.predicted_ms, planned_ms

    def take_better(self) -> float | None:
        """Run by the plan that another process has made for the present budget, if it is made and faster than what is stored.

        A session asks before each inference of `run`; who runs `stream` asks between two.

        Returns:
            The milliseconds predicted of an inference by the new plan; None where nothing has changed.
        """
        if self._anew is None or not self._anew.is_made:
            return None
        try:
            if not self._anew.path.exists():  # nothing is faster, or planning failed
                return None
            steps, buffers = len(self.program.step_names), len(self.program.buffer_names)
            made = ScheduleFile(self._anew.path, steps, buffers, back_to_back=not self.isolated)
            self.stream.apply(made.schedule(made.stored[0]))
            return made.stored[0].predicted_ms
        finally:
            self._forget_plan()

    @property
    def plans_anew(self) -> bool:
        """Tell whether another process plans for the present budget."""
        return self._anew is not None

    def _forget_plan(self) -> None:
        """End the planning for a budget that is none any more."""
        if self._anew is not None:
            self._anew.close()
            self._anew = None

    @property
    def _finest(self) -> PlanFolder:
        """The plan in the finest parts that there are."""
        *_, finest = by_coarseness(self._given)
        return finest

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
        self._forget_plan()
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

    Raises:
        FormatError: schedules are damaged.
    """
    for plan in plans:
        schedules = schedules_of(plan)
        if schedules is not None and (stored := schedules.fitting(budget)) is not None:
            return plan, stored, schedules.schedule(stored)
    return None


def _chosen(plan: PlanFolder, budget: int) -> tuple[PlanFolder, tuple[StoredSchedule, Schedule]]:
    """The fastest stored schedule for a budget, with the plan that it is of: this one, or the one in finer parts.

    Raises:
        InfeasibleError: there is none.
    """
    found = choose(by_coarseness(plan), budget)
    if found is None:
        raise InfeasibleError(
            f"{budget / _MIB:.2f} MiB is below all budgets that the plan has schedules for",
            where=str(plan.path),
            next_step="give more, or plan the model again: edgeplan plan memory",
            proven=False,
        )
    return found[0], found[1:]


def schedules_of(plan: PlanFolder) -> ScheduleFile | None:
    """The stored schedules of a plan; None if it has none, as plans of before.

    Raises:
        FormatError: they are damaged.
    """
    if SCHEDULES_NAME not in plan.files:
        return None
    plan.require_whole(SCHEDULES_NAME)
    program, mode = plan.program_of(StreamProgram), plan.scheduled(_Mode).mode
    return ScheduleFile(
        plan.path / SCHEDULES_NAME, len(program.step_names), len(program.buffer_names), back_to_back=mode != ISOLATED
    )


def again_of(plan: PlanFolder) -> Again:
    """Read the values that plans for other budgets are made from.

    Raises:
        FormatError: the plan holds no profile, or one of another program.
    """
    from edgeplan.runtime.streaming.again import Again  # noqa: PLC0415  this loads numpy

    profile = plan.predicted(MemoryPrediction).profile
    if not profile:
        what = "the plan holds no profile to plan other budgets from"
        raise FormatError(what, where=str(plan.path), next_step=plan_again(plan.kind))
    layout = plan.scheduled(MemorySchedule).placed.buffer_offset
    return Again.of(plan.program_of(StreamProgram), profile, layout)
