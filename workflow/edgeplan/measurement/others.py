"""This module tells how much of the processors' time others have: while something is measured, and now.

A busy neighbour that is there all the time slows every repeat alike, so that repeats say nothing of it. The kernel's own books
do: what the processors worked, less what this process and those that it started did. Whoever finds a stored measurement that
was taken beside others asks whether the machine is quieter now, and then measures again.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from edgeplan.measurement.lock import is_held, observers
from edgeplan.support.cpus import busy_ticks
from edgeplan.support.files import write_json

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
    """Watches what others do on some processors, from now on.

    Args:
        processors: those of what is measured; all that this process may use without.
    """

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
    """Tell whether a measurement beside others is worth repeating, since they have left.

    Args:
        share: what they had then (`Others.share`).
        processors: see `Others`.
    """
    if share <= DISTURBED:
        return False
    watch = Others(processors)
    time.sleep(_LOOK_SECONDS)
    return watch.share() < _QUIETER * share


class _Account:
    """An account holds seconds of the processors while this process has the machine, and those that others had."""

    def __init__(self, processors: Sequence[int]) -> None:
        self._processors = processors
        self._watch: Others | None = None
        self.seconds = self.others = 0.0

    def tell(self, held: bool) -> None:
        """Begin to count, or count what passed since."""
        if held:
            self._watch = Others(self._processors)
        elif self._watch is not None:
            if self._watch.told:
                passed = self._watch.seconds()
                self.seconds, self.others = self.seconds + passed, self.others + self._watch.share() * passed
            self._watch = None


@contextmanager
def watched(rows: Path, processors: Sequence[int]) -> Iterator[None]:
    """Note beside rows how much of the processors' time others had while this process measured them, holding the machine.

    What earlier runs noted is kept and added to. Where the kernel tells nothing, nothing is noted.

    Args:
        rows: folder of the rows.
        processors: those that the measuring runs on.
    """
    account = _Account(processors)
    if is_held():
        account.tell(held=True)
    observers.append(account.tell)
    try:
        yield
    finally:
        observers.remove(account.tell)
        account.tell(held=False)
        if account.seconds >= _LEAST_SECONDS and rows.is_dir():
            seconds, others = _noted(rows)
            noted = {"seconds": round(seconds + account.seconds, 2), "others": round(others + account.others, 2)}
            write_json(rows / _BOOK, noted)


def others_share(rows: Path) -> dict[str, float]:
    """Return the share of the processors' time that others took while rows were measured, for their environment."""
    seconds, others = _noted(rows)
    return {SHARE: round(others / seconds, 4)} if seconds > 0 else {}


def _noted(rows: Path) -> tuple[float, float]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads((rows / _BOOK).read_text(encoding="utf-8"))
        return float(noted["seconds"]), float(noted["others"])
    return 0.0, 0.0
