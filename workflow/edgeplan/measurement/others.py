"""Tells what others take of the processors: runs that they interrupt, and their share of the time.

A run during which the system gave the processor to somebody else says how busy the machine is, not how fast the model. Such
runs do not count. Where none escapes, as beside a process that never sleeps on every processor, the processor time of a run
stands for its duration: it goes on while the run computes and stands still while another process does. All of this is in the
kernel's own books: reading them takes microseconds and disturbs nobody, unlike a look at the processors with a load
(`process/interference.py`), and tells of the very run.

A busy neighbour that is there all the time slows every repeat alike, so that repeats say nothing of it. The kernel's own books
do: what the processors worked, less what this process and those that it started did. Whoever finds a stored measurement that
was taken beside others asks whether the machine is quieter now, and then measures again.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from edgeplan.measurement.lock import is_held, observers
from edgeplan.support.cpus import busy_ticks
from edgeplan.support.files import write_json

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
    """Processor time lost to others: involuntary switches and waiting of this process, and what the host stole of all."""

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
    """Time runs that nobody interrupted; return their durations in nanoseconds, at least one.

    Where too few runs stayed undisturbed, the others' duration counts, or, on one thread, their processor time, which can
    stand for it there. `least` runs are wanted and `most` taken; within these limits they go on for about `block_ms`.
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


#: Key of the share in the captured environment of rows.
SHARE = "others_share"
#: File beside the rows: seconds of processors that were watched, and those that others took.
_BOOK = "others.json"

#: Up to this share of the processors' time others change no figure that is asked for: system services, a shell.
DISTURBED = 0.1
#: What is stored is measured again where others have less than this part of what they had then.
_QUIETER = 0.5
_LOOK_SECONDS = 0.3
#: What holds the machine for less has only looked whether it may.
_LEAST_SECONDS = 1.0
_PARENT, _TIMES = 1, slice(11, 15)  # of /proc/PID/stat, after the name: parent, and ticks of it and of its children that ended


class Others:
    """Watches what others do on some processors, from now on; without any on all that this process may use."""

    def __init__(self, processors: Sequence[int] = ()) -> None:
        self._processors = tuple(processors) or tuple(os.sched_getaffinity(0))
        self._began, self._busy, self._own = time.monotonic(), self._ticks(), _own_ticks()

    @property
    def told(self) -> bool:
        """Tell whether the system counts its processors' time and shows it to this process."""
        return self._busy > 0

    def seconds(self) -> float:
        """Return the processors' seconds since the beginning, all of them together."""
        return (time.monotonic() - self._began) * len(self._processors)

    def share(self) -> float:
        """Return the share of the processors' time, 0 to 1, that others had since the beginning; 0 if the system does not tell.

        What the host gave to other guests counts as theirs. What this process and those that it started did does not.
        """
        passed = self.seconds() * os.sysconf("SC_CLK_TCK")
        theirs = self._ticks() - self._busy - (_own_ticks() - self._own)
        return min(max(theirs / passed, 0.0), 1.0) if passed > 0 else 0.0

    def _ticks(self) -> int:
        with suppress(OSError, ValueError):
            found = busy_ticks(Path("/proc/stat").read_text(encoding="ascii").splitlines())
            return sum(found.get(processor, 0) for processor in self._processors)
        return 0


def _own_ticks() -> int:
    """Count the ticks of this process, of those that it started and that run still, and of all that they waited for."""
    parents, ticks = dict[int, int](), dict[int, int]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
            told = path.read_bytes().rpartition(b")")[2].split()
            parents[int(path.parent.name)] = int(told[_PARENT])
            ticks[int(path.parent.name)] = sum(map(int, told[_TIMES]))
    own, more = set[int](), {os.getpid()}
    while more:
        own |= more
        more = {pid for pid, parent in parents.items() if parent in more} - own
    return sum(ticks.get(pid, 0) for pid in own)


def worth_again(share: float, processors: Sequence[int] = ()) -> bool:
    """Tell whether a measurement beside others, whose share was this (`Others.share`), is worth repeating: they left."""
    if share <= DISTURBED:
        return False
    watch = Others(processors)
    time.sleep(_LOOK_SECONDS)
    return watch.share() < _QUIETER * share


@contextmanager
def watched(rows: Path, processors: Sequence[int]) -> Iterator[None]:
    """Note beside rows how much of the processors' time others had while this process measured them, holding the machine.

    What earlier runs noted is kept and added to. Where the kernel tells nothing, nothing is noted.
    """
    watch: Others | None = None
    seconds = others = 0.0

    def tell(held: bool) -> None:
        """Begin to count, or count what passed since."""
        nonlocal watch, seconds, others
        if watch is not None and watch.told and not held:
            passed = watch.seconds()
            seconds, others = seconds + passed, others + watch.share() * passed
        watch = Others(processors) if held else None

    if is_held():
        tell(held=True)
    observers.append(tell)
    try:
        yield
    finally:
        observers.remove(tell)
        tell(held=False)
        if seconds >= _LEAST_SECONDS and rows.is_dir():
            before, of_them = _noted(rows)
            write_json(rows / _BOOK, {"seconds": round(before + seconds, 2), "others": round(of_them + others, 2)})


def others_share(rows: Path) -> dict[str, float]:
    """Return the share of the processors' time that others took while rows were measured, for their environment."""
    seconds, others = _noted(rows)
    return {SHARE: round(others / seconds, 4)} if seconds > 0 else {}


def _noted(rows: Path) -> tuple[float, float]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads((rows / _BOOK).read_text(encoding="utf-8"))
        return float(noted["seconds"]), float(noted["others"])
    return 0.0, 0.0
