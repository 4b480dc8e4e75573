"""Programs in folders, cut from a model, with what they take; and plans of them, as they are written."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from edgeplan.errors import InfeasibleError, ParamsError, UndecidedError
from edgeplan.graph.model_file import model_sha256
from edgeplan.planning.memory.document import MemoryPlan, memory_document
from edgeplan.planning.memory.planner import ladder, plan_streaming
from edgeplan.planning.memory.quick import Mode, PlannedMemory
from edgeplan.planning.memory.workload import Reader, Workload, least_bytes
from edgeplan.profiling.streaming import StreamProfile
from edgeplan.runtime.bands import Region
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import FINER_NAME, MEMORY, WEIGHTS_NAME, MadeFor, replacing, write_plan
from edgeplan.runtime.packed_programs import Budgeted, Measured, TapedProgram
from edgeplan.runtime.program_file import PROGRAM_BIN
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.schedules import BACK_TO_BACK, F32, MemoryPrediction, MemorySchedule, Schedule, Stored
from edgeplan.runtime.streaming.workloads import all_resident, schedule_of, workload_of
from edgeplan.support.files import write_atomically
from edgeplan.support.machine import fingerprint


@dataclass(frozen=True, slots=True)
class ModelCut:
    """A cut of a model bounds the weights of a step, and names the steps that run in bands.

    Bytes of an arena (`arena`) are those that a few parts of each step have to fit in beside its tensors, so that one is loaded
    while another is used: steps are cut finer for it; 0: none is.
    """

    limit: int
    regions: tuple[Region, ...] = ()
    arena: int = 0


@dataclass(frozen=True, slots=True)
class CostedProgram:
    """A program with what it takes.

    Attributes:
        folder: where it and its weights lie.
        form: how the model was cut.
        taped: its kernels, written down; None of one that was not written.
        cutting_s, profiling_s: seconds it took to choose kernels and write weights, and to measure.
    """

    folder: Path
    form: ModelCut
    program: StreamProgram
    profile: StreamProfile
    taped: TapedProgram | None = field(default=None, compare=False)
    cutting_s: float = 0.0
    profiling_s: float = 0.0

    @property
    def workload(self) -> Workload:
        """Make the workload that planners are asked for."""
        return workload_of(self.program, self.profile.compute_ms)

    @property
    def reader(self) -> Reader:
        """Make the reader that weights are read with."""
        return self.profile.reader

    @property
    def objects_bytes(self) -> int:
        """Return the bytes that running takes besides the arena."""
        return self.profile.objects_bytes

    def planned(self, budget: int, mode: Mode) -> PlannedMemory:
        """A plan whose arena leaves room for what running takes besides; no layout of tensors is searched for."""
        return plan_streaming(self.workload, self.reader, budget - self.objects_bytes, mode)

    def tried(self, budget: int, mode: Mode) -> PlannedMemory | None:
        """The same; None where there is none, or none was found."""
        try:
            return self.planned(budget, mode)
        except (InfeasibleError, UndecidedError):
            return None

    def documented(self, made: PlannedMemory) -> MemoryPlan:
        """A plan as a document, with the names of its steps and buffers."""
        return memory_document(made, self.workload, self.reader, self.program.step_names, self.program.buffer_names)

    def least_bytes(self) -> int:
        """Less than this is not enough, objects counted."""
        return least_bytes(self.workload) + self.objects_bytes

    def taking(self, more: int) -> CostedProgram:
        """The same, known to take so many bytes more besides the arena than was profiled."""
        profile = self.profile.model_copy(update={"objects_bytes": self.objects_bytes + more})
        return replace(self, profile=profile)


def all_bytes(candidate: CostedProgram) -> int:
    """Bytes with all weights in memory, objects counted."""
    weights = int(candidate.workload.weight_bytes.sum())
    return weights + int(candidate.workload.live_bytes.max()) + candidate.objects_bytes


@dataclass(frozen=True, slots=True)
class RunCores:
    """Processors of a run: those of the computing threads, as many as there are threads, and those of the reading ones."""

    compute: tuple[int, ...]
    reader: tuple[int, ...]

    @classmethod
    def of(cls, processors: Sequence[int], threads: int) -> RunCores:
        """The first processors compute, the others read; where there are no others, reading shares them all."""
        if not 1 <= threads <= len(processors):
            what = f"{threads} computing threads on {len(processors)} processors"
            raise ParamsError(what, where="--threads", next_step="give at most as many threads as there are processors")
        return cls(tuple(processors[:threads]), tuple(processors[threads:]) or tuple(processors))

    @property
    def all(self) -> tuple[int, ...]:
        """Return all processors of the run."""
        return tuple(sorted({*self.compute, *self.reader}))


class PlanWriter:
    """Writes programs of a model, and plans of them, for the machine and the library that are here."""

    def __init__(self, model: Path, dnnl: Dnnl, threads: int, cores: RunCores, weights: Stored = F32) -> None:
        self._model, self._dnnl, self._threads, self._cores = model, dnnl, threads, cores
        self._weights: Stored = weights

    @cached_property
    def _made(self) -> MadeFor:
        return made_for(self._model, self._dnnl, self._threads)

    def program(self, folder: Path, taped: TapedProgram, profile: StreamProfile | None = None) -> None:
        """Write a program beside its weights, as a plan that keeps them all in memory: what it takes is measured by that."""
        placed = Schedule.of(all_resident(taped.program))
        schedule = MemorySchedule(BACK_TO_BACK, placed.arena_bytes, 0, (), self._cores.compute, self._cores.reader, placed)
        prediction = MemoryPrediction(profile=profile.model_dump()) if profile else MemoryPrediction()
        schedules = [Budgeted(placed.arena_bytes, 0, 0, placed)]
        write_memory_plan(folder, taped, self._made, schedule, prediction, schedules, profile)

    def alone(
        self, folder: Path, candidate: CostedProgram, p: MemoryPlan, budget: int, error: float | None = None,
        others: Sequence[Budgeted] = (),
    ) -> None:  # fmt: skip
        """Write a plan for one budget, and schedules for others behind its own."""
        profile, placed = candidate.profile.model_dump(), Schedule.of(p.model_dump())
        prediction = MemoryPrediction(p.predicted_ms, p.lower_bound_ms, p.loaded_bytes, profile, error)
        self._fill(folder, candidate, p.mode, budget, placed, prediction, [_budgeted(p, budget), *others])

    def plan(
        self, folder: Path, candidate: CostedProgram, p: MemoryPlan, budget: int, error: float | None, finest: CostedProgram
    ) -> None:
        """The folder, built aside and put in place at once; beside the plan one in finer parts, for smaller budgets."""
        mode = Mode(p.mode)
        with replacing(folder) as building:
            self.alone(building, candidate, p, budget, error, _ladder(candidate, mode, _budgeted(p, budget)))
            if finest.least_bytes() < candidate.least_bytes():
                (building / FINER_NAME).mkdir()
                whole = Schedule.of(all_resident(finest.program))
                rows = [Budgeted(budget, 0, 0, whole), *_ladder(finest, mode)]
                profiled = MemoryPrediction(profile=finest.profile.model_dump())
                self._fill(building / FINER_NAME, finest, p.mode, budget, whole, profiled, rows)

    def _fill(
        self,
        folder: Path,
        candidate: CostedProgram,
        mode: str,
        budget: int,
        placed: Schedule,
        prediction: MemoryPrediction,
        schedules: Sequence[Budgeted],
    ) -> None:
        """Write the files of a plan, weights by a link where the file system has them."""
        assert candidate.taped is not None  # noqa: S101  it was profiled
        cores, form = self._cores, candidate.form
        regions = tuple((region.first, region.last, region.rows) for region in form.regions)
        schedule = MemorySchedule(mode, budget, form.limit, regions, cores.compute, cores.reader, placed, self._weights)
        try:
            os.link(candidate.folder / WEIGHTS_NAME, folder / WEIGHTS_NAME)
        except OSError:
            shutil.copyfile(candidate.folder / WEIGHTS_NAME, folder / WEIGHTS_NAME)
        write_memory_plan(folder, candidate.taped, self._made, schedule, prediction, schedules, candidate.profile)


def _budgeted(p: MemoryPlan, budget: int) -> Budgeted:
    return Budgeted(budget, p.predicted_ms, p.lower_bound_ms, Schedule.of(p.model_dump()))


def _ladder(candidate: CostedProgram, mode: Mode, *more: Budgeted) -> list[Budgeted]:
    """Schedules for budgets from the least to all weights in memory, by ascending budget."""
    beside = candidate.objects_bytes
    found = [
        Budgeted(made.budget + beside, made.predicted_ms, made.lower_bound_ms, schedule_of(made))
        for made in ladder(candidate.workload, candidate.reader, mode)
    ]
    return sorted([*found, *more], key=lambda one: one.budget_bytes)


def made_for(model: Path, dnnl: Dnnl, threads: int) -> MadeFor:
    """Describe the machine, library and model that plans of a model are made for."""
    info = dnnl.info
    return MadeFor(str(model.resolve()), model_sha256(model), fingerprint(), info.version, info.isa, threads)


def write_memory_plan(
    folder: Path,
    taped: TapedProgram,
    made: MadeFor,
    schedule: MemorySchedule,
    prediction: MemoryPrediction,
    schedules: Sequence[Budgeted],
    profile: StreamProfile | None = None,
) -> None:
    """Write a plan beside its weights, with its own schedule and then those for other budgets, ascending."""
    measured = None
    if profile is not None:
        of_file = profile.bytes_per_ms / (2 if profile.widened_per_ms else 1)
        measured = Measured(of_file, profile.others, profile.making, profile.running)
    content = taped.packed(
        folder / WEIGHTS_NAME, schedules,
        isolated=schedule.mode != BACK_TO_BACK, readers=schedule.reader, measured=measured,
    )  # fmt: skip
    write_atomically(folder / PROGRAM_BIN, lambda temporary: temporary.write_bytes(content))
    write_plan(folder, MEMORY, made, schedule, prediction, (PROGRAM_BIN,))
