"""Executing a plan folder: the first run is the cold start that was planned, later runs are warm (NNV12 section 3)."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgeplan.errors import FormatError, ModelError
from edgeplan.planning.machine import Span, core_name
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lanes import Preparation, lanes_of, narrow_width, pin
from edgeplan.runtime.linked import AGAIN, Border, LinkedProgram
from edgeplan.runtime.linked_file import read_linked
from edgeplan.runtime.native import words
from edgeplan.runtime.native.words import Numbers
from edgeplan.runtime.pace import Pace
from edgeplan.runtime.plan_folder import PLAN_NAME, PROGRAM_NAME
from edgeplan.runtime.preparation import Executor, Mark, Shared
from edgeplan.runtime.reading_ahead import head_start, reading_ahead
from edgeplan.runtime.renewal import renew
from edgeplan.support.files import read_whole
from edgeplan.support.machine import fingerprint

Array = npt.NDArray[Any]
_NS_PER_MS = 1e6


class ColdSession:
    """A plan folder, opened: preparation starts at once, in the threads that the plan names.

    Args:
        dnnl: the library.
        folder: the plan folder.
        threads: cores that execute; must be the plan's.
        machine: fingerprint of this machine; asked for where it is not given, which takes a millisecond.
        cores: processors that execute, the main thread's first; on equal cores the last of them prepare until execution
            widens. Empty: nothing is pinned.
        little: processors that only prepare, on asymmetric chips.
        stealing: whether a core with nothing left to do takes preparations of others.
        continuous: whether idle cores prepare the kernels of later runs (section 3.5) as soon as the first outputs are there;
            what is left of them, or else all, the second run prepares first, on all cores.

    Raises:
        FormatError: the plan is for another machine, library, instruction set, thread count or model, or was changed.
    """

    def __init__(
        self,
        dnnl: Dnnl,
        folder: Path,
        *,
        threads: int,
        machine: str = "",
        cores: Sequence[int] = (),
        little: Sequence[int] = (),
        stealing: bool = True,
        continuous: bool = False,
    ) -> None:
        self._start_ns = perf_counter_ns()
        self._pace = Pace()
        self._folder, self._dnnl = folder, dnnl
        self._reader = head_start(folder)
        try:
            self.program = _checked(folder, dnnl, threads, machine)
            self._shared = Shared(dnnl, self.program, folder, opened=False)
        except BaseException:
            self._pace.end()
            if self._reader is not None:
                self._reader.end()
            raise
        lanes = lanes_of(self._shared, cores, little)
        self._preparation = Preparation(self._shared, lanes, stealing=stealing, continuous=continuous)
        self._preparation.start()  # kernels are made while the rest is opened
        self._ran = self._copying = False
        self._failed: BaseException | None = None
        try:
            self._shared.open_files()
            _require_plan(self.program, folder)
            self._read_ahead()
        except BaseException:
            self.close()
            raise
        self._executor = Executor(dnnl)
        lanes[0].preparer.own = self._executor.own  # one thread does both
        self._times: Numbers = np.zeros(2 * self.program.step_count, np.int64)
        self._affinity = os.sched_getaffinity(0)
        self._pinned = () if self.program.equal_cores else tuple(cores)
        self._opened_ns = perf_counter_ns()

    # Running

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One inference: outputs by tensor name. The first is the cold start.

        Raises:
            ModelError: an input does not fit, raw weights cannot be read, weights were changed meanwhile, or the cold start of
                this session failed before: what it left half done is not taken up again.
            DeviceError: oneDNN reports a failure.
        """
        if self._failed is not None:
            raise ModelError(
                f"the cold start of this session failed: {self._failed}",
                where=str(self._folder),
                next_step="open the plan again",
            ) from self._failed
        for border in self.program.inputs:
            value = inputs.get(border.name)
            if value is None or value.shape != border.shape or not np.can_cast(value.dtype, border.dtype, "same_kind"):
                given = "missing" if value is None else f"{value.dtype}{list(value.shape)}"
                where = f"model {self.program.model}"
                raise ModelError(
                    f"input {border.name!r} is {given}, not {border.dtype}{list(border.shape)}",
                    where=where,
                    next_step=f"correct the input: expected {border.dtype}{list(border.shape)}",
                )
            np.copyto(self._activation(border), value)
        if not self._ran:
            self._run_cold()
            copied = True
        else:
            self._shared.require_unchanged(copied=self._copying)  # to touch what was cut off would end the process
            copied = self._run_later()
        self._shared.require_unchanged(copied=copied)
        outputs = {border.name: np.array(self._activation(border)) for border in self.program.outputs}
        # last, so that these outputs do not wait for kernels of later runs
        self._copying = self._preparation.resume()
        return outputs

    def _run_cold(self) -> None:
        preparation, program = self._preparation, self.program
        try:
            pin(self._pinned)
            self._dnnl.set_threads(narrow_width(program))
            reached, count = 0, program.step_count
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
        later, ready = self._preparation.later, self._preparation.ready
        for k in range(self.program.step_count):
            self._executor.execute(later.get(k) or ready(k))
        return prepared

    def _activation(self, border: Border) -> Array:
        data = self._shared.memory.data[border.offset : border.offset + border.size]
        return data.view(border.dtype).reshape(border.shape)

    # Reading ahead

    def _read_ahead(self) -> None:
        """Begin to read the weights, go on with it, or say that they are there."""
        self._reader = reading_ahead(self._shared, self._reader)
        if self._reader is None:
            self._shared.objects.store.flags[words.ARRIVED] = self.program.step_count

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
        """What was wrong with the weight cache, or ""."""
        return self._shared.cache.problem

    @property
    def hashed(self) -> tuple[str, ...]:
        """The model's files that were read whole before the start, since their stamps were not those of the plan."""
        return tuple(self._shared.program.files[number].path for number in sorted(self._shared.raw.hashed))

    # Ending

    def close(self) -> None:
        """End the threads, build the cache again if something was wrong with it, and free everything."""
        self._pace.end()
        self._preparation.stop()
        if self._reader is not None:
            self._reader.end()
        try:
            if self._ran:
                renew(self._shared, self._folder)
        finally:
            self._shared.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _checked(folder: Path, dnnl: Dnnl, threads: int, machine: str) -> LinkedProgram:
    """The program of a folder, if it is for what is here."""
    program = read_linked(folder / PROGRAM_NAME)
    here = {
        "library_version": dnnl.info.version,
        "isa": dnnl.info.isa,
        "machine": machine or fingerprint(),
        "threads": threads,
    }
    differences = [
        f"{name} is {value}, the plan is for {getattr(program, name)}"
        for name, value in here.items()
        if value != getattr(program, name)
    ]
    if differences:
        raise FormatError("the plan cannot be run here: " + "; ".join(differences), where=str(folder), next_step=AGAIN)
    return program


def _require_plan(program: LinkedProgram, folder: Path) -> None:
    """The plan document is the one that the program was linked from."""
    try:
        plan = read_whole(folder / PLAN_NAME)
    except OSError as error:
        raise FormatError(f"cannot read the plan: {error.strerror}", where=str(folder / PLAN_NAME), next_step=AGAIN) from error
    if hashlib.sha256(plan).hexdigest() != program.plan_sha256:
        problem = "the plan cannot be run here: it was changed after its program was linked"
        raise FormatError(problem, where=str(folder), next_step=AGAIN)
