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

from edgeplan.measurement.preemption import busy_ticks
from edgeplan.support.files import write_json

#: Key of the share in the captured environment of rows.
SHARE = "others_share"
#: File beside the rows: seconds of processors that were watched, and those that others took.
_BOOK = "others.json"
_STAT = Path("/proc/stat")


def _busy_s(processors: Sequence[int]) -> float:
    """Seconds that the processors worked, or were taken by the host, since the machine started."""
    busy = busy_ticks(_STAT.read_text(encoding="utf-8").splitlines())
    return sum(busy[p] for p in processors) / os.sysconf("SC_CLK_TCK")


def _own_s() -> float:
    """Seconds that this process and its ended children worked."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@contextmanager
def watched(rows: Path, processors: Sequence[int]) -> Iterator[None]:
    """Note beside rows how much of the processors' time others took while some of them were measured.

    What earlier runs noted is kept and added to; a run that stores no rows adds nothing. Where the kernel tells
    nothing, nothing is noted.

    Args:
        rows: folder of the rows.
        processors: those that the measuring runs on.
    """
    stored = _contents(rows)
    try:
        began, busy, own = time.monotonic(), _busy_s(processors), _own_s()
    except (OSError, ValueError, KeyError):  # no Linux, or a container that hides it
        yield
        return
    try:
        yield
    finally:
        if _contents(rows) != stored:
            passed = (time.monotonic() - began) * len(processors)
            taken = max(0.0, _busy_s(processors) - busy - (_own_s() - own))
            seconds, others = _noted(rows)
            write_json(rows / _BOOK, {"seconds": round(seconds + passed, 2), "others": round(others + min(taken, passed), 2)})


def others_share(rows: Path) -> dict[str, float]:
    """The share of the processors' time that others took while rows were measured, for their environment."""
    seconds, others = _noted(rows)
    return {SHARE: round(others / seconds, 4)} if seconds > 0 else {}


def _noted(rows: Path) -> tuple[float, float]:
    with suppress(OSError, ValueError, KeyError, TypeError):
        noted = json.loads((rows / _BOOK).read_text(encoding="utf-8"))
        return float(noted["seconds"]), float(noted["others"])
    return 0.0, 0.0


def _contents(rows: Path) -> set[tuple[str, int]]:
    """Files of rows, by name and size."""
    return {(path.name, path.stat().st_size) for path in rows.rglob("*") if path.is_file() and path.name != _BOOK}
