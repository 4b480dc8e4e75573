"""Processes that are asked by lines, and answer each by a line."""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from edgeplan.support.subprocesses import end, start
from edgeplan.support.workers import last_words

_CHUNK = 1 << 16


class Answering:
    """A process that is asked by lines, and ends with this one. Use it as a context manager."""

    def __init__(self, command: Sequence[str]) -> None:
        self._said, self._read = tempfile.TemporaryFile(), b""  # noqa: SIM115  closed with the process
        self.process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said)

    def tell(self, *lines: str) -> None:
        """Write lines; of a process that has ended, the answer says how."""
        assert self.process.stdin is not None  # noqa: S101  it is a pipe
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            self.process.stdin.flush()

    def answer(self, seconds: float = math.inf) -> bytes | None:
        """Return the next line that it writes; b"" where it has ended, None where it takes longer."""
        assert self.process.stdout is not None  # noqa: S101  likewise
        until = time.monotonic() + seconds
        while b"\n" not in self._read:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left if left < math.inf else None)[0]:
                return None
            if not (chunk := os.read(self.process.stdout.fileno(), _CHUNK)):
                return b""
            self._read += chunk
        line, end_of_line, self._read = self._read.partition(b"\n")
        return line + end_of_line

    def words(self) -> str:
        """Return the last lines of its error stream, as messages have them."""
        return last_words(os.pread(self._said.fileno(), os.fstat(self._said.fileno()).st_size, 0))

    def close(self, patience_seconds: float | None = 0.0) -> None:
        """End it once, and what it has started; it may end by itself before, None: whenever that is."""
        if self._said.closed:
            return
        assert self.process.stdin is not None  # noqa: S101  likewise
        if patience_seconds != 0:
            with contextlib.suppress(BrokenPipeError, subprocess.TimeoutExpired):
                self.process.stdin.close()
                self.process.wait(patience_seconds)
        end(self.process)
        for pipe in (self.process.stdin, self.process.stdout, self._said):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
