"""Our own runtime: a plan folder, built elsewhere, executed as it was planned."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from edgeplan.devices.machine import fingerprint
from edgeplan.engines.cold import Baseline, ColdSession, UnsupportedError
from edgeplan.errors import DeviceError, FormatError
from edgeplan.measurement.process.inputs import Array
from edgeplan.measurement.process.job import Artefact, PrepareResult
from edgeplan.runtime import cold_executor
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import PLAN_NAME, PROGRAM_NAME
from edgeplan.runtime.linked_file import read_linked
from edgeplan.runtime.preparation import CACHE_NAME, TAPE_NAME
from edgeplan.runtime.process import prepare_process

_DIGITS = 12


class Edgeplan(Baseline):
    """This baseline opens a plan folder of edgeplan.

    The fingerprint of the machine is the engine's, not the model's: a program asks for it once.
    """

    stealing = True
    continuous = False

    def load_library(self, threads: int) -> None:
        self._cores = tuple(sorted(os.sched_getaffinity(0)))
        del threads
        try:
            self._dnnl = Dnnl()
        except DeviceError as error:
            raise UnsupportedError(f"oneDNN is not installed: {error.what}") from error
        prepare_process(self._dnnl)
        self._machine = fingerprint()

    def version(self) -> str:
        return self._dnnl.info.version

    def prepare(self, model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
        del model, inputs, folder, threads
        raise UnsupportedError("plans are made by `edgeplan plan cold-start` and handed over ready (prepared)")

    def open(self, artefact: Artefact, inputs: Mapping[str, Array], threads: int) -> ColdSession:
        cores = self._cores
        try:
            session = cold_executor.ColdSession(
                self._dnnl,
                artefact.main.parent,
                threads=threads,
                machine=self._machine,
                cores=cores[:threads],
                little=cores[threads:],
                stealing=self.stealing,
                continuous=self.continuous,
            )
        except FormatError as error:
            raise UnsupportedError(str(error)) from error
        return _Session(session, inputs)


class EdgeplanFixed(Edgeplan):
    """Without work stealing: every core does what the plan says, whatever slows it (Figure 11)."""

    stealing = False


class EdgeplanContinuous(Edgeplan):
    """Idle cores prepare the kernels of later runs (section 3.5, Figure 14)."""

    continuous = True


class _Session(ColdSession):
    def __init__(self, session: cold_executor.ColdSession, inputs: Mapping[str, Array]) -> None:
        self._session, self._inputs = session, inputs
        self._outputs: Mapping[str, Array] = {}

    def run(self) -> None:
        self._outputs = self._session.run(self._inputs)
        if problem := self._session.cache_problem:  # that would be timed as a start from the cache
            raise UnsupportedError(f"the weight cache {problem}")
        if hashed := self._session.hashed:  # nor would a start that reads the whole model before it begins be one of the plan
            raise UnsupportedError(f"the stamp of {Path(hashed[0]).name} is not that of the plan: it was hashed")

    def outputs(self) -> Mapping[str, Array]:
        return self._outputs

    def stages_ms(self) -> Mapping[str, float]:
        return self._session.stages_ms()


def prepared(folder: Path) -> PrepareResult:
    """A plan folder as what `cold.runs.measure` takes under `ready`: every file that a first run reads is named in it.

    Its engine version changes with its content.

    Raises:
        FormatError: it is not a plan folder.
    """
    program = read_linked(folder / PROGRAM_NAME)
    names = [PROGRAM_NAME, PLAN_NAME, TAPE_NAME] + ([CACHE_NAME] if program.cache_bytes else [])
    files = [(folder / name).resolve() for name in names]
    if "raw" in program.sources:
        beside = [(folder / Path(file.path).name, Path(file.path)) for file in program.files]
        files += [near.resolve() if near.is_file() else far for near, far in beside]
    digest = hashlib.sha256((folder / PROGRAM_NAME).read_bytes()).hexdigest()[:_DIGITS]
    artefact = Artefact(main=files[0], files=tuple(files), note=f"layout {program.layout}")
    return PrepareResult(engine_version=f"{program.library_version}+{digest}", artefact=artefact)
