"""Processes that are asked by lines, and answer each by a line."""

from __future__ import annotations

import contextlib
import math
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from edgeplan.errors import FormatError
from edgeplan.support.subprocesses import end, start
from edgeplan.support.workers import last_words

_CHUNK_BYTES = 1 << 16


class LineReader:
    """Reads lines from a descriptor, of so many bytes at most where they are limited: what a longer one holds is never kept."""

    def __init__(self, descriptor: int, most: int = sys.maxsize) -> None:
        self._descriptor, self._most = descriptor, most
        self._buffer = bytearray()
        self._searched = 0

    def next(self, timeout_s: float = math.inf) -> bytes | None:
        """Read the next line, without its end; None at the end of the input, where a cut line counts as none."""
        until = time.monotonic() + timeout_s
        while (place := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if self._searched > self._most:
                break
            left = until - time.monotonic()
            if left < math.inf and (left <= 0 or not select.select([self._descriptor], [], [], left)[0]):
                raise TimeoutError
            try:
                chunk = os.read(self._descriptor, _CHUNK_BYTES)
            except OSError:
                return None
            if not chunk:
                return None
            self._buffer += chunk
        if place < 0 or place > self._most:
            raise FormatError(
                f"a line is longer than the {self._most >> 20} MiB that it may have",
                where="lines between host and board",
                next_step="measure fewer subjects at once (measurement.batch_size); look what else writes there",
            )
        line = bytes(self._buffer[:place])
        del self._buffer[: place + 1]
        self._searched = 0
        return line


class Answering:
    """A process that is asked by lines, and ends with this one. Use it as a context manager."""

    def __init__(self, command: Sequence[str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        self.process = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said)
        assert self.process.stdout is not None  # noqa: S101  it is a pipe
        self._lines = LineReader(self.process.stdout.fileno())

    def tell(self, *lines: str) -> None:
        """Write lines; of a process that has ended, the answer says how."""
        assert self.process.stdin is not None  # noqa: S101  likewise
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write("".join(f"{line}\n" for line in lines).encode())
            self.process.stdin.flush()

    def answer(self, seconds: float = math.inf) -> bytes | None:
        """Return the next line that it writes; b"" where it has ended, None where it takes longer."""
        try:
            line = self._lines.next(seconds)
        except TimeoutError:
            return None
        return b"" if line is None else line + b"\n"

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
