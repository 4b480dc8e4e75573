"""Reads lines of bounded length from a descriptor."""

from __future__ import annotations

import os
import select
import time

from edgeplan.errors import FormatError

_CHUNK_BYTES = 1 << 16


class LineReader:
    """Reads lines; what a longer line holds is never kept.

    Args:
        descriptor: to read from.
        most: bytes of a line.
    """

    def __init__(self, descriptor: int, most: int) -> None:
        self._descriptor, self._most = descriptor, most
        self._buffer = bytearray()
        self._searched = 0

    def next(self, timeout_s: float | None = None) -> bytes | None:
        """Read the next line, without its end; None at the end of the input, where a cut line counts as none."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while (place := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            if self._searched > self._most:
                break
            if end is not None and not select.select([self._descriptor], [], [], max(0.0, end - time.monotonic()))[0]:
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
