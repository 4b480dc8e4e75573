"""Threads of OpenMP wait for each other awake for a moment, then asleep.

libgomp waits awake for 8 ms and more at every barrier. Where another process uses the core, that time is taken from the
thread's own share of it, and the scheduler then lets the other one run for several milliseconds, at barrier after barrier.
A thread that sleeps keeps its share and gets the core back at once. To sleep always (OMP_WAIT_POLICY=passive) costs a
wake-up at every barrier, on a quiet machine, too. What waits in native code does the same (`native/src/loops`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

#: Turns of libgomp's loop before a thread sleeps, for about as long as waking it takes. One takes a `pause` of the processor:
#: 29 us in all on a Zen 3, 45 us where it takes 140 cycles, as on Intel's since Skylake.
SPINS = 1000
_SPINS_NAME = "GOMP_SPINCOUNT"
#: Who sets one of them has chosen.
_CHOSEN_BY = ("OMP_WAIT_POLICY", _SPINS_NAME)


@contextmanager
def bounded_waits() -> Iterator[None]:
    """Load the library within: libgomp reads its environment once, when the first library that needs it is loaded.

    The environment is as before afterwards: processes that are started, and other engines with an OpenMP of their own, wait
    as they do without. Where libgomp is there already, by another library that is linked to the same, it stays as it is.
    """
    if any(name in os.environ for name in _CHOSEN_BY):
        yield
        return
    os.environ[_SPINS_NAME] = str(SPINS)
    try:
        yield
    finally:
        os.environ.pop(_SPINS_NAME, None)
