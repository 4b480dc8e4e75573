"""Starts a fresh process for every cold run, where nothing of the model, the engine or its caches is left."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from types import TracebackType
from typing import Self, TypeVar

from pydantic import BaseModel, ValidationError

from edgeplan.measurement.process.job import OnceJob, OnceResult, PrepareJob, PrepareResult, RunJob, RunResult
from edgeplan.support.subprocesses import end, module_command, start
from edgeplan.support.workers import ColdRunError, last_words, work_apart

Result = TypeVar("Result", bound=BaseModel)


def run_cold(job: RunJob, timeout_seconds: float = 300.0) -> RunResult:
    """Measure one cold run in a fresh process.

    Raises:
        ColdRunError: the worker crashed, hung or answered nonsense; its last words on stderr are in the message.
    """
    return _work(job, RunResult, f"cold run of {job.setting} on {job.artefact.main.name}", timeout_seconds)


def prepare_offline(job: PrepareJob, timeout_seconds: float = 900.0) -> PrepareResult:
    """Build what a setting loads, in a process of its own: converters crash, and leave libraries and threads behind.

    Raises:
        ColdRunError: as for `run_cold`.
    """
    return _work(job, PrepareResult, f"preparing {job.setting} for {job.model.name}", timeout_seconds)


def _work(job: BaseModel, result: type[Result], what: str, timeout_seconds: float) -> Result:
    return work_apart("edgeplan.measurement.process.worker", job, result, what, timeout_seconds)


class Forks:
    """Forks fresh processes from one that has imported everything: to import takes seconds, to fork none.

    The first job waits for the imports. Use it as a context manager.
    """

    def __init__(self) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            with self._process:
                if error is None:
                    self._process.communicate()  # nothing more is asked: it ends
                end(self._process)
        self._said.close()

    def run_cold(self, job: RunJob) -> RunResult:
        """Run a plan of our own runtime cold, as `run_cold` does.

        Raises:
            ColdRunError: the process failed or answered nonsense.
        """
        return self._ask(job, RunResult)

    def first_execution_ms(self, job: OnceJob) -> float:
        """Measure how much longer the first execution of a step takes than its second, in ms of processor time.

        Raises:
            ColdRunError: as `run_cold`.
        """
        return self._ask(job, OnceResult).time_ms

    def open(self) -> None:
        """Start the process that is forked; the first job does it where nobody did."""
        if self._process is None:
            command = module_command("edgeplan.measurement.process.worker", "--fork")
            self._process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said)

    def _ask(self, job: BaseModel, result: type[Result]) -> Result:
        self.open()
        assert self._process is not None  # noqa: S101  it was started
        assert self._process.stdin is not None  # noqa: S101  it is a pipe
        assert self._process.stdout is not None  # noqa: S101  likewise
        answer = b""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(job.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        try:
            return result.model_validate_json(answer)
        except ValidationError as error:
            self._said.seek(0)
            raise ColdRunError(
                f"a job failed in a fresh process{last_words(self._said.read())}", next_step="run the same command again"
            ) from error
