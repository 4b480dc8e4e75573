"""A fresh process for every run: cold inference is measured where nothing of the model, the engine or its caches is left."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from types import TracebackType
from typing import Self, TypeVar

from pydantic import BaseModel, ValidationError

from edgeplan.errors import EdgeplanError
from edgeplan.measurement.process.job import OnceJob, OnceResult, PrepareJob, PrepareResult, RunJob, RunResult
from edgeplan.support.subprocesses import end, ending, module_command, run, start

Result = TypeVar("Result", bound=BaseModel)
_STDERR_LINES = 6


class ColdRunError(EdgeplanError):
    """A worker crashed, hung or answered nonsense."""

    exit_code = 10

    @property
    def reason(self) -> str:
        """One line for a table: what happened, and the last thing the worker said."""
        first, *rest = self.what.splitlines()
        return f"{first}: {' '.join(rest[-1].split())}" if rest else first


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


def work_apart(module: str, job: BaseModel, result: type[Result], what: str, timeout_seconds: float) -> Result:
    """Have a module of this package do a job in a process of its own: the job on stdin, the result on stdout.

    Args:
        module: its name.
        job: the document that it reads.
        result: the document that it answers with.
        what: is done, for messages.
        timeout_seconds: for the process.

    Raises:
        ColdRunError: the process crashed, hung or answered nonsense; its last words on stderr are in the message.
    """
    try:
        done = run(module_command(module), input=job.model_dump_json().encode(), timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise ColdRunError(
            f"{what}: no result within {timeout_seconds:g} s{_last_words(error.stderr)}",
            next_step="raise the time limit, or leave the setting out",
        ) from error
    return answered(result, what, done.returncode, done.stdout, done.stderr)


def answered(result: type[Result], what: str, code: int, stdout: bytes, stderr: bytes) -> Result:
    """Parse the answer of such a process.

    Raises:
        ColdRunError: it failed, or answered nonsense.
    """
    if code != 0:
        raise ColdRunError(
            f"{what}: the process {ending(code)}{_last_words(stderr)}",
            next_step="leave the setting out, or correct what its engine complains of",
        )
    try:
        return result.model_validate_json(stdout)
    except ValidationError as error:
        raise ColdRunError(
            f"{what}: the answer does not fit its schema: {error.errors()[0]['msg']}{_last_words(stderr)}",
            next_step="this is a mistake in the setting's code: run its tests",
        ) from error


class Forks:
    """Fresh processes, forked from one that has imported everything: to import takes seconds, to fork none.

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
        """As `run_cold`, of our own runtime.

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
                f"a job failed in a fresh process{_last_words(self._said.read())}", next_step="run the same command again"
            ) from error


def _last_words(stderr: bytes | None) -> str:
    lines = [line for line in (stderr or b"").decode(errors="replace").splitlines() if line.strip()][-_STDERR_LINES:]
    return "".join(f"\n    {line}" for line in lines)
