"""Runs one job of this package in a process: a document on stdin, another on stdout, and what is said where it fails."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from edgeplan.errors import EdgeplanError
from edgeplan.support.lazy import lazily
from edgeplan.support.subprocesses import ending, module_command, run

if TYPE_CHECKING:
    import pydantic
else:
    pydantic = lazily("pydantic")

Result = TypeVar("Result", bound="pydantic.BaseModel | msgspec.Struct")
_STDERR_LINES = 6


class ColdRunError(EdgeplanError):
    """Reports that a worker crashed, hung or answered nonsense."""

    exit_code = 10

    @property
    def reason(self) -> str:
        """Return one line for a table: what happened, and the last thing the worker said."""
        first, *rest = self.what.splitlines()
        return f"{first}: {' '.join(rest[-1].split())}" if rest else first


def work_apart(
    module: str,
    job: pydantic.BaseModel | msgspec.Struct | Mapping[str, Any],
    result: type[Result],
    what: str,
    timeout_seconds: float,
) -> Result:
    """Have a module of this package do a job in a process of its own: the job on stdin, the result on stdout.

    `what` is done, for messages.
    """
    try:
        done = run(module_command(module), input=_encoded(job), timeout=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise ColdRunError(
            f"{what}: no result within {timeout_seconds:g} s{last_words(error.stderr)}",
            next_step="run it on a quieter machine, raise the time limit, or leave it out",
        ) from error
    return answered(result, what, done.returncode, done.stdout, done.stderr)


def _encoded(job: pydantic.BaseModel | msgspec.Struct | Mapping[str, Any]) -> bytes:
    if isinstance(job, msgspec.Struct):
        return msgspec.json.encode(job)
    return (json.dumps(job) if isinstance(job, Mapping) else job.model_dump_json()).encode()


def answered(result: type[Result], what: str, code: int, stdout: bytes, stderr: bytes) -> Result:
    """Parse the answer of such a process."""
    if code != 0:
        raise ColdRunError(
            f"{what}: the process {ending(code)}{last_words(stderr)}",
            next_step="correct what it complains of, or leave it out",
        )
    try:
        if issubclass(result, msgspec.Struct):
            return msgspec.json.decode(stdout, type=result)
        return result.model_validate_json(stdout)
    except (msgspec.DecodeError, pydantic.ValidationError) as error:
        why = str(error) if isinstance(error, msgspec.DecodeError) else error.errors()[0]["msg"]
        raise ColdRunError(
            f"{what}: the answer does not fit its schema: {why}{last_words(stderr)}",
            next_step="this is a mistake in the code of that process: report it",
        ) from error


def last_words(stderr: bytes | None) -> str:
    """Return the last lines that a process wrote to its error stream, each on a line of its own."""
    lines = [line for line in (stderr or b"").decode(errors="replace").splitlines() if line.strip()][-_STDERR_LINES:]
    return "".join(f"\n    {line}" for line in lines)
