"""Reads the system's counters of this process: faults, resident memory, bytes from the disk."""

from __future__ import annotations

import contextlib
import mmap
import resource
import time
from dataclasses import dataclass
from pathlib import Path

_KIB = 1024


def _fields(path: str) -> dict[str, str]:
    """Read the `key: value` lines of a file of /proc; empty where the system has none."""
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return {}
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _kib(fields: dict[str, str], key: str) -> int:
    return int(fields.get(key, "0 kB").split()[0]) * _KIB


@dataclass(frozen=True, slots=True)
class Counters:
    """Holds the state of this process at one moment; sizes in bytes.

    `peak_rss` is VmHWM rather than getrusage's ru_maxrss: the latter is inherited over fork and exec, so a large parent would
    show up in a small child.
    """

    minor_faults: int
    major_faults: int
    read: int
    rss: int
    peak_rss: int
    anonymous: int

    @classmethod
    def now(cls) -> Counters:
        """Read all counters of this process."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        status = _fields("/proc/self/status")
        read = int(_fields("/proc/self/io").get("read_bytes", "0"))
        return cls(
            usage.ru_minflt, usage.ru_majflt, read, _kib(status, "VmRSS"), _kib(status, "VmHWM"), _kib(status, "RssAnon")
        )


def reset_peak() -> None:
    """Start the peak of resident memory afresh, so that imports do not count (proc(5), clear_refs)."""
    with contextlib.suppress(OSError):  # kernels without it report the peak of the whole process, which is never too small
        Path("/proc/self/clear_refs").write_text("5")


def first_touch_ms(size_bytes: int) -> float:
    """Measure the milliseconds to map and touch fresh memory of that size, a page at a time.

    It is done twice, and the second time counts: a virtual machine's host has backed the memory by then, as it has when a start
    begins (`host_memory.back_memory`).
    """
    if size_bytes < mmap.PAGESIZE:
        return 0.0
    size = size_bytes // mmap.PAGESIZE * mmap.PAGESIZE
    taken = 0.0
    for _ in range(2):
        start = time.perf_counter()
        with mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
            memory[:: mmap.PAGESIZE] = b"\1" * (size // mmap.PAGESIZE)
            taken = (time.perf_counter() - start) * 1e3
    return taken
