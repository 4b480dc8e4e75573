"""Manages the page cache of Linux file by file: evict, fill, look, and time the disk behind it."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from edgeplan.errors import DeviceError
from edgeplan.runtime.readahead import Bringer

#: The kernel drops only pages that nobody is using at that moment: try again a few times.
_EVICTION_ATTEMPTS = 5
_RETRY_SECONDS = 0.02


def evict(files: Iterable[Path]) -> float:
    """Drop the pages of the files from the page cache.

    Returns:
        The share of their bytes still cached, 0 to 1: above zero where another process maps a file or the file system keeps it.
    """
    paths = tuple(files)
    share = 1.0
    for attempt in range(_EVICTION_ATTEMPTS):
        if attempt:
            time.sleep(_RETRY_SECONDS)
        for path in paths:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # dirty pages cannot be dropped
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
        share = cached_share(paths)
        if share == 0.0:
            break
    return share


def read_through(files: Iterable[Path]) -> tuple[int, float]:
    """Bring the files into the page cache from end to end, as cold starts of ours bring their weights.

    Returns:
        Bytes read, and the milliseconds it took.
    """
    total = 0
    start = time.perf_counter()
    with Bringer() as bringer:
        for path in files:
            with path.open("rb", buffering=0) as file:
                total += bringer.bring(file.fileno(), 0, os.fstat(file.fileno()).st_size)
    return total, (time.perf_counter() - start) * 1e3


def read_bandwidth_mb_per_s(files: Iterable[Path]) -> float:
    """Measure the bandwidth of reading the evicted files from end to end, MB/s (10^6 bytes).

    It is 0 where they could not be evicted, since that would time memory.
    """
    paths = tuple(files)
    if evict(paths) > 0.0:
        return 0.0
    total, milliseconds = read_through(paths)
    return total / 1e3 / milliseconds


def cached_share(files: Iterable[Path]) -> float:
    """Return the share of the files' bytes in the page cache, 0 to 1, by mincore(2)."""
    resident = pages = 0
    for path in files:
        found, total = _resident_pages(path)
        resident, pages = resident + found, pages + total
    return resident / pages if pages else 0.0


def _resident_pages(path: Path) -> tuple[int, int]:
    size = path.stat().st_size
    if size == 0:
        return 0, 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_ubyte))
    libc.mincore.restype = ctypes.c_int
    pages = -(-size // mmap.PAGESIZE)
    vector = (ctypes.c_ubyte * pages)()
    # a private writable mapping is what ctypes can take an address of; it is never written
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as view,
    ):
        anchor = ctypes.c_char.from_buffer(view)
        failed = libc.mincore(ctypes.addressof(anchor), size, vector)
        del anchor  # the mapping cannot be closed while its address is held
    if failed:
        raise DeviceError(
            f"cannot ask what the page cache holds: {os.strerror(ctypes.get_errno())}",
            where=str(path),
            next_step="measure on Linux, with the models on a local file system",
        )
    return int((np.frombuffer(bytes(vector), np.uint8) & 1).sum(dtype=np.int64)), pages
