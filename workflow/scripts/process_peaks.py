"""Memory of `edgeplan run` as another process sees it: beside its idle floor and the budget of the plan.

    python workflow/scripts/process_peaks.py PLAN... [--repeat N] [--json FILE]

Each plan of memory runs in a fresh process. All pages (Rss of /proc/PID/smaps_rollup) are read every millisecond: from its
start, from the moment it is ready (the library loaded, threads started, no plan opened: the floor), and until it ends.
"""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO, cast

from edgeplan.runtime.folder import MEMORY, read_folder
from edgeplan.runtime.streaming.memory_session import MemorySchedule
from edgeplan.terminal import say

_MIB = 1 << 20
_EVERY_S = 0.001
_KINDS = ("Rss", "Anonymous")


def main() -> int:
    """Measure the plans that the command line names; 1 if one takes more than its floor and its budget."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plans", nargs="+", type=Path)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = [measured(plan, given.repeat) for plan in given.plans]
    say("plan                      before   floor    peak  anonymous  files  budget  peak / (floor + budget)")
    for row in found:
        sizes = [float(row[name]) / _MIB for name in ("before", "floor", "peak", "anonymous", "file", "budget")]
        shown = "{:>7.2f} {:>7.2f} {:>7.2f} {:>10.2f} {:>6.2f} {:>7.2f}".format(*sizes)
        say(f"{row['plan']!s:<24} {shown}  {row['ratio']:.3f}")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(float(row["ratio"]) > 1 for row in found))


def measured(plan: Path, repeat: int = 3) -> dict[str, Any]:
    """Measure a run of a plan, in bytes: the most before it is ready, its floor then, the most from there on by kind.

    Raises:
        RuntimeError: the run failed.
    """
    budget = read_folder(plan, MEMORY).scheduled(MemorySchedule).budget_bytes
    with tempfile.TemporaryDirectory() as folder:
        gate = Path(folder) / "gate"
        command = [sys.executable, "-m", "edgeplan", "run", str(plan), "--repeat", str(repeat), "--gate", str(gate)]
        run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)  # noqa: S603  our own interpreter
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


if __name__ == "__main__":
    sys.exit(main())
