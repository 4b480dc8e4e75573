"""Times runs that no other process interrupted, and counts what interrupts.

A run during which the system gave the processor to somebody else says how busy the machine is, not how
fast the model. Such runs do not count. Where none escapes, as beside a process that never sleeps on
every processor, the processor time of a run stands for its duration: it goes on while the run computes
and stands still while another process does.

All of this is in the kernel's own books: reading them takes microseconds and disturbs nobody, unlike a
look at the processors with a load (`cold/interference.py`), and tells of the very run.
"""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_STEAL, _TICK_MS = 8, 10.0  # column of /proc/stat, whose unit is USER_HZ: 100 a second on every architecture
#: Time given to undisturbed runs, in units of the block's own.
_PATIENCE = 3.0
#: So many undisturbed runs are enough where more cannot be had: one alone may be a slow one.
_ENOUGH = 2


def switches() -> int:
    """Count how often a thread of this process was pushed off its processor so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def waited_ms() -> float:
    """Return the time in ms that threads of this process have waited for a processor; 0 where the kernel does not tell."""
    total = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, IndexError, ValueError):  # a thread that has just ended
            total += int(thread.read_text().split()[1])  # time running, time waiting (ns), slices
    return total / 1e6


def thread_waited_ms() -> float:
    """Return the same of the calling thread alone."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e6
    return 0.0


def stolen_ms() -> float:
    """Return the time of all processors that the host has given to other guests so far; 0 where the kernel does not tell."""
    with contextlib.suppress(OSError, IndexError, ValueError):
        return int(Path("/proc/stat").read_text().partition("\n")[0].split()[_STEAL]) * _TICK_MS
    return 0.0


@dataclass(frozen=True, slots=True)
class Preemption:
    """Preemption holds the processor time lost to others.

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
        """Read the counters of switches, waiting and stolen time, which count from the start of the process or machine."""
        return cls(switches(), waited_ms(), stolen_ms())

    def since(self, before: Preemption) -> Preemption:
        """Return the loss since an earlier reading; a thread that ended meanwhile takes its waiting with it."""
        waited, stolen = self.waited_ms - before.waited_ms, self.stolen_ms - before.stolen_ms
        return Preemption(self.switches - before.switches, max(waited, 0.0), max(stolen, 0.0))


def timed_runs(run: Callable[[], None], *, least: int, most: int, block_ms: float, threads: int) -> list[int]:
    """Time runs that nobody interrupted; return their durations in nanoseconds.

    Args:
        run: one inference.
        least: so many are wanted.
        most: and no more than these.
        block_ms: they go on for about this long, within those limits.
        threads: of the run. Processor time can stand for the duration of a run on one thread only.

    Returns:
        At least one duration. Where too few runs stayed undisturbed, the others' processor time (one
        thread) or duration (several).
    """
    clock, processor = time.perf_counter_ns, time.process_time_ns
    whole: list[int] = []
    interrupted: list[int] = []
    began = clock()
    soon, late = began + int(block_ms * 1e6), began + int(_PATIENCE * block_ms * 1e6)
    while True:
        before, spent, start = switches(), processor(), clock()
        run()
        end = clock()
        if switches() == before:
            whole.append(end - start)
        else:
            interrupted.append(processor() - spent if threads == 1 else end - start)
        tried = len(whole) + len(interrupted)
        if len(whole) >= most or (len(whole) >= least and end >= soon):
            return whole
        if tried >= least and end >= late:
            return whole if len(whole) >= min(_ENOUGH, least) else whole + interrupted
