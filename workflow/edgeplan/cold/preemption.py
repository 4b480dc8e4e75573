"""Whether what was measured had its processors to itself, by the kernel's own books.

A thread that other work pushes off its processor counts an involuntary context switch, and its waiting is added up; a processor
that the host gives to another guest counts stolen time. Reading these takes microseconds and disturbs nobody, unlike a look at
the processors with a load (`interference.py`), and tells of the very sample rather than of the moments around it.
"""

from __future__ import annotations

import contextlib
import resource
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_STEAL, _TICK_MS = 8, 10.0  # column of /proc/stat, whose unit is USER_HZ: 100 a second on every architecture


def switches() -> int:
    """How often a thread of this process was pushed off its processor so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def waited_ms() -> float:
    """How long the threads of this process have waited for a processor so far; 0 where the kernel does not tell."""
    total = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError, ValueError):  # a thread that has just ended
            total += int(thread.read_text().split()[1])  # time running, time waiting (ns), slices
    return total / 1e6


def thread_waited_ms() -> float:
    """The same of the calling thread alone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e6
    return 0.0


def stolen_ms() -> float:
    """Time of all processors that the host has given to other guests so far; 0 where the kernel does not tell."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/stat").read_text().partition("\n")[0].split()[_STEAL]) * _TICK_MS
    return 0.0


@dataclass(frozen=True, slots=True)
class Preemption:
    """What was lost to others.

    Attributes:
        switches: involuntary context switches of this process.
        waited_ms: waiting for a processor, summed over its threads.
        stolen_ms: time stolen by the host, summed over all processors.
    """

    switches: int = 0
    waited_ms: float = 0.0
    stolen_ms: float = 0.0

    @classmethod
    def now(cls) -> Self:
        """Since the start of the process, and of the machine."""
        return cls(switches(), waited_ms(), stolen_ms())

    def since(self, before: Preemption) -> Preemption:
        """What was lost after an earlier reading; a thread that ended meanwhile takes its waiting with it."""
        waited, stolen = self.waited_ms - before.waited_ms, self.stolen_ms - before.stolen_ms
        return Preemption(self.switches - before.switches, max(waited, 0.0), max(stolen, 0.0))
