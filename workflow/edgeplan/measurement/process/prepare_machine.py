"""Prepares the machine last before the clock starts: page cache and memory are as they should be, processors free.

Every engine starts with the same memory: its code is mapped, and the machine has memory at hand. Neither belongs to a cold
start as it is counted here (docs/measuring.md), and both come and go with what ran before. On a virtual machine they decide
more than the engines do: a host that takes back free memory within seconds lets the first touch of a huge page take 5 ms
instead of 0.1, and pages that the page cache holds since a disk wrote them there, or that nobody looked at for a while, cost up
to 5 us each when they are looked at: 300 ms for the 244 MB of AlexNet, on pages that count as cached.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process.interference import LIMIT, wait_until_free

_POPULATE_READ = 22  # Linux 5.14; before it, code is faulted in by the run, as it always was
_TIMES_FILES, _LEAST_BYTES, _MOST_BYTES = 4, 64 << 20, 512 << 20
_MOST_SHARE = 0.5  # of the memory that is free


def read_libraries(process: int | str = "self") -> None:
    """Have the shared libraries of a process in the page cache: it has loaded them, which is not timed.

    A kernel that reclaims what was not used for a while takes the pages of libraries first; reading them back from the disk in
    the midst of a first inference takes milliseconds.
    """
    libraries = {Path(fields[5]) for fields in _libraries(process)}
    page_cache.read_through(path for path in sorted(libraries) if path.is_file() and page_cache.cached_share([path]) < 1.0)


def _libraries(process: int | str) -> list[list[str]]:
    lines = [line.split(maxsplit=5) for line in Path(f"/proc/{process}/maps").read_text().splitlines()]
    return [fields for fields in lines if len(fields) > 5 and ".so" in Path(fields[5]).name and fields[1][0] == "r"]


def map_code() -> None:
    """Have the shared libraries of this process in memory and mapped."""
    read_libraries()
    advise = ctypes.CDLL(None).madvise
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for addresses, permissions, *_ in _libraries("self"):
        if "w" not in permissions:  # what is written to was touched when it was linked
            start, end = (int(address, 16) for address in addresses.split("-"))
            if advise(start, end - start, _POPULATE_READ) == 0:  # every page of it is there
                _look_at(np.ctypeslib.as_array((ctypes.c_ubyte * (end - start)).from_address(start)))


def back_files(files: Iterable[Path]) -> None:
    """Look at every page of files that the page cache holds, so that the host backs each of them.

    A byte of each page is read, so that next to nothing of the files comes into the processor's own caches.
    """
    for path in files:
        if size := path.stat().st_size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as view:
                pages = np.frombuffer(view, np.uint8)
                _look_at(pages)
                del pages  # a mapping that is looked at cannot be closed


def _look_at(memory: NDArray[np.uint8]) -> None:
    memory[:: mmap.PAGESIZE].max()


def back_memory(file_bytes: int) -> None:
    """Touch memory and give it back, so that what the run takes next is backed by the host.

    Engines take up to four times as much memory as the files that the run reads.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    size = min(max(_TIMES_FILES * file_bytes, _LEAST_BYTES), _MOST_BYTES, int(_MOST_SHARE * free))
    with mmap.mmap(-1, max(size, mmap.PAGESIZE), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        pages = np.frombuffer(memory, np.uint8)
        pages[:: mmap.PAGESIZE] = 1
        del pages  # a mapping that is looked at cannot be closed


_WAIT_SECONDS = 3.0
_BACKED_SECONDS = 0.3  # while one waits, the host takes memory back


def prepare_machine(files: Sequence[Path], processors: Sequence[int], *, evicted: bool, usual_us: float) -> float:
    """Bring the page cache and memory to where a start begins, and wait until the processors are free, for seconds at most.

    Free moments are short where other guests are busy: nothing comes between the last look and the start. `usual_us` is the
    usual time of the load of `interference.py`; 0 waits for nothing.

    Returns:
        The last look at the processors, over the usual time; 1 without one.
    """
    size = sum(path.stat().st_size for path in files)
    end = time.monotonic() + _WAIT_SECONDS
    while True:
        if evicted:
            page_cache.evict(files)
        else:
            if page_cache.cached_share(files) < 1.0:
                page_cache.read_through(files)
            back_files(files)
        back_memory(size)
        if not usual_us:
            return 1.0
        found = wait_until_free(processors, usual_us, seconds=_BACKED_SECONDS)
        if found <= LIMIT or time.monotonic() > end:
            return found
