"""Measures memory as a fresh process meets it: page faults that a long-lived process would not pay again."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgeplan.measurement.process.host_memory import back_memory

_PROBE_BYTES, _HUGE_BYTES = 16 << 20, 2 << 20
_PRIORITY = -10  # nine tenths of a processor beside one process of the usual priority


def release_freed() -> None:
    """Give freed memory back to the system, so that what is allocated next is touched for the first time, as in a cold run."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(ctypes.c_size_t(0))


def first_touch() -> tuple[float, int]:
    """Measure the first touches of a session's region: milliseconds a page, and the bytes of a page (huge, if there are)."""
    back_memory(_PROBE_BYTES)
    region = _region(_PROBE_BYTES)
    faults, start = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt, time.perf_counter()
    region[:: mmap.PAGESIZE] = 1
    elapsed = time.perf_counter() - start
    faults = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - faults
    huge = faults < _PROBE_BYTES // mmap.PAGESIZE // 2
    page = _HUGE_BYTES if huge else mmap.PAGESIZE
    return elapsed * 1e3 * page / _PROBE_BYTES, page


def _region(size: int) -> npt.NDArray[np.uint8]:
    """Memory as a session has it: on huge pages where the system has them, and at the beginning of one."""
    memory = mmap.mmap(-1, size + _HUGE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = -whole.ctypes.data % _HUGE_BYTES
    return whole[start : start + size]


@contextlib.contextmanager
def prioritised() -> Iterator[None]:
    """Run the calling thread, and threads and processes that it starts, before other work, where the system allows that."""
    before = os.getpriority(os.PRIO_PROCESS, 0)
    with contextlib.suppress(PermissionError):  # few users may
        os.setpriority(os.PRIO_PROCESS, 0, min(before, _PRIORITY))
    try:
        yield
    finally:
        with contextlib.suppress(PermissionError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def stand_in_cache(path: Path, size: int) -> Path:
    """Return a file of `size` bytes on the disk, to be read as a cache of transformed weights would be."""
    chunk = np.random.default_rng(0).integers(0, 256, 1 << 20, dtype=np.uint8).tobytes()
    with path.open("wb") as file:
        left = max(size, mmap.PAGESIZE)
        while left > 0:
            left -= file.write(chunk[:left])
        file.flush()
        os.fsync(file.fileno())
    return path
