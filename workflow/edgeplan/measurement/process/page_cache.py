"""Manages the page cache of Linux file by file: evict, fill, look, and time the disk behind it, whose read-ahead is set.

Read-ahead belongs to a disk, not to a process (`read_ahead_kb`), and is put back even where this process is killed: a guard is
started before it is changed, a process of its own that waits for the end of a pipe which this one holds.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
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


_DISKS = Path("/sys/class/bdi")
#: Waits for the end of its input, then writes what it was given to a file: the path and the text are its arguments.
_GUARD = "import sys\nsys.stdin.read()\nopen(sys.argv[1], 'w').write(sys.argv[2])\n"


class FixedReadAheadError(Exception):
    """The system lets nobody here change how much it reads ahead; the message says why."""


def read_ahead_file(path: Path) -> Path:
    """Name the file of the system that holds how much is read ahead on the disk of a path."""
    device = path.stat().st_dev
    return _DISKS / f"{os.major(device)}:{os.minor(device)}" / "read_ahead_kb"


def read_ahead_kb(path: Path) -> int | None:
    """Return how many KiB the system reads ahead on the disk of a path; None where it does not say."""
    try:
        return int(read_ahead_file(path).read_text())
    except (OSError, ValueError):
        return None


@contextlib.contextmanager
def reading_ahead(path: Path, kilobytes: int) -> Iterator[None]:
    """Have the system read so many KiB ahead on the disk of a path while the block runs."""
    file = read_ahead_file(path)
    try:
        before = file.read_text().strip()
        if not os.access(file, os.W_OK):
            raise FixedReadAheadError(f"{file} cannot be written by this user")
    except OSError as error:
        raise FixedReadAheadError(f"{file}: {error.strerror}") from error
    with _guard(file, before):
        try:
            file.write_text(str(kilobytes))
        except OSError as error:
            raise FixedReadAheadError(f"{file} cannot be written: {error.strerror}") from error
        yield


@contextlib.contextmanager
def _guard(file: Path, before: str) -> Iterator[None]:
    """A process that outlives this one for a moment, in a session of its own so that no signal for this one reaches it."""
    command = [sys.executable, "-I", "-S", "-c", _GUARD, str(file), before]
    with subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True) as process:  # noqa: S603  our own interpreter
        try:
            yield
        finally:
            assert process.stdin is not None  # noqa: S101  it is piped
            process.stdin.close()
            process.wait()
