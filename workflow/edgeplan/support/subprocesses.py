"""Starts processes of the package's own modules, and programs; they end with this process, however it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

import edgeplan
from edgeplan.support import lifeline


def child_environment() -> Mapping[str, str]:
    """Return the environment of processes that are started: the package of this very process is first on the path.

    It holds where also it runs from a checkout, and names the lifeline of this process. Bytecode is kept: without it each
    process compiles all of its modules, which is no part of what is measured.
    """
    package = str(Path(edgeplan.__file__).parent.parent)
    inherited = os.environ.get("PYTHONPATH", "")
    path = os.pathsep.join(part for part in (package, inherited) if part)
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "PYTHONPATH": path, lifeline.VARIABLE: lifeline.address()}


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this package in our own interpreter."""
    return [sys.executable, "-m", lifeline.__name__, module, *arguments]


def program_command(*command: str) -> list[str]:
    """Return the command that runs a program."""
    return [sys.executable, "-m", lifeline.__name__, lifeline.PROGRAM, *command]


def start(
    command: Sequence[str],
    *,
    stdin: int | None = None,
    stdout: int | IO[bytes] | None = None,
    stderr: int | IO[bytes] | None = None,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a command of `module_command` or `program_command`, which ends with this process; `end` ends it earlier.

    It has a process group of its own, and `variables` in its environment beside this one's; else as `subprocess.Popen`.
    """
    return subprocess.Popen(  # noqa: S603  our own interpreter, no shell
        command,
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env={**child_environment(), **(variables or {})},
        cwd=cwd,
        process_group=0,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that `start` started, with all that it has started, and wait for it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nothing of the group is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def run(
    command: Sequence[str],
    *,
    input: bytes | None = None,  # noqa: A002  as `subprocess.run` calls it
    capture_output: bool = True,
    timeout: float | None = None,
    variables: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command as `start` does and `subprocess.run` calls it; nothing that it has started is left afterwards."""
    pipe = subprocess.PIPE if capture_output else None
    fed = subprocess.DEVNULL if input is None else subprocess.PIPE
    process = start(command, stdin=fed, stdout=pipe, stderr=pipe, variables=variables, cwd=cwd)
    try:
        with process:
            try:
                stdout, stderr = process.communicate(input, timeout)
            except BaseException:
                end(process)  # before the pipes are closed, which waits for it
                raise
    finally:
        end(process)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def ending(code: int) -> str:
    """Describe how a process ended that did not succeed, by its return code."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
