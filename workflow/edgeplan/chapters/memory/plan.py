"""From a model and a budget of memory to a plan folder: cut, profile, plan, and run once to see that the budget holds."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from msgspec import structs

from edgeplan.chapters.memory.budget import MIB, mib
from edgeplan.chapters.memory.costed import CostedProgram, ModelCut, all_bytes
from edgeplan.chapters.memory.proof import Proof, Prover
from edgeplan.engines.onnxruntime.reference import reference_outputs
from edgeplan.errors import InfeasibleError, ModelError, ParamsError, UndecidedError
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.graph.steps import Lowered
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process.inputs import Array, random_inputs
from edgeplan.measurement.process.memory_group import NoGroupError
from edgeplan.planning.layout.buffers import BufferLayout, Ints
from edgeplan.planning.memory import bounds, ladder
from edgeplan.planning.memory.document import MemoryPlan
from edgeplan.planning.memory.planner import least, lowest
from edgeplan.planning.memory.quick import Mode, PlannedMemory, best, bound_ms
from edgeplan.planning.memory.search import improved
from edgeplan.profiling.streaming import (
    RunSettings,
    StreamProfile,
    StreamRun,
    plan_document,
    profile_program,
    run_apart,
)
from edgeplan.profiling.subjects import require_exact
from edgeplan.runtime.bands import regions_by_peak
from edgeplan.runtime.creation import Implementation
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import (
    FINER_NAME,
    MEMORY,
    WEIGHTS_NAME,
    MadeFor,
    replacing,
    write_plan,
)
from edgeplan.runtime.folder_lock import work_folder
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.packed_programs import Budgeted, Measured, TapedProgram
from edgeplan.runtime.program import activation_layouts
from edgeplan.runtime.program_file import PROGRAM_BIN
from edgeplan.runtime.streaming.build import Built, build, halvable, write_weights
from edgeplan.runtime.streaming.halves import F32, HALVES_TOLERANCE, Stored
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.schedules import BACK_TO_BACK, MemoryPrediction, MemorySchedule, Schedule
from edgeplan.runtime.streaming.workloads import all_resident, schedule_of, workload_of
from edgeplan.support.files import write_atomically
from edgeplan.support.machine import fingerprint
from edgeplan.support.tensors import relative_error
from edgeplan.writable import cannot_write

_log = logging.getLogger(__name__)
#: Bytes of weights of a part of a step that are tried, the coarsest first: what they cost is measured, not known beforehand.
LIMITS = (1 << 40, 4 * MIB, 2 * MIB, MIB, MIB // 2, MIB // 4)
_WORK_PREFIX = ".planning-"  # of folders beside the plan; those of killed processes go with the next planning
_ATTEMPTS = 5  # to hold the budget in a run
_FOUND_ATTEMPTS = 8  # with a budget that the search has found, which grows each time
_IDLE_BYTES = 128 * MIB  # more than the idle process takes, with what is read ahead of it
_SLACK_BYTES = 256 << 10  # pages that come and go from run to run
_ADVICE_BYTES = 3 * MIB // 4  # that another process was seen to take more: a budget that is advised leaves as much
_SURE_BYTES = 2 * MIB  # kernels and pages of the library take no less
_ROOM_BYTES = 2 * MIB  # that forms may take less for kernels than the whole one
_GAIN = 0.005  # another form has to gain so much
_SEARCHED = 3  # forms whose layouts of tensors are searched for
_SLOTS = 3  # parts of a step that should fit in the arena beside its tensors: one in use, two on their way
_FINEST_BYTES = 64 << 10  # of such a part: a read of less costs more than its bytes
_ARENA_STEP = MIB // 4  # arenas that forms are cut for: near budgets share their forms


class TooSmallError(InfeasibleError):
    """A budget is below what a model needs.

    Attributes:
        enough: bytes over idle that are needed, as far as is known.
    """

    def __init__(self, what: str, *, where: str, next_step: str, proven: bool, enough: int) -> None:
        super().__init__(what, where=where, next_step=next_step, proven=proven)
        self.enough = enough


@dataclass(frozen=True, slots=True)
class RunCores:
    """Processors of a run: computing threads, and reading ones.

    Attributes:
        compute: of the computing threads; their number is that of the threads.
        reader: of the reading threads.
    """

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


@dataclass(frozen=True, slots=True)
class MemoryPlanned:
    """A plan folder, and what is known about it.

    Attributes:
        folder: of the plan.
        document: the plan.
        candidate: the program that it is for, with what its run took besides the arena.
        budget: bytes over idle, all pages.
        run: the run that showed that the budget holds.
        proof: what a run showed that a memory cgroup held to the budget, or why there was none.
        weights: how they are stored.
        error: of weights in half their bytes: the largest difference of that run's outputs from ONNX Runtime's, relative to the
            largest magnitude; None where weights are stored whole, or ONNX Runtime cannot run the model.
    """

    folder: Path
    document: MemoryPlan
    candidate: CostedProgram
    budget: int
    run: StreamRun
    proof: Proof
    weights: Stored = F32
    error: float | None = None

    @property
    def inexact(self) -> bool:
        """Return whether outputs differ by more than such weights may cost."""
        return self.error is not None and not self.error <= HALVES_TOLERANCE

    @property
    def read_bytes(self) -> int:
        """Return the bytes of the file that are read during an inference."""
        plan, steps = self.document, self.candidate.program.steps
        again = [
            after >= 0 if plan.mode == "isolated" else own != k
            for k, (after, own) in enumerate(zip(plan.after, plan.again, strict=True))
        ]
        return sum(step.stored_bytes for step, loads in zip(steps, again, strict=True) if loads)


@dataclass(frozen=True, slots=True)
class _Held:
    """A plan that a run held to its budget, with the bytes that runs took more than was profiled."""

    document: MemoryPlan
    candidate: CostedProgram
    budget: int
    excess: int
    run: StreamRun
    proof: Proof


class Planner:
    """Plans one model; programs and profiles are kept from one budget to the next.

    Args:
        model: the ONNX file.
        work: an empty folder for programs and their weights.
        threads: that compute.
        cores: of the runs.
        runs: inferences of a profile.
        weights: how they are stored.

    Attributes:
        values: seeded inputs of all runs; inputs: the same in files.
        total: whether budgets and what is beside them are a limit of the whole process, from its start on.
        beside_bytes: what users count to a budget beside it, the idle process or nothing: messages add it.
    """

    def __init__(self, model: Path, work: Path, threads: int, cores: RunCores, runs: int = 7, weights: Stored = F32) -> None:
        self._model, self._work, self._threads, self.cores, self._runs = model, work, threads, cores, runs
        self._weights: Stored = weights
        graph = simplify(load_onnx(model))
        require_exact(graph, str(model))
        self.lowered: Lowered = lower(graph)
        self._halved = halvable(model, self.lowered, weights) if weights != F32 else frozenset[str]()
        self._dnnl = Dnnl()
        layouts, block = activation_layouts(self.lowered, BLOCKED), self._dnnl.info.block
        ladder = regions_by_peak(self.lowered, layouts, BLOCKED, block)
        self.forms = tuple(ModelCut(limit, regions) for regions in ladder for limit in LIMITS)
        self._built: dict[ModelCut, Built] = {}
        self._chosen: dict[object, Implementation] = {}
        self._candidates: dict[ModelCut, CostedProgram] = {}
        self._taped: dict[ModelCut, TapedProgram] = {}
        self._layouts: dict[ModelCut, Ints] = {}
        shapes = {name: self.lowered.shapes[name] for name in self.lowered.inputs}
        self.values = random_inputs(shapes, 0, self.lowered.types, self.lowered.limits)  # tokens from all of a vocabulary
        self.inputs = _written(self.values, work)
        self.beside_bytes = 0
        self.total = False
        self._more = 0  # bytes that groups charged runs with, more than was profiled
        if not self.built(self.forms[0]).program.step_names:
            what = "the model computes nothing: it hands its inputs on, and there is no memory to plan"
            raise ModelError(what, where=str(model), next_step="plan a model that computes something")

    def candidate(self, form: ModelCut) -> CostedProgram:
        """The program of a form, written with its weights and profiled."""
        if form not in self._candidates:
            began = time.perf_counter()
            program = self.built(form).program
            same = [c for f, c in self._candidates.items() if self.built(f).program.steps == program.steps]
            if same:
                return same[0]
            folder = self._folder(form)
            folder.mkdir()
            try:
                write_weights(self._dnnl, self._model, self.lowered, self.built(form), folder / WEIGHTS_NAME)
            except OSError as error:
                raise cannot_write(error, folder) from error
            taped = self._taped[form] = TapedProgram(program)
            write_folder(folder, taped, self._made_for, self.cores)
            written = time.perf_counter()
            profile = profile_program(folder, program, self.settings(self._runs, profile=True))
            write_folder(folder, taped, self._made_for, self.cores, profile)
            times = written - began, time.perf_counter() - written
            self._candidates[form] = CostedProgram(folder, form, program, profile, *times)
        return self._candidates[form]

    def built(self, form: ModelCut) -> Built:
        """The program of a form; nothing is written."""
        if form not in self._built:
            limits = self._limits(form)
            with self._dnnl.without_primitive_cache():  # what is chosen must be offered in a fresh process, too
                self._built[form] = build(
                    self._dnnl, self.lowered, BLOCKED, form.limit, self._threads, form.regions, known=self._chosen,
                    limits=limits, halved=self._halved, halves=self._weights,
                )  # fmt: skip
        return self._built[form]

    def fitted(self, budget: int) -> tuple[ModelCut, ...]:
        """Forms whose steps are cut no finer than an arena of this budget asks for; one for each choice of bands.

        Args:
            budget: bytes over idle.
        """
        base = self.candidate(self.forms[0])
        arena = (budget - base.objects_bytes) // _ARENA_STEP * _ARENA_STEP
        ladder = dict.fromkeys(form.regions for form in self.forms)
        found = [ModelCut(LIMITS[0], regions, arena) for regions in ladder] if arena > 0 else []
        return tuple(form for form in found if self._limits(form))

    def _limits(self, form: ModelCut) -> dict[str, int]:
        """The bytes of weights that the parts of single steps may have, so that a few fit beside the step's tensors."""
        if not form.arena:
            return {}
        program = self.built(replace(form, arena=0)).program
        live = workload_of(program, [0.0] * len(program.steps)).live_bytes
        found = {}
        for step, bytes_beside in zip(program.steps, live.tolist(), strict=True):
            room = max((form.arena - bytes_beside) // _SLOTS, _FINEST_BYTES)
            limit = 1 << (room.bit_length() - 1)  # few sizes: parts of the same size share their kernel
            if step.weight_bytes > room:
                found[step.name] = limit
        return found

    def _folder(self, form: ModelCut) -> Path:
        return self._work / f"form-{list(self._built).index(form)}"

    def _least(self, form: ModelCut) -> int:
        """Bound the bytes of activations and weights of a form from below, nothing measured."""
        program = self.built(form).program
        return bounds.least_bytes(workload_of(program, [0.0] * len(program.steps)))

    def _estimated(self, form: ModelCut) -> CostedProgram:
        """A form as if cutting cost no more than in one with the same bands, or nothing: a step's parts share its time."""
        alike = (f for f in self._candidates if f.regions == form.regions)
        base = self.candidate(next(alike, self.forms[0]))
        times: dict[int, float] = {}
        for origin, ms in zip(self.built(base.form).origin, base.profile.compute_ms, strict=True):
            times[origin] = times.get(origin, 0.0) + ms
        built = self.built(form)
        parts: dict[int, list[int]] = {}
        for k, origin in enumerate(built.origin):
            parts.setdefault(origin, []).append(k)
        compute, weights = (
            np.zeros(len(built.origin)),
            np.array([step.weight_bytes for step in built.program.steps], np.float64),
        )
        for origin, members in parts.items():
            share = weights[members]
            share = share if share.all() else np.ones(len(members))
            compute[members] = times.get(origin, 0.0) * share / share.sum()
        profile = base.profile.model_copy(update={"compute_ms": tuple(compute.tolist())})
        return CostedProgram(self._folder(form), form, built.program, profile)

    def _lowest(self, form: ModelCut) -> Ints:
        if form not in self._layouts:
            program = self.built(form).program
            self._layouts[form] = lowest(workload_of(program, [0.0] * len(program.steps)))
        return self._layouts[form]

    @property
    def idle_bytes(self) -> int:
        """Resident memory of the process that runs plans, before it opens one."""
        return self.candidate(self.forms[0]).profile.idle_bytes

    def settings(self, runs: int, *, profile: bool = False, isolated: bool = False) -> RunSettings:
        """Return the settings that programs are run with."""
        return RunSettings(
            self.inputs, self.cores.all, self.cores.reader, runs, isolated,
            bandwidth_passes=5 if profile else 0, steps=profile,
        )  # fmt: skip

    def best(self, budget: int, mode: Mode, excess: int = 0) -> tuple[CostedProgram, PlannedMemory]:
        """The fastest plan over all forms, by prediction.

        A form that was not profiled is priced as if cutting cost nothing. The one of the best price is profiled and priced
        again, until that is one that was; of forms as good the coarser one comes first.

        Args:
            budget: bytes over idle.
            mode: what is planned for.
            excess: bytes of it to leave, which runs took more than was profiled.
        """
        room = budget - excess
        possible = [form for form in (*self.forms, *self.fitted(room)) if self._least(form) + _SURE_BYTES <= room]
        found = {form: self._planned(form, room, mode) for form in possible if form in self._candidates}
        hopes = {form: self._hope(form, room, mode) for form in possible if form not in self._candidates}
        while hopes:
            form = min(hopes, key=hopes.__getitem__)
            known = [pair[1].predicted_ms for pair in found.values() if pair]
            if hopes[form] > (1 - _GAIN) * min(known, default=sys.float_info.max):
                break
            del hopes[form]
            self.candidate(form)
            found[form] = self._planned(form, room, mode)
            hopes |= {f: self._hope(f, room, mode) for f in hopes if f.regions == form.regions}
        pairs = sorted((pair for pair in found.values() if pair), key=lambda pair: pair[1].predicted_ms)
        if not pairs:
            raise self._does_not_fit(budget, excess)
        return _searched(pairs)

    def _hope(self, form: ModelCut, budget: int, mode: Mode) -> float:
        """Milliseconds of a form that was not profiled; infinite if it cannot fit."""
        guess = self._estimated(form)
        room = budget - guess.objects_bytes
        made = best(guess.workload, guess.reader, room, mode, [self._lowest(form)], again=True)
        return made.predicted_ms if made else bound_ms(guess.workload, guess.reader, room + _ROOM_BYTES, mode)

    def _planned(self, form: ModelCut, budget: int, mode: Mode) -> tuple[CostedProgram, PlannedMemory] | None:
        candidate = self.candidate(form)
        if budget < candidate.least_bytes():  # what would be enough is not looked for: another form may fit
            return None
        try:
            return candidate, candidate.planned(budget, mode)
        except (InfeasibleError, UndecidedError):
            return None

    @property
    def fastest_ms(self) -> float:
        """An inference with all weights in memory, no step cut."""
        return float(np.sum(self.candidate(self.forms[0]).profile.compute_ms))

    def least_bytes(self) -> int:
        """Return the bytes that the finest form needs at least, objects counted."""
        return self.candidate(min(self.forms, key=self._least)).least_bytes()

    def documented(self, candidate: CostedProgram, made: PlannedMemory) -> MemoryPlan:
        """A plan as a document."""
        return plan_document(candidate.program, candidate.workload, candidate.reader, made)

    def _does_not_fit(self, budget: int, excess: int) -> TooSmallError:
        candidate, layout = self._finest_layout
        bound = layout.lower_bound + candidate.objects_bytes
        enough = layout.height + candidate.objects_bytes + excess
        if excess:
            why = f"runs take {mib(excess)} more than was profiled"
        elif layout.proven:
            why = "proven for the finest slices and bands"
        else:
            why = f"{mib(bound + self.beside_bytes)} proven"
        what = f"the least is {mib(enough + self.beside_bytes)}"
        return self._too_small(budget, what, enough, f" ({why})", proven=budget < bound)

    @cached_property
    def _finest_layout(self) -> tuple[CostedProgram, BufferLayout]:
        """The finest form, and the least that its buffers were laid out in: looked for once, whatever the budgets refused."""
        candidate = self.candidate(min(self.forms, key=self._least))
        return candidate, least(candidate.workload)

    def _too_small(self, budget: int, what: str, enough: int, why: str = "", *, proven: bool = False) -> TooSmallError:
        of = "for the process" if self.beside_bytes else "over idle"
        what = f"{mib(budget + self.beside_bytes)} is not enough: {what} {of}{why}"
        next_step = f"give --budget {-(-(enough + _ADVICE_BYTES + self.beside_bytes) // MIB)}MiB or more"
        return TooSmallError(what, where="--budget", next_step=next_step, proven=proven, enough=enough)

    def tried(self, refusal: TooSmallError, mode: Mode) -> TooSmallError:
        """A refusal whose advice was tried: its budget is planned for and run, and grows by what the run takes more.

        Args:
            refusal: of a budget, its advice from profiles.
            mode: what is planned for.
        """
        enough = refusal.enough
        for _ in range(_ATTEMPTS):
            try:
                self._held(enough + _SLACK_BYTES, mode)
            except TooSmallError as again:
                enough = max(again.enough, enough + _SLACK_BYTES)
            else:
                break
        next_step = f"give --budget {-(-(enough + _ADVICE_BYTES + self.beside_bytes) // MIB)}MiB or more"
        return TooSmallError(refusal.what, where=refusal.where, next_step=next_step, proven=refusal.proven, enough=enough)

    def enough(self, mode: Mode) -> int:
        """Return about the least budget, over idle, that a run was seen to hold and another one will."""
        return self.tried(self._does_not_fit(0, 0), mode).enough + _ADVICE_BYTES

    def least_for(self, slowdown: float, mode: Mode) -> int:
        """The least budget found whose plan is at most so much slower than with all weights in memory, by prediction.

        Args:
            slowdown: relative, e.g. 0.05.
            mode: what is planned for.
        """
        found = []
        for form in self.forms:
            target_ms = self.fastest_ms * (1 + slowdown)
            if (budget := _least_within(self.candidate(form), target_ms, mode)) is not None:
                found.append(budget)
        if not found:
            raise InfeasibleError(
                f"no plan is at most {100 * slowdown:g} % slower than with all weights in memory",
                where="--max-slowdown",
                next_step="allow more",
                proven=False,
            )
        return min(found)

    def curve(self, mode: Mode, points: int = 24) -> list[tuple[int, float, float]]:
        """Budget (bytes), predicted time and bound (ms), from the least that fits to all weights in memory."""
        candidates = [self.candidate(form) for form in self.forms]
        low = min(candidate.least_bytes() for candidate in candidates)
        high = all_bytes(candidates[0])
        found = []
        for budget in np.geomspace(low, max(low + 1, high), points).astype(np.int64).tolist():
            made = []
            for candidate in candidates:
                try:
                    made.append(candidate.planned(budget, mode))
                except (InfeasibleError, UndecidedError):
                    continue
            if made:
                best = min(made, key=lambda planned: planned.predicted_ms)
                found.append((budget, best.predicted_ms, min(planned.lower_bound_ms for planned in made)))
        return found

    def write(self, budget: int, mode: Mode, folder: Path, *, found: bool = False) -> MemoryPlanned:
        """Plan, run, and write the folder: a plan whose run took more than the budget is made again with less.

        What runs took more is kept with the profile: whoever plans again from it leaves as much.

        Args:
            budget: bytes over idle.
            mode: what is planned for.
            folder: of the plan.
            found: nobody named the budget, `least_for` found it: it becomes what the run took where that is more.
        """
        held = self._held(budget, mode, found=found)
        error = self._error(held.candidate.program)
        planned = MemoryPlanned(folder, held.document, held.candidate, held.budget, held.run, held.proof, self._weights, error)
        self._put(planned, held.excess)
        return planned

    def _held(self, budget: int, mode: Mode, *, found: bool = False) -> _Held:
        """A plan whose run held its budget; nothing is written. See `write`."""
        excess = self._more
        for attempt in range(_FOUND_ATTEMPTS if found else _ATTEMPTS):
            slack = _SLACK_BYTES << attempt  # a run that met its limit does not say by how much
            candidate, made = self.best(budget, mode, excess)
            plan_document = self.documented(candidate, made)
            outputs = self._output_files(candidate.program)
            settings = replace(self.settings(3, isolated=mode is Mode.isolated), outputs=outputs)
            run = run_apart(candidate.folder, [plan_document.model_dump()], settings)
            if found:  # by prediction, to the last page: another run may take some more
                taken = max(budget, run.taken_bytes + _SLACK_BYTES)
                budget, excess = taken, taken - budget
            taken = run.taken_bytes
            if taken <= budget:
                known = candidate.taking(excess)
                proof = self._proven(known, plan_document, budget, run.files)
                if proof.holds or proof.reason:
                    return _Held(plan_document, known, budget, excess, run, proof)
                taken = max(proof.taken_bytes, budget + 1)
                missing = taken - budget + slack
                budget, self._more = (budget + missing, self._more) if found else (budget, self._more + missing)
                excess += missing
                continue
            excess += run.taken_bytes - budget + _SLACK_BYTES
        raise self._too_small(budget, f"runs take {mib(taken + self.beside_bytes)}", taken + MIB)

    def _proven(self, candidate: CostedProgram, plan_document: MemoryPlan, budget: int, files: Sequence[str]) -> Proof:
        """Have a memory cgroup hold a run of a plan to its budget."""
        prover, p = self.prover(files), plan_document
        if not self.total:
            settings = self.settings(5, isolated=p.mode == Mode.isolated)
            return prover.over_idle(candidate.folder, p.model_dump(), settings, budget)
        folder = self._work / "total"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        placed = Schedule.of(p.model_dump())
        cores = self.cores
        schedule = MemorySchedule(p.mode, budget, 0, (), cores.compute, cores.reader, placed, self._weights)
        prediction = MemoryPrediction(p.predicted_ms, p.lower_bound_ms, p.loaded_bytes, candidate.profile.model_dump())
        self._fill(folder, candidate, schedule, prediction, [Budgeted(budget, p.predicted_ms, p.lower_bound_ms, placed)])
        limit = budget + self.beside_bytes
        proof = prover.total(folder, limit)
        if proof.ended and not proof.idle_bytes:
            least_start = prover.least_start(folder, limit)
            what = f"the process does not start in {mib(limit)}: it starts in {mib(least_start)}"
            next_step = f"give --budget {-(-least_start // MIB)}MiB or more"
            enough = least_start - self.beside_bytes
            raise TooSmallError(what, where="--budget", next_step=next_step, proven=False, enough=enough)
        return proof

    def prover(self, files: Sequence[str]) -> Prover:
        """Make what holds runs to limits.

        Args:
            files: that the process of a plan maps.
        """
        return Prover(self._work / "libraries", files)

    def hold_total(self) -> None:
        """From now on a budget and what is beside it are a limit of the whole process from its start on, as of a container."""
        self.total, self.beside_bytes = True, self.idle_in_group

    def hold_over_idle(self) -> None:
        """From now on budgets are over idle."""
        self.total, self.beside_bytes = False, 0

    @cached_property
    def idle_in_group(self) -> int:
        """Bytes of a group before `edgeplan-run` opens a plan in it; its resident memory where there are no groups."""
        base = self.candidate(self.forms[0])
        files = run_apart(base.folder, [None], self.settings(2)).files
        try:
            return self.prover(files).idle_bytes(base.folder, all_bytes(base) + _IDLE_BYTES) or self.idle_bytes
        except NoGroupError:
            return self.idle_bytes

    def _output_files(self, program: StreamProgram) -> dict[str, Path]:
        """Where outputs go of runs that are held to ONNX Runtime: those with weights in half their bytes."""
        halved = self._weights != F32
        return {border.name: self._work / f"output-{k}.bin" for k, border in enumerate(program.outputs)} if halved else {}

    def _error(self, program: StreamProgram) -> float | None:
        """The largest relative difference of the last run's outputs from ONNX Runtime's, said where it is too large."""
        if not (files := self._output_files(program)):
            return None
        try:
            expected = self._expected
        except ModelError as error:
            _log.warning("what weights as %s cost is not known: %s", self._weights, error.what)
            return None
        found = [np.fromfile(files[border.name], border.dtype).reshape(border.shape) for border in program.outputs]
        difference = relative_error(found, [expected[name] for name in files])
        if not difference <= HALVES_TOLERANCE:
            _log.warning(
                "outputs differ from ONNX Runtime's by %.1e of the largest magnitude, more than %g: weights as %s are too "
                "inexact for this model; plan it with whole ones: --weights %s",
                *(difference, HALVES_TOLERANCE, self._weights, F32),
            )
        return difference

    @cached_property
    def _expected(self) -> Mapping[str, Array]:
        """ONNX Runtime's outputs for the inputs of all runs."""
        return reference_outputs(self._model, self.values)

    def _put(self, planned: MemoryPlanned, excess: int) -> None:
        """The folder, built aside and put in place at once; beside the plan one in finer parts, for smaller budgets."""
        candidate, p, cores, budget, folder = planned.candidate, planned.document, self.cores, planned.budget, planned.folder
        regions = tuple((region.first, region.last, region.rows) for region in candidate.form.regions)
        placed = Schedule.of(p.model_dump())
        schedule = MemorySchedule(
            p.mode, budget, candidate.form.limit, regions, cores.compute, cores.reader, placed, self._weights
        )
        profile = candidate.profile.model_dump()
        prediction = MemoryPrediction(p.predicted_ms, p.lower_bound_ms, p.loaded_bytes, profile, planned.error)
        finest = self.candidate(min(self.forms, key=self._least)).taking(excess)
        with replacing(folder) as building:
            own = Budgeted(budget, p.predicted_ms, p.lower_bound_ms, placed)
            self._fill(building, candidate, schedule, prediction, [own, *self._ladder(candidate, Mode(p.mode), own)])
            if finest.least_bytes() < candidate.least_bytes():
                (building / FINER_NAME).mkdir()
                regions = tuple((region.first, region.last, region.rows) for region in finest.form.regions)
                whole = Schedule.of(all_resident(finest.program))
                fine = structs.replace(schedule, limit_bytes=finest.form.limit, regions=regions, placed=whole)
                rows = [Budgeted(budget, 0, 0, whole), *self._ladder(finest, Mode(p.mode))]
                profiled = MemoryPrediction(profile=finest.profile.model_dump())
                self._fill(building / FINER_NAME, finest, fine, profiled, rows)

    def _fill(
        self,
        folder: Path,
        candidate: CostedProgram,
        schedule: MemorySchedule,
        prediction: MemoryPrediction,
        schedules: Sequence[Budgeted],
    ) -> None:
        """Write the files of a plan: its own schedule, then those for other budgets."""
        _placed(candidate.folder / WEIGHTS_NAME, folder / WEIGHTS_NAME)
        taped = self._taped[candidate.form]
        write_memory_plan(folder, taped, self._made_for, schedule, prediction, schedules, candidate.profile)

    def _ladder(self, candidate: CostedProgram, mode: Mode, *more: Budgeted) -> list[Budgeted]:
        """Schedules for budgets from the least to all weights in memory, by ascending budget."""
        work, reader, beside = candidate.workload, candidate.reader, candidate.objects_bytes
        tightest = least(work)
        layouts = [lowest(work), tightest.offsets[: len(work.tensors)]]
        wanted = ladder.budgets(work, reader, mode, layouts, tightest.height, ladder.smallest(work, layouts))
        found = [
            Budgeted(made.budget + beside, made.predicted_ms, made.lower_bound_ms, schedule_of(made))
            for made in ladder.plans(work, reader, mode, layouts, wanted)
        ]
        return sorted([*found, *more], key=lambda one: one.budget_bytes)

    @cached_property
    def _made_for(self) -> MadeFor:
        return made_for(self._model, self._dnnl, self._threads)


def _searched(pairs: Sequence[tuple[CostedProgram, PlannedMemory]]) -> tuple[CostedProgram, PlannedMemory]:
    """The fastest of some plans once layouts of tensors are searched for, those whose bounds leave hope; sorted by time."""
    best: tuple[CostedProgram, PlannedMemory] | None = None
    for candidate, made in pairs[:_SEARCHED]:
        if best is None or made.lower_bound_ms < (1 - _GAIN) * best[1].predicted_ms:
            better = improved(candidate.workload, candidate.reader, made)
            if best is None or better.predicted_ms < best[1].predicted_ms:
                best = candidate, better
    assert best is not None  # noqa: S101  there is a plan
    return best


def _least_within(candidate: CostedProgram, target_ms: float, mode: Mode) -> int | None:
    """The least budget, to a hundredth, with a plan within a time; None if there is none."""
    low, high = candidate.least_bytes(), all_bytes(candidate) + (1 << 20)

    def fits(budget: int) -> bool:
        try:
            return candidate.planned(budget, mode).predicted_ms <= target_ms
        except (InfeasibleError, UndecidedError):
            return False

    if not fits(high):
        return None
    while high - low > max(high // 100, 1 << 16):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _placed(source: Path, target: Path) -> None:
    """A file in another folder: a link where the file system has them, else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _written(values: Mapping[str, Array], work: Path) -> Mapping[str, Path]:
    found = {}
    for number, (name, value) in enumerate(values.items()):
        found[name] = work / f"input-{number}.bin"
        found[name].write_bytes(np.ascontiguousarray(value).tobytes())
    return found


def made_for(model: Path, dnnl: Dnnl, threads: int) -> MadeFor:
    """Describe the machine, library and model that plans of a model are made for."""
    info = dnnl.info
    return MadeFor(str(model.resolve()), model_sha256(model), fingerprint(), info.version, info.isa, threads)


def write_folder(
    folder: Path,
    program: StreamProgram | TapedProgram,
    made: MadeFor,
    cores: RunCores | None = None,
    profile: StreamProfile | None = None,
) -> None:
    """Write a program beside its weights, as a plan that keeps them all in memory: what it takes is measured by that."""
    taped = program if isinstance(program, TapedProgram) else TapedProgram(program)
    placed = Schedule.of(all_resident(taped.program))
    compute, reader = (cores.compute, cores.reader) if cores else ((), ())
    schedule = MemorySchedule(BACK_TO_BACK, placed.arena_bytes, 0, (), compute, reader, placed)
    prediction = MemoryPrediction(profile=profile.model_dump()) if profile else MemoryPrediction()
    write_memory_plan(folder, taped, made, schedule, prediction, [Budgeted(placed.arena_bytes, 0, 0, placed)], profile)


def write_memory_plan(
    folder: Path,
    taped: TapedProgram,
    made: MadeFor,
    schedule: MemorySchedule,
    prediction: MemoryPrediction,
    schedules: Sequence[Budgeted],
    profile: StreamProfile | None = None,
) -> None:
    """Write a plan beside its weights.

    Args:
        folder: of the plan, with its weights.
        taped: its program.
        made: see `runtime.folder`.
        schedule: where and when.
        prediction: what was predicted of it.
        schedules: the plan's own, then those for other budgets by ascending budget.
        profile: of the program, where it was measured.
    """
    measured = (
        None
        if profile is None
        else Measured(
            profile.bytes_per_ms / (2 if profile.widened_per_ms else 1),  # of the file
            profile.others,
            profile.making,
            profile.running,
        )
    )
    content = taped.packed(
        folder / WEIGHTS_NAME, schedules,
        isolated=schedule.mode != BACK_TO_BACK, readers=schedule.reader, measured=measured,
    )  # fmt: skip
    write_atomically(folder / PROGRAM_BIN, lambda temporary: temporary.write_bytes(content))
    write_plan(folder, MEMORY, made, schedule, prediction, (PROGRAM_BIN,))


@contextmanager
def planning(
    model: Path, threads: int, processors: Sequence[int], near: Path, wait_seconds: float = 60.0, weights: Stored = F32
) -> Iterator[Planner]:
    """A planner for a model, with the machine to itself.

    Args:
        model: the ONNX file.
        threads: that compute.
        processors: that may be used.
        near: a folder on the disk that weights are to be read from; programs are built beside it.
        wait_seconds: how long to wait while another process measures.
        weights: how they are stored.
    """
    cores = RunCores.of(processors, threads)
    parent = near.resolve().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with machine_lock(wait_seconds), work_folder(parent, _WORK_PREFIX) as folder:
            yield Planner(model, folder, threads, cores, weights=weights)
    except OSError as error:
        raise cannot_write(error, near) from error
