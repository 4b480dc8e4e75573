"""Prepares the machine last before the clock starts: page cache and memory are as they should be, processors free."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from edgeplan.measurement.process import host_memory, page_cache
from edgeplan.measurement.process.interference import LIMIT, wait_until_free

_WAIT_SECONDS = 3.0
_BACKED_SECONDS = 0.3  # while one waits, the host takes memory back


def prepare_machine(files: Sequence[Path], processors: Sequence[int], *, evicted: bool, usual_us: float) -> float:
    """Bring the page cache and memory to where a start begins, and wait until the processors are free, for seconds at most.

    Free moments are short where other guests are busy: nothing comes between the last look and the start.

    Args:
        files: that the start reads.
        processors: of the start.
        evicted: whether the page cache is not to hold the files.
        usual_us: usual time of the load of `interference.py`; 0 waits for nothing.

    Returns:
        The last look at the processors, over the usual time; 1 without one.
    """
    size = sum(path.stat().st_size for path in files)
    end = time.monotonic() + _WAIT_SECONDS
    while True:
        if evicted:
            page_cache.evict(files)
        else:
            if page_cache.cached_share(files) < 1.0:
                page_cache.read_through(files)
            host_memory.back_files(files)
        host_memory.back_memory(size)
        if not usual_us:
            return 1.0
        found = wait_until_free(processors, usual_us, seconds=_BACKED_SECONDS)
        if found <= LIMIT or time.monotonic() > end:
            return found
