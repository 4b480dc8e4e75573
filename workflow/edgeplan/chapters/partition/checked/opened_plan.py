"""A plan that another process holds open: it runs there as `edgeplan run` would run it, beside nothing of ours."""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from edgeplan.errors import DeviceError, EdgeplanError
from edgeplan.support.subprocesses import end, module_command, start
from edgeplan.support.tensors import read_outputs
from edgeplan.support.workers import last_words

_WORKER = "edgeplan.chapters.partition.checked.worker"
#: Kernels of a driver that builds each for a second may be new to it.
_OPENING_SECONDS, _TURN_SECONDS = 300.0, 120.0
_CLOSING_SECONDS = 5.0


class OpenedPlan:
    """A plan folder in a process that opens it, and runs it when asked. The folder is not needed once the plan is open."""

    def __init__(self, folder: Path) -> None:
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        command = module_command(_WORKER, str(folder))
        self._process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said)
        self.folder = folder

    def wait(self) -> None:
        """Return when the plan is open and has run once; others may be opened meanwhile."""
        self._answer(_OPENING_SECONDS)

    def turn(self) -> list[float]:
        """Some inferences back to back, their times in ms."""
        return [float(ms) for ms in self._asked("turn")]

    def steps_ms(self) -> list[float]:
        """The time of each of the model's steps in the last inference, in ms."""
        return [float(ms) for ms in self._asked("steps")]

    def outputs(self) -> Mapping[str, Any]:
        """The outputs of the last inference, on seeded inputs."""
        with tempfile.TemporaryDirectory(prefix="edgeplan-outputs-") as folder:
            path = Path(folder) / "outputs.npz"
            self._asked(f"outputs {path}")
            return read_outputs(path)

    def _asked(self, line: str) -> Any:
        assert self._process.stdin is not None  # noqa: S101  it is a pipe
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(f"{line}\n".encode())
            self._process.stdin.flush()
        return self._answer(_TURN_SECONDS)

    def _answer(self, limit_seconds: float) -> Any:
        stdout = self._process.stdout
        assert stdout is not None  # noqa: S101  likewise
        ready, _, _ = select.select([stdout], [], [], limit_seconds)
        line = stdout.readline() if ready else b""
        try:
            found = json.loads(line)
        except ValueError:
            self._said.seek(0)
            what = "the process that runs the plan ended" if ready else f"no answer of the plan within {limit_seconds:g} s"
            raise DeviceError(
                f"{what}{last_words(self._said.read())}", where=str(self.folder), next_step="run the same command again"
            ) from None
        if isinstance(found, dict):
            raise EdgeplanError(found["what"], where=found["where"], next_step=found["next_step"])
        return found

    def close(self) -> None:
        """End the process that holds the plan open, once it has ended what it started: their time would count as others'."""
        assert self._process.stdin is not None  # noqa: S101  it is a pipe
        with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
            self._process.stdin.close()
            self._process.wait(_CLOSING_SECONDS)
        end(self._process)
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
