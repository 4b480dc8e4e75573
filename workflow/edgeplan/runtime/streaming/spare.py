"""The kernel's books tell, again and again, whether a processor is free for reading threads beside the computing ones.

What a process may use (its affinity, the quota of its control group) is one half of the answer. What others use of it is the
other: `/proc/stat` tells how long each processor worked, and what this process did itself is left out.
"""

from __future__ import annotations

import os
import time

from edgeplan.support.cpus import quota

_STAT = "/proc/stat"
_FEWEST_TICKS = 10  # of a processor: of less time nothing is told
_USER, _SYSTEM, _IRQ, _SOFT_IRQ, _STEAL = 1, 3, 6, 7, 8  # columns; polite work (nice) gives way to a reader
#: Free processors beside the computing ones: with so many threads read, with fewer than so many none does.
_ENOUGH, _TOO_FEW = 0.6, 0.4


class SpareProcessor:
    """The question whether reading threads have a processor of their own, for one process.

    Args:
        threads: that compute.
    """

    def __init__(self, threads: int) -> None:
        self._allowed = frozenset(os.sched_getaffinity(0))
        self._most = min(len(self._allowed), quota() or len(self._allowed)) - threads
        self._per_second = os.sysconf("SC_CLK_TCK")
        self._seen = self._look()
        self._free = self._most >= _ENOUGH

    def free(self) -> bool:
        """Tell whether a processor is free, by what others used since the last time that was long enough ago."""
        if self._most < _ENOUGH or (time.monotonic() - self._seen[0]) * self._per_second < _FEWEST_TICKS:
            return self._free
        (began, busy, own), self._seen = self._seen, self._look()
        now, busy_now, own_now = self._seen
        if busy_now > busy >= 0:
            others = (busy_now - busy) / self._per_second - (own_now - own)
            spare = self._most - max(others, 0.0) / (now - began)
            self._free = spare >= (_TOO_FEW if self._free else _ENOUGH)
        return self._free

    def _look(self) -> tuple[float, int, float]:
        """The time, ticks that the processors worked so far (-1: nobody tells), and seconds that this process did."""
        try:
            with open(_STAT, "rb") as file:  # noqa: PTH123  pathlib is not needed for this
                rows = file.read().split(b"\nintr", 1)[0].splitlines()
        except OSError:  # no Linux, or a container that hides it
            return time.monotonic(), -1, 0.0
        ticks = 0
        for row in rows:
            columns = row.split()
            if columns[0][3:].isdigit() and int(columns[0][3:]) in self._allowed:
                ticks += sum(int(columns[k]) for k in (_USER, _SYSTEM, _IRQ, _SOFT_IRQ, _STEAL))
        return time.monotonic(), ticks, time.process_time()
