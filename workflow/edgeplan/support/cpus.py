"""Tells the processors that this process may use, and how much of their time: affinity, cpuset, control groups' quota.

A machine has more than a process may use in a container, beside `taskset`, or in a job of a cluster. A quota gives a group of
processes so much time of all processors in each period, and stops them until the next when it is used up.
"""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from edgeplan.support.cgroups import PROC, ROOT, fields, groups, lines

#: As it was started: stages pin themselves to the cores of a device, and take back all that they had.
_STARTED_WITH = frozenset(os.sched_getaffinity(0))
_NS_PER_MS, _US_PER_MS = 1e6, 1e3
_STAT, _WINDOW_SECONDS = Path("/proc/stat"), 0.05
#: A processor is left only for one that others use by this much less, as a share of its time.
_WORTH_MOVING = 0.15


def allowed() -> frozenset[int]:
    """Return the processors that this process was given when it started; pinned to some, it may go back to all."""
    return _STARTED_WITH


def workers() -> int:
    """Count the workers that compute side by side: one a processor, and no more than a quota lets run all the time."""
    given = quota()
    count = len(os.sched_getaffinity(0))
    return count if given is None else max(1, min(count, math.ceil(given)))


def quota(proc: Path = PROC, root: Path = ROOT) -> float | None:
    """Return the processors whose time the control groups of this process give it, such as 0.5; None without a limit."""
    found = [_quota(version, folder) for version, folder in groups("cpu", proc, root)]
    return min((one for one in found if one is not None), default=None)


def _quota(version: int, folder: Path) -> float | None:
    if version == 2:  # "max 100000" or "50000 100000"
        texts = (lines(folder / "cpu.max") or [""])[0].split()
    else:
        texts = [(lines(folder / f"cpu.cfs_{name}_us") or [""])[0] for name in ("quota", "period")]
    if len(texts) < 2 or not all(text.isdigit() for text in texts):  # "max", -1, or not told
        return None
    given, period = map(int, texts)
    return given / period if period else None


def throttled_ms(proc: Path = PROC, root: Path = ROOT) -> float:
    """Return the time that quotas stopped the control groups of this process so far, in ms summed over processors."""
    total = 0.0
    for version, folder in groups("cpu", proc, root):
        told = fields(folder / "cpu.stat")
        total += told.get("throttled_usec", 0) / _US_PER_MS if version == 2 else told.get("throttled_time", 0) / _NS_PER_MS
    return total


_THROTTLED_AT_START = throttled_ms()


def held_back() -> str:
    """Return the quota that has stopped this process since it started, in words; "" where none did."""
    given = quota()
    if given is None or throttled_ms() <= _THROTTLED_AT_START:
        return ""
    return f"the CPU quota of a control group around this process ({given:.2f} of a processor's time)"


def calmer(doing: str = "stop other work") -> str:
    """Advise how to get undisturbed times: `doing`, or lift the quota that has stopped this process."""
    held = held_back()
    return f"lift {held}: its cpu.max, or --cpus of the container" if held else doing


def busy_ticks(lines: Sequence[str]) -> dict[int, int]:
    """Return ticks that each processor worked or was not there (steal), by its number, of the lines of /proc/stat."""
    found = {}
    for line in lines:
        name, *numbers = line.split()
        if name.startswith("cpu") and name[3:].isdigit():
            user, nice, system, _, _, irq, softirq, steal = (int(n) for n in numbers[:8])
            found[int(name[3:])] = user + nice + system + irq + softirq + steal
    return found


def others_load(processors: Sequence[int], seconds: float = _WINDOW_SECONDS) -> dict[int, float]:
    """Return the share of each processor's time that others use, seen while this process sleeps; empty where it is not told."""
    try:
        before, began = busy_ticks(_STAT.read_text().splitlines()), time.monotonic()
        time.sleep(seconds)
        after, passed = busy_ticks(_STAT.read_text().splitlines()), time.monotonic() - began
    except (OSError, ValueError):  # no Linux, or a container that hides it
        return {}
    ticks = passed * os.sysconf("SC_CLK_TCK")
    return {p: (after[p] - before[p]) / ticks for p in processors if p in before and p in after}


def least_loaded(cores: Sequence[int], spare: Sequence[int], load: dict[int, float]) -> tuple[int, ...]:
    """Return the processors to use: `cores`, each left for a spare one of their kind where others use that one clearly less.

    `load` is the share of each that others use; a processor that it does not name stays as it is.
    """
    chosen, free = list(cores), [p for p in spare if p in load and p not in cores]
    for place, core in enumerate(cores):
        best = min(free, key=lambda p: load[p], default=None)
        if best is not None and core in load and load[core] - load[best] > _WORTH_MOVING:
            free.remove(best)
            chosen[place] = best
    return tuple(chosen)


def pin_threads(processors: Sequence[int]) -> None:
    """Pin every thread of this process."""
    os.sched_setaffinity(0, processors)
    for task in Path("/proc/self/task").glob("[0-9]*"):
        try:
            os.sched_setaffinity(int(task.name), processors)
        except ProcessLookupError:  # it has ended since
            continue


@contextlib.contextmanager
def pinned(*processors: int) -> Iterator[None]:
    """Pin the calling thread, and what it starts, for a while; none: as it is."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, processors or before)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
