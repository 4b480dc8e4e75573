"""How much of the processors' time other processes took while a stage measured.

A busy neighbour that is there all the time slows every repeat alike, so that repeats say nothing of it. The kernel's own books
do: what the processors worked, less what this process and its children did.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from edgeplan.measurement.lock import is_held, observers
from edgeplan.measurement.preemption import busy_ticks
from edgeplan.support.files import write_json

#: Key of the share in the captured environment of rows.
SHARE = "others_share"
#: File beside the rows: seconds of processors that were watched, and those that others took.
_BOOK = "others.json"
_STAT = Path("/proc/stat")
#: A stage that holds the machine for less has only looked whether it may.
_LEAST_SECONDS = 1.0


def _busy_s(processors: Sequence[int]) -> float:
    """Seconds that the processors worked, or were taken by the host, since the machine started."""
    busy = busy_ticks(_STAT.read_text(encoding="utf-8").splitlines())
    return sum(busy[p] for p in processors) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Seconds that this process and its ended children worked."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class _Watch:
    """Counts while this process holds the machine: seconds of the processors, and those of them that others took."""

    def __init__(self, processors: Sequence[int]) -> None:
        self._processors = processors
        self._began: tuple[float, float, float] | None = None
        self.seconds = self.others = 0.0

    def tell(self, held: bool) -> None:
        """Begin to count, or count what passed since."""
        with suppress(OSError, ValueError, KeyError):  # no Linux, or a container that hides it
            now = time.monotonic(), _busy_s(self._processors), _own_s()
            if held:
                self._began = now
            elif self._began is not None:
                passed, busy, own = (end - begin for end, begin in zip(now, self._began, strict=True))
                self._began = None
                self.seconds += passed * len(self._processors)
                self.others += min(max(busy - own, 0.0), passed * len(self._processors))


@contextmanager
def watched(rows: Path, processors: Sequence[int]) -> Iterator[None]:
    """Note beside rows how much of the processors' time others took while this process measured them, holding the machine.

    What earlier runs noted is kept and added to. Where the kernel tells nothing, nothing is noted.

    Args:
        rows: folder of the rows.
        processors: those that the measuring runs on.
    """
    watch = _Watch(processors)
    if is_held():
        watch.tell(held=True)
    observers.append(watch.tell)
    try:
        yield
    finally:
        observers.remove(watch.tell)
        watch.tell(held=False)
        if watch.seconds >= _LEAST_SECONDS and rows.is_dir():
            seconds, others = _noted(rows)
            noted = {"seconds": round(seconds + watch.seconds, 2), "others": round(others + watch.others, 2)}
            write_json(rows / _BOOK, noted)


def others_share(rows: Path) -> dict[str, float]:
    """The share of the processors' time that others took while rows were measured, for their environment."""
    seconds, others = _noted(rows)
    return {SHARE: round(others / seconds, 4)} if seconds > 0 else {}


def _noted(rows: Path) -> tuple[float, float]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads((rows / _BOOK).read_text(encoding="utf-8"))
        return float(noted["seconds"]), float(noted["others"])
    return 0.0, 0.0
