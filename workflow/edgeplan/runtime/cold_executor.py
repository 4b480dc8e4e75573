"""Executing a plan folder: the first run is the cold start that was planned, later runs are warm (NNV12 section 3)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from edgeplan.errors import DeviceError, ModelError
from edgeplan.planning.machine import Span, core_name
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import COLD_START, PlanFolder, decoder_of, read_folder
from edgeplan.runtime.lanes import LanePreparation, lanes_of, narrow_width, pin
from edgeplan.runtime.linked import Border, LinkedProgram, Reserve, Stamps
from edgeplan.runtime.native import words
from edgeplan.runtime.native.words import Numbers
from edgeplan.runtime.pace import Pace
from edgeplan.runtime.plan_session import Session
from edgeplan.runtime.preparation import Executor, Mark, Shared, read_reserve
from edgeplan.runtime.process import prepare_process
from edgeplan.runtime.reading_ahead import head_start, reading_ahead
from edgeplan.runtime.renewal import renew
from edgeplan.runtime.tape_file import read_tape
from edgeplan.support.machine import fingerprint

Array = npt.NDArray[Any]
_NS_PER_MS = 1e6


class ColdSession(Session):
    """A plan folder, opened: preparation starts at once, in the threads that the plan names.

    Args:
        dnnl: the library.
        folder: the plan folder; read here where it was not before.
        threads: cores that execute; must be the plan's.
        machine: fingerprint of this machine; asked for where it is not given, which takes a millisecond.
        cores: processors that execute, the main thread's first; on equal cores the last of them prepare until execution
            widens. Empty: nothing is pinned.
        little: processors that only prepare, on asymmetric chips.
        stealing: whether a core with nothing left to do takes preparations of others.
        continuous: whether idle cores prepare the kernels of later runs (section 3.5) as soon as the first outputs are there;
            what is left of them, or else all, the second run prepares first, on all cores.

    Attributes:
        program: what is run.
        cold_ms: time from opening to the outputs of the first run.
    """

    def __init__(
        self,
        dnnl: Dnnl,
        folder: Path | PlanFolder,
        *,
        threads: int,
        machine: str = "",
        cores: Sequence[int] = (),
        little: Sequence[int] = (),
        stealing: bool = True,
        continuous: bool = False,
    ) -> None:
        self._start_ns, self.cold_ms, self.continuous = perf_counter_ns(), 0.0, continuous
        self._pace = Pace()
        self._folder, self._dnnl = folder if isinstance(folder, Path) else folder.path, dnnl
        self._reader = head_start(self._folder)
        try:
            plan = read_folder(self._folder, COLD_START) if isinstance(folder, Path) else folder
            self.program, self._plan = _checked(plan, dnnl, threads, machine), plan
            super().__init__(self.program.inputs, self._folder)
            tape = read_tape(plan, self.program)
            self._shared = Shared(dnnl, self.program, self._folder, tape=tape, reserve=lambda: read_reserve(plan), opened=False)
        except BaseException:
            self._pace.end()
            if self._reader is not None:
                self._reader.end()
            raise
        lanes = lanes_of(self._shared, cores, little)
        self._preparation = LanePreparation(self._shared, lanes, stealing=stealing, continuous=continuous)
        self._preparation.start()  # kernels are made while the rest is opened
        self._ran = self._copying = False
        self._failed: BaseException | None = None
        try:
            self._shared.open_files()
            self._read_ahead()
        except BaseException:
            self.close()
            raise
        self._executor = Executor(dnnl)
        lanes[0].preparer.own = self._executor.own  # one thread does both
        self._times: Numbers = np.zeros(2 * self._shared.step_count, np.int64)
        self._later_times, self._later_items = self._times.copy(), self._times[:0]
        self._affinity = os.sched_getaffinity(0)
        self._pinned = () if self.program.equal_cores else tuple(cores)
        self._opened_ns = perf_counter_ns()

    # Running

    def _run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """See `Session`; the first run is the cold start."""
        if self._failed is not None:
            raise ModelError(
                f"the cold start of this session failed: {self._failed}",
                where=str(self._folder),
                next_step="open the plan again",
            ) from self._failed
        for border in self.program.inputs:
            np.copyto(self._activation(border), inputs[border.name])
        if not self._ran:
            self._run_cold()
            copied = True
        else:
            self._shared.require_unchanged(copied=self._copying)  # to touch what was cut off would end the process
            copied = self._run_later()
        self._shared.require_unchanged(copied=copied)
        outputs = {border.name: np.array(self._activation(border)) for border in self.program.outputs}
        self.cold_ms = self.cold_ms or (perf_counter_ns() - self._start_ns) / _NS_PER_MS
        # last, so that these outputs do not wait for kernels of later runs
        self._copying = self._preparation.resume()
        return outputs

    def _run_cold(self) -> None:
        preparation, program = self._preparation, self.program
        try:
            pin(self._pinned)
            self._dnnl.set_threads(narrow_width(program))
            reached, count = 0, self._shared.step_count
            while reached < count:
                if reached == program.widen_from:
                    preparation.wait_for_all()
                    os.sched_setaffinity(0, self._affinity)  # threads that OpenMP starts from here on inherit it
                    self._dnnl.set_threads(program.threads)
                last = program.widen_from if reached < program.widen_from < count else count
                reached = preparation.advance(self._times, reached, last)
            self._ran = True
        except BaseException as error:
            self._failed = error
            preparation.stop()
            raise
        finally:
            os.sched_setaffinity(0, self._affinity)
            self._pace.restore()

    def _run_later(self) -> bool:
        """A run with the kernels for later runs; what is missing of them is prepared first.

        Returns:
            whether any were prepared, from the model's files.
        """
        prepared = self._preparation.finish()
        self._dnnl.set_threads(self.program.threads)
        if prepared or not len(self._later_items):
            self._later_items = self._preparation.items()
        self._executor.run(self._later_items, self._later_times)
        return prepared

    def _activation(self, border: Border) -> Array:
        data = self._shared.memory.data[border.offset : border.offset + border.size]
        return data.view(border.dtype).reshape(border.shape)

    # Reading ahead

    def _read_ahead(self) -> None:
        """Begin to read the weights, go on with it, or say that they are there."""
        self._reader = reading_ahead(self._shared, self._reader)
        if self._reader is None:
            self._shared.objects.store.flags[words.ARRIVED] = self._shared.step_count

    # What was measured

    @property
    def _executions(self) -> list[Mark]:
        times: list[list[int]] = self._times.reshape(-1, 2).tolist()
        return [("execute", k, start, end) for k, (start, end) in enumerate(times) if end]

    def spans(self) -> tuple[Span, ...]:
        """The timeline of the cold start, from opening the folder on; an execution on all equal cores has a span on each."""
        program = self.program

        def ms(ns: int) -> float:
            return (ns - self._start_ns) / _NS_PER_MS

        found = []
        for place, marks in enumerate(self._preparation.marks, start=-1):
            found += [Span(core_name(place), k, stage, ms(start), ms(end)) for stage, k, start, end in marks]
        for stage, k, start, end in self._executions:
            widened = program.equal_cores and k >= program.widen_from
            places = range(-1, len(program.queues) if widened else 0)
            found += [Span(core_name(place), k, stage, ms(start), ms(end)) for place in places]
        return tuple(found)

    def stages_ms(self) -> dict[str, float]:
        """Sums over all cores: `open`, `read`, `create`, `transform` and `execute` of the cold start."""
        sums = {"open": (self._opened_ns - self._start_ns) / _NS_PER_MS}
        sums |= dict.fromkeys(("read", "create", "transform", "execute"), 0.0)
        for marks in (*self._preparation.marks, self._executions):
            for stage, _, start, end in marks:
                sums[stage] += (end - start) / _NS_PER_MS
        return sums

    @property
    def cache_problem(self) -> str:
        """Describe the fault of the weight cache, or return ""."""
        return self._shared.cache.problem

    @property
    def hashed(self) -> tuple[str, ...]:
        """The model's files that were read whole before the start, since their stamps were not those of the plan."""
        return tuple(self._shared.program.files[number].path for number in sorted(self._shared.raw.hashed))

    # Ending

    def _close(self) -> None:
        """End the threads, build the cache again if something was wrong with it, and free everything."""
        self._pace.end()
        self._preparation.stop()
        if self._reader is not None:
            self._reader.end()
        try:
            if self._ran:
                renew(self._shared, self._plan)
        finally:
            self._shared.close()


def _checked(plan: PlanFolder, dnnl: Dnnl, threads: int, machine: str) -> LinkedProgram:
    """The program of a plan, if both are for what is here."""
    plan.require_here(machine or fingerprint(), dnnl.info.version, dnnl.info.isa, threads=threads)
    return plan.program_of(LinkedProgram)


class ColdSchedule(msgspec.Struct, frozen=True):
    """The schedule of a cold start tells its session whether there are kernels for later runs."""

    later: tuple[int, ...] = ()


for _kind in (LinkedProgram, Stamps, Reserve, ColdSchedule):  # before any clock runs: making one takes half a millisecond
    decoder_of(_kind)


def open_cold(plan: PlanFolder, processors: Sequence[int] = (), *, continuous: bool | None = None) -> ColdSession:
    """Open a plan folder of a cold start, as `open_plan` does: this thread stays on its processors until it is closed."""
    dnnl, machine, program = Dnnl(), fingerprint(), plan.program_of(LinkedProgram)
    prepare_process(dnnl)
    later = bool(plan.scheduled(ColdSchedule).later) if continuous is None else continuous
    executing, preparing = processors_of(program, processors)
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, (*executing, *preparing))
    try:
        session = ColdSession(
            dnnl, plan,
            threads=program.threads, machine=machine, cores=executing, little=preparing, continuous=later,
        )  # fmt: skip
    except BaseException:
        os.sched_setaffinity(0, before)
        raise
    session.affinity_before = before
    return session


def processors_of(program: LinkedProgram, given: Sequence[int] = ()) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The processors that execute a program, and those that only prepare, as asymmetric chips have them.

    Args:
        program: of a plan folder.
        given: to choose from, those that execute first; none: those that this process may use.
    """
    executing, preparing = program.threads, 0 if program.equal_cores else len(program.queues)
    found = tuple(given) or tuple(sorted(os.sched_getaffinity(0)))
    if len(found) < executing + preparing:
        raise DeviceError(
            f"the plan needs {executing} processors to execute and {preparing} beside them to prepare, "
            f"there are {len(found[:executing])} and {len(found[executing:])}",
            where="the processors named" if given else "processors that this process may use",
            next_step="name the device that it was planned for with --device, allow more processors, or plan the model again",
        )
    # sorted, as a fresh process takes them: cores of one class stand for each other
    return tuple(sorted(found[:executing])), tuple(sorted(found[executing : executing + preparing]))
