"""From a model and a budget of memory to a plan folder: cut, profile, plan, and run once to see that the budget holds."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from edgeplan.chapters.memory.budget import MIB, mib
from edgeplan.chapters.memory.folders import CostedProgram, ModelCut, RunCores, all_bytes
from edgeplan.chapters.memory.programs import ModelPrograms
from edgeplan.chapters.memory.proof import Proof, Prover
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.errors import InfeasibleError, ModelError
from edgeplan.measurement.lock import machine_lock
from edgeplan.measurement.process.inputs import Array
from edgeplan.measurement.process.memory_group import NoGroupError
from edgeplan.planning.layout import BufferLayout
from edgeplan.planning.memory.document import MemoryPlan
from edgeplan.planning.memory.planner import improved, least_budget
from edgeplan.planning.memory.quick import Mode, PlannedMemory, best, bound_ms
from edgeplan.profiling.streaming import StreamRun, run_apart
from edgeplan.runtime.folder_lock import work_folder
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.schedules import F32, HALVES_TOLERANCE, Stored
from edgeplan.support.tensors import relative_error
from edgeplan.writable import cannot_write

_log = logging.getLogger(__name__)
_WORK_PREFIX = ".planning-"  # of folders beside the plan; those of killed processes go with the next planning
_ATTEMPTS = 5  # to hold the budget in a run
_FOUND_ATTEMPTS = 8  # with a budget that the search has found, which grows each time
_IDLE_BYTES = 128 * MIB  # more than the idle process takes, with what is read ahead of it
_SLACK_BYTES = 256 << 10  # pages that come and go from run to run
_ADVICE_BYTES = 3 * MIB // 4  # that another process was seen to take more: a budget that is advised leaves as much
_SURE_BYTES = 2 * MIB  # kernels and pages of the library take no less
_ROOM_BYTES = 2 * MIB  # that forms may take less for kernels than the whole one
_GAIN = 0.005  # another form has to gain so much
_POINTS = 24  # of a curve
_WAIT_SECONDS = 60.0  # while another process measures
_SEARCHED = 3  # forms whose layouts of tensors are searched for


class TooSmallError(InfeasibleError):
    """A budget is below what a model needs.

    Attributes:
        enough: bytes over idle that are needed, as far as is known.
    """

    def __init__(self, what: str, *, where: str, next_step: str, proven: bool, enough: int) -> None:
        super().__init__(what, where=where, next_step=next_step, proven=proven)
        self.enough = enough


@dataclass(frozen=True, slots=True)
class MemoryPlanned:
    """A plan folder, and what is known about it.

    Attributes:
        candidate: the program that it is for, with what its run took besides the arena.
        budget: bytes over idle, all pages.
        run: the run that showed that the budget holds.
        proof: what a run showed that a memory cgroup held to the budget, or why there was none.
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


class Planner:
    """Plans one model: searches among its programs, has plans proven by runs, and writes them.

    Args:
        programs: of the model; what is profiled of them is kept from one budget to the next.

    Attributes:
        total: whether budgets and what is beside them are a limit of the whole process, from its start on.
        beside_bytes: what users count to a budget beside it, the idle process or nothing: messages add it.
    """

    def __init__(self, programs: ModelPrograms) -> None:
        self.programs = programs
        self.beside_bytes = 0
        self.total = False
        self._more = 0  # bytes that groups charged runs with, more than was profiled

    def best(self, budget: int, mode: Mode, excess: int = 0) -> tuple[CostedProgram, PlannedMemory]:
        """The fastest plan over all forms, by prediction.

        A form that was not profiled is priced as if cutting cost nothing. The one of the best price is profiled and priced
        again, until that is one that was; of forms as good the coarser one comes first.

        Runs took `excess` bytes of the budget more than was profiled: they are left.
        """
        room, programs = budget - excess, self.programs
        possible = [form for form in (*programs.forms, *programs.fitted(room)) if programs.least(form) + _SURE_BYTES <= room]
        found = {form: self._planned(form, room, mode) for form in possible if form in programs.profiled}
        hopes = {form: self._hope(form, room, mode) for form in possible if form not in programs.profiled}
        while hopes:
            form = min(hopes, key=hopes.__getitem__)
            known = [pair[1].predicted_ms for pair in found.values() if pair]
            if hopes[form] > (1 - _GAIN) * min(known, default=sys.float_info.max):
                break
            del hopes[form]
            self.programs.candidate(form)
            found[form] = self._planned(form, room, mode)
            hopes |= {f: self._hope(f, room, mode) for f in hopes if f.regions == form.regions}
        pairs = sorted((pair for pair in found.values() if pair), key=lambda pair: pair[1].predicted_ms)
        if not pairs:
            raise self._does_not_fit(budget, excess)
        return _searched(pairs)

    def _hope(self, form: ModelCut, budget: int, mode: Mode) -> float:
        """Milliseconds of a form that was not profiled; infinite if it cannot fit."""
        guess = self.programs.estimated(form)
        room = budget - guess.objects_bytes
        made = best(guess.workload, guess.reader, room, mode, [self.programs.lowest(form)], again=True)
        return made.predicted_ms if made else bound_ms(guess.workload, guess.reader, room + _ROOM_BYTES, mode)

    def _planned(self, form: ModelCut, budget: int, mode: Mode) -> tuple[CostedProgram, PlannedMemory] | None:
        candidate = self.programs.candidate(form)
        if budget < candidate.least_bytes():  # what would be enough is not looked for: another form may fit
            return None
        made = candidate.tried(budget, mode)
        return None if made is None else (candidate, made)

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
        candidate = self.programs.candidate(self.programs.finest)
        return candidate, least_budget(candidate.workload)

    def _too_small(self, budget: int, what: str, enough: int, why: str = "", *, proven: bool = False) -> TooSmallError:
        of = "for the process" if self.beside_bytes else "over idle"
        what = f"{mib(budget + self.beside_bytes)} is not enough: {what} {of}{why}"
        return TooSmallError(what, where="--budget", next_step=self._advice(enough), proven=proven, enough=enough)

    def _advice(self, enough: int) -> str:
        return f"give --budget {-(-(enough + _ADVICE_BYTES + self.beside_bytes) // MIB)}MiB or more"

    def tried(self, refusal: TooSmallError, mode: Mode) -> TooSmallError:
        """A refusal whose advice was tried: its budget is planned for and run, and grows by what the run takes more."""
        enough = refusal.enough
        for _ in range(_ATTEMPTS):
            try:
                self._held(enough + _SLACK_BYTES, mode)
            except TooSmallError as again:
                enough = max(again.enough, enough + _SLACK_BYTES)
            else:
                break
        advice = self._advice(enough)
        return TooSmallError(refusal.what, where=refusal.where, next_step=advice, proven=refusal.proven, enough=enough)

    def enough(self, mode: Mode) -> int:
        """Return about the least budget, over idle, that a run was seen to hold and another one will."""
        return self.tried(self._does_not_fit(0, 0), mode).enough + _ADVICE_BYTES

    def least_for(self, slowdown: float, mode: Mode) -> int:
        """The least budget found whose plan is at most so much slower (0.05) than with all weights in memory, by prediction."""
        found = []
        for form in self.programs.forms:
            target_ms = self.programs.fastest_ms * (1 + slowdown)
            if (budget := _least_within(self.programs.candidate(form), target_ms, mode)) is not None:
                found.append(budget)
        if not found:
            raise InfeasibleError(
                f"no plan is at most {100 * slowdown:g} % slower than with all weights in memory",
                where="--max-slowdown",
                next_step="allow more",
                proven=False,
            )
        return min(found)

    def curve(self, mode: Mode) -> list[tuple[int, float, float]]:
        """Budget (bytes), predicted time and bound (ms), from the least that fits to all weights in memory."""
        candidates = [self.programs.candidate(form) for form in self.programs.forms]
        low = min(candidate.least_bytes() for candidate in candidates)
        high = all_bytes(candidates[0])
        found = []
        for budget in np.geomspace(low, max(low + 1, high), _POINTS).astype(np.int64).tolist():
            made = [planned for one in candidates if (planned := one.tried(budget, mode)) is not None]
            if made:
                best = min(made, key=lambda planned: planned.predicted_ms)
                found.append((budget, best.predicted_ms, min(planned.lower_bound_ms for planned in made)))
        return found

    def write(self, budget: int, mode: Mode, folder: Path, *, found: bool = False) -> MemoryPlanned:
        """Plan, run, and write the folder: a plan whose run took more than the budget is made again with less.

        What runs took more is kept with the profile: whoever plans again from it leaves as much.

        Nobody named a budget that was `found` by `least_for`: it becomes what the run took where that is more.
        """
        (held, excess), programs = self._held(budget, mode, found=found), self.programs
        planned = replace(held, folder=folder, error=self._error(held.candidate.program))
        finest = programs.candidate(programs.finest).taking(excess)
        programs.writer.plan(folder, planned.candidate, planned.document, planned.budget, planned.error, finest)
        return planned

    def _held(self, budget: int, mode: Mode, *, found: bool = False) -> tuple[MemoryPlanned, int]:
        """A plan whose run held its budget, and the bytes that runs took more than was profiled; nothing is written.

        See `write`.
        """
        excess = self._more
        for attempt in range(_FOUND_ATTEMPTS if found else _ATTEMPTS):
            slack = _SLACK_BYTES << attempt  # a run that met its limit does not say by how much
            candidate, made = self.best(budget, mode, excess)
            plan_document = candidate.documented(made)
            outputs = self._output_files(candidate.program)
            settings = replace(self.programs.settings(3, isolated=mode is Mode.isolated), outputs=outputs)
            run = run_apart(candidate.folder, [plan_document.model_dump()], settings)
            if found:  # by prediction, to the last page: another run may take some more
                taken = max(budget, run.taken_bytes + _SLACK_BYTES)
                budget, excess = taken, taken - budget
            taken = run.taken_bytes
            if taken <= budget:
                known = candidate.taking(excess)
                proof = self._proven(known, plan_document, budget, run.files)
                if proof.holds or proof.reason:
                    return MemoryPlanned(known.folder, plan_document, known, budget, run, proof, self.programs.weights), excess
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
            settings = self.programs.settings(5, isolated=p.mode == Mode.isolated)
            return prover.over_idle(candidate.folder, p.model_dump(), settings, budget)
        folder = self.programs.work / "total"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        self.programs.writer.alone(folder, candidate, p, budget)
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
        """Make what holds runs to limits."""
        return Prover(self.programs.work / "libraries", files)

    def hold_total(self) -> None:
        """From now on a budget and what is beside it are a limit of the whole process from its start on, as of a container."""
        self.total, self.beside_bytes = True, self.idle_in_group

    def hold_over_idle(self) -> None:
        """From now on budgets are over idle."""
        self.total, self.beside_bytes = False, 0

    @cached_property
    def idle_in_group(self) -> int:
        """Bytes of a group before `edgeplan-run` opens a plan in it; its resident memory where there are no groups."""
        base = self.programs.candidate(self.programs.forms[0])
        files = run_apart(base.folder, [None], self.programs.settings(2)).files
        try:
            return self.prover(files).idle_bytes(base.folder, all_bytes(base) + _IDLE_BYTES) or self.programs.idle_bytes
        except NoGroupError:
            return self.programs.idle_bytes

    def _output_files(self, program: StreamProgram) -> dict[str, Path]:
        """Where outputs go of runs that are held to ONNX Runtime: those with weights in half their bytes."""
        halved = self.programs.weights != F32
        return (
            {border.name: self.programs.work / f"output-{k}.bin" for k, border in enumerate(program.outputs)} if halved else {}
        )

    def _error(self, program: StreamProgram) -> float | None:
        """The largest relative difference of the last run's outputs from ONNX Runtime's, said where it is too large."""
        if not (files := self._output_files(program)):
            return None
        try:
            expected = self._expected
        except ModelError as error:
            _log.warning("what weights as %s cost is not known: %s", self.programs.weights, error.what)
            return None
        found = [np.fromfile(files[border.name], border.dtype).reshape(border.shape) for border in program.outputs]
        difference = relative_error(found, [expected[name] for name in files])
        if not difference <= HALVES_TOLERANCE:
            _log.warning(
                "outputs differ from ONNX Runtime's by %.1e of the largest magnitude, more than %g: weights as %s are too "
                "inexact for this model; plan it with whole ones: --weights %s",
                *(difference, HALVES_TOLERANCE, self.programs.weights, F32),
            )
        return difference

    @cached_property
    def _expected(self) -> Mapping[str, Array]:
        """ONNX Runtime's outputs for the inputs of all runs."""
        return onnxruntime_reference(self.programs.model, self.programs.values)


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
        made = candidate.tried(budget, mode)
        return made is not None and made.predicted_ms <= target_ms

    if not fits(high):
        return None
    while high - low > max(high // 100, 1 << 16):
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


@contextmanager
def planning(model: Path, threads: int, processors: Sequence[int], near: Path, weights: Stored = F32) -> Iterator[Planner]:
    """A planner for a model, with the machine to itself.

    Programs are built beside `near`, a folder on the disk that weights are to be read from.
    """
    cores = RunCores.of(processors, threads)
    parent = near.resolve().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        with machine_lock(_WAIT_SECONDS), work_folder(parent, _WORK_PREFIX) as folder:
            yield Planner(ModelPrograms(model, folder, threads, cores, weights=weights))
    except OSError as error:
        raise cannot_write(error, near) from error
