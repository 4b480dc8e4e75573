"""Reads the system's counters of a process: faults, resident memory, bytes from the disk, time lost to others."""

from __future__ import annotations

import contextlib
import mmap
import time
from dataclasses import dataclass
from pathlib import Path

from edgeplan.support.cgroups import fields
from edgeplan.support.own_process import resident

_MINOR_FAULTS, _MAJOR_FAULTS = 7, 9  # of /proc/PID/stat, behind the name


@dataclass(frozen=True, slots=True)
class Counters:
    """Holds the state of a process at one moment; sizes in bytes, times in ms.

    Attributes:
        minor_faults, major_faults: page faults.
        read: bytes from the disk.
        rss, peak: resident memory, and the most since it was reset (VmHWM: ru_maxrss is inherited over fork and exec, so that
            a large parent would show up in a small child).
        anonymous, file, shared: parts of `rss`.
        switches: involuntary context switches, of threads that live.
        ran_ms, waited_ms: processor time of these threads, and their waiting for a processor; 0 where the kernel does not tell.
    """

    minor_faults: int
    major_faults: int
    read: int
    rss: int
    peak: int
    anonymous: int
    file: int
    shared: int
    switches: int
    ran_ms: float
    waited_ms: float

    @classmethod
    def of(cls, process: int | str = "self") -> Counters:
        """Read all counters of a process, by its number; of this one without."""
        folder = Path(f"/proc/{process}")
        stat = (folder / "stat").read_text().rpartition(")")[2].split()
        memory = resident(process)
        switches, ran, waited = 0, 0, 0
        for thread in (folder / "task").iterdir():
            with contextlib.suppress(OSError, IndexError, ValueError):  # it has just ended
                switches += fields(thread / "status").get("nonvoluntary_ctxt_switches:", 0)
                time_ran, time_waited, _ = (thread / "schedstat").read_text().split()
                ran, waited = ran + int(time_ran), waited + int(time_waited)
        minor, major = int(stat[_MINOR_FAULTS]), int(stat[_MAJOR_FAULTS])
        read = fields(folder / "io").get("read_bytes:", 0)
        return cls(minor, major, read, **memory, switches=switches, ran_ms=ran / 1e6, waited_ms=waited / 1e6)


def reset_peak(process: int | str = "self") -> None:
    """Start the peak of resident memory afresh, so that imports do not count (proc(5), clear_refs)."""
    with contextlib.suppress(OSError):  # kernels without it report the peak of the whole process, which is never too small
        Path(f"/proc/{process}/clear_refs").write_text("5")


def first_touch_ms(size_bytes: int) -> float:
    """Measure the milliseconds that this process needs to map and touch fresh memory of that size, a page at a time.

    It is done twice, and the second time counts: a virtual machine's host has backed the memory by then, as it has when a start
    begins (`prepare_machine.back_memory`).
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
