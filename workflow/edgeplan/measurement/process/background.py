"""Loads one core in the background by a process that is busy for a share of the time (NNV12, section 4.2, Figure 11)."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

from edgeplan.support.subprocesses import end, module_command, start

_PERIOD_SECONDS = 0.005  # shorter than the cold starts of the smallest models


def keep_busy(core: int, percent: int) -> None:
    """Keep a core busy for that share of each period, until the process is ended."""
    os.sched_setaffinity(0, {core})
    busy = _PERIOD_SECONDS * percent / 100
    while True:
        begin = time.perf_counter()
        while time.perf_counter() - begin < busy:
            pass
        if percent < 100:  # else it never leaves the core, not even to be put behind others
            time.sleep(_PERIOD_SECONDS - busy)


@contextlib.contextmanager
def background_load(core: int, percent: int) -> Iterator[None]:
    """Load a core while the block runs; 0 % starts nothing."""
    if percent == 0:
        yield
        return
    process = start(module_command("edgeplan.measurement.process.background", str(core), str(percent)))
    try:
        yield
    finally:
        end(process)


if __name__ == "__main__":
    keep_busy(int(sys.argv[1]), int(sys.argv[2]))
