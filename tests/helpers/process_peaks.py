"""Memory of edgeplan-run as another process sees it, beside its idle floor and the budget of the plan.

All pages (Rss of /proc/PID/smaps_rollup) are read every millisecond: from its start, from the moment it is ready (the library
loaded, threads started, no plan opened: the floor), and until it ends.
"""

from __future__ import annotations

import select
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

from edgeplan.chapters.memory.budget import budget_sizes
from edgeplan.runtime.folder import MEMORY, read_folder
from edgeplan.runtime.installed import PROGRAM, words_for
from edgeplan.runtime.streaming.schedules import MemorySchedule

_EVERY_S = 0.001
_KINDS = ("Rss", "Anonymous")


def measured(plan: Path, repeat: int = 3, budgets: str = "") -> dict[str, Any]:
    """Measure a run of a plan, in bytes: the most before it is ready, its floor then, the most from there on by kind.

    Args:
        plan: the folder.
        repeat: inferences of each budget.
        budgets: as `edgeplan run --budgets` takes them: the largest counts; "": the plan's own.

    Raises:
        RuntimeError: the run failed.
    """
    asked = ["--budgets", budgets] if budgets else []
    own = read_folder(plan, MEMORY).scheduled(MemorySchedule).budget_bytes
    budget = max(budget_sizes(budgets.split(","))) if budgets else own
    with tempfile.TemporaryDirectory() as folder:
        gate = Path(folder) / "gate"
        command = [PROGRAM, *words_for(str(plan), str(repeat)), "--gate", str(gate), *asked]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        said = cast("TextIO", run.stderr)
        before = _most(run.pid, lambda: bool(select.select([said], [], [], 0)[0]))
        if said.readline() != "ready\n":
            run.wait()
            raise RuntimeError(f"{plan}: {said.read()}")
        floor = _resident(run.pid)
        gate.touch()
        after = _most(run.pid, lambda: run.poll() is not None)
        if run.returncode:
            raise RuntimeError(f"{plan}: {said.read()}")
    peak, anonymous = after
    row: dict[str, Any] = {"plan": plan.name, "before": before[0], "floor": floor[0], "peak": peak, "anonymous": anonymous}
    return row | {"file": peak - anonymous, "budget": budget, "ratio": peak / (floor[0] + budget)}


def _most(process: int, ended: Callable[[], bool]) -> tuple[int, int]:
    """The most resident memory until something ends, and how much of it was anonymous."""
    most = (0, 0)
    while not ended():
        most = max(most, _resident(process))
        time.sleep(_EVERY_S)
    return most


def _resident(process: int) -> tuple[int, int]:
    """Bytes of all pages and of the anonymous ones; none of a process that has ended."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0, 0
    sizes = dict(line.split(":") for line in lines[1:])
    total, anonymous = (int(sizes[name].split()[0]) << 10 for name in _KINDS)
    return total, anonymous
