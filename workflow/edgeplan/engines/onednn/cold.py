"""Starts the package's own runtime cold: a plan folder, built elsewhere, executed as it was planned."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from edgeplan.engines.cold import Array, Artefact, Baseline, BaselineSession, UnsupportedError
from edgeplan.errors import DeviceError, FormatError
from edgeplan.runtime import cold_executor
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.process import prepare_process
from edgeplan.support.machine import fingerprint


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

    def open(self, artefact: Artefact, inputs: Mapping[str, Array], threads: int) -> BaselineSession:
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
    """This baseline steals no work: every core does what the plan says, whatever slows it (Figure 11)."""

    stealing = False


class EdgeplanContinuous(Edgeplan):
    """This baseline prepares the kernels of later runs on idle cores (section 3.5, Figure 14)."""

    continuous = True


class _Session(BaselineSession):
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
