"""Memory of a session: one anonymous region, and files mapped to be read."""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.native import entries
from edgeplan.runtime.native.words import LANES

Bytes = npt.NDArray[np.uint8]

PAGE_BYTES = mmap.PAGESIZE
HUGE_BYTES = 2 << 20
_MADV_POPULATE_READ = 22  # Linux 5.14; Python 3.11 has no name for it
_DIGEST_BYTES = 7  # exact in every JSON reader's integers of 64 bits


def checksum(data: Bytes) -> int:
    """A 56-bit digest of transformed weights at the speed of memory: every word mixed in at its place, the rest hashed.

    Any changed word and words in other places show. It is no protection against somebody who means to deceive.

    Args:
        data: bytes, a multiple of 8 of them.
    """
    states = np.arange(1, LANES + 1, dtype=np.uint64)
    entries.mix(data.view(np.uint64), states)
    state = hashlib.blake2b(states.tobytes(), digest_size=_DIGEST_BYTES)
    state.update(len(data).to_bytes(8, "little"))
    return int.from_bytes(state.digest(), "little")


class ZeroedMemory:
    """Zeroed anonymous memory on huge pages where the system has them: fewer faults at first touch.

    Attributes:
        data: its bytes; address: where they lie, at the start of a huge page.
    """

    def __init__(self, size: int) -> None:
        memory = mmap.mmap(-1, size + HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(memory, np.uint8)
        start = -whole.ctypes.data % HUGE_BYTES
        self.data: Bytes = whole[start : start + size]
        self.address = int(whole.ctypes.data) + start


_ADVISE: Any = ctypes.CDLL(None, use_errno=True).madvise
_ADVISE.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class MappedFile:
    """A file mapped to be read.

    Args:
        descriptor: of the open file; may be closed afterwards.
        size: bytes to map, at most its size.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.data: Bytes = np.frombuffer(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ), np.uint8)
        self.address = int(self.data.ctypes.data)

    def populate(self, offset: int, size: int) -> None:
        """Map the pages of a part, reading what is not in memory, while other threads run."""
        start, end = offset // PAGE_BYTES * PAGE_BYTES, offset + size
        # part by part: meanwhile the address space is locked, and whoever generates a kernel needs to change it
        for part in range(start, end, HUGE_BYTES):
            if _ADVISE(self.address + part, min(HUGE_BYTES, end - part), _MADV_POPULATE_READ):
                error = ctypes.get_errno()
                if error != _EINVAL:  # a kernel without it: the first touch faults the pages in
                    raise OSError(error, os.strerror(error))


_EINVAL = 22


def contents_stamp(descriptor: int) -> tuple[int, int]:
    """Size and time of modification of an open file: what changes when its contents do, and not when its name does."""
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def read_fully(descriptor: int, target: memoryview, offset: int) -> None:
    """Fill `target` from an offset."""
    while target.nbytes:
        got = os.preadv(descriptor, [target], offset)
        if not got:
            raise EOFError(f"the file ends before byte {offset + target.nbytes}")
        target, offset = target[got:], offset + got


def in_memory(descriptor: int, size: int, probes: int = 8) -> bool:
    """Tell whether a file seems to be in the page cache: a few bytes of it can be had without waiting."""
    buffer = bytearray(1)
    try:
        return all(
            os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT) == 1 for offset in range(0, size, max(1, size // probes))
        )
    except OSError:  # it is not there (EAGAIN), or the file system cannot tell
        return False
