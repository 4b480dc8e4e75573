"""Pages of a loaded library that are in memory, and letting go of those that are not needed now.

Making kernels runs other code than executing them. What the library's file holds can be had again at any time: pages that
nobody changed are dropped once the kernels are made, and those that execution needs come back one by one.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator
from typing import Any

_DONTNEED = 4
_HEAD = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+\s*(.*)$")


class LibraryPages:
    """Pages of a file's mappings that cannot be written and hold nothing but what the file says.

    Args:
        path: of the library.
    """

    def __init__(self, path: str) -> None:
        self._advise: Any = ctypes.CDLL(None).madvise
        self._advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._mappings = tuple(_unchanged(path))

    def drop(self) -> None:
        """Take them out of this process's memory; whoever needs one has it again. Where the system refuses, they stay."""
        for start, end in self._mappings:
            self._advise(start, end - start, _DONTNEED)


def _unchanged(path: str) -> Iterator[tuple[int, int]]:
    """Begin and end of such mappings."""
    try:
        with open("/proc/self/smaps") as file:  # noqa: PTH123  pathlib is not imported for this
            lines = file.read().splitlines()
    except OSError:
        return
    mapping: tuple[int, int] | None = None
    for line in lines:
        if head := _HEAD.match(line):
            fits = head[4] == path and "w" not in head[3] and head[3][3] == "p"
            mapping = (int(head[1], 16), int(head[2], 16)) if fits else None
        elif mapping is not None and line.startswith("Anonymous:"):
            if int(line.split()[1]) == 0:  # relocated pages are there in no file
                yield mapping
            mapping = None
