"""Whether the processors of a run are its own, or share their cores with someone.

The processors of a virtual machine are threads of its host. Two of them may be put on the two hardware threads of one core,
where each gets half of its speed, until the host moves one of them; and other guests come and go on the hardware thread beside
one. On a machine of two processors both were seen at .53 of their speed for .3 to 3 s at a time, 16 % of the time in bad
minutes. A start on two threads that falls into that tells nothing of an engine (36 ms where it is 25), and one on one thread
goes on as ever. References on one processor do not show it, so a load is timed on all processors of a run at once.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Sequence

import numpy as np

from edgeplan.errors import DeviceError

#: Beyond this many times its usual time the load was disturbed. Drift of the machine stays below it; another guest on a core
#: gives 1.4 to 1.6, two processors on one core 1.9.
LIMIT = 1.25
_WAIT_SECONDS, _PAUSE_SECONDS = 3.0, 0.02
_RUNS = 6  # of the load in a look: 2 ms
_LOOKS = 25  # whose median is the usual time
_MATRICES, _SIZE = 64, 64  # products that small are done by one thread, whatever BLAS is there


class _Load:
    """A compute-bound load of about 0.4 ms, for one thread; it leaves the interpreter to others."""

    def __init__(self) -> None:
        values = np.random.default_rng(0).random((2, _SIZE, _SIZE), dtype=np.float32)
        self._left = np.broadcast_to(values[0], (_MATRICES, _SIZE, _SIZE))
        self._right = np.broadcast_to(values[1], (_MATRICES, _SIZE, _SIZE))
        self._products = np.empty((_MATRICES, _SIZE, _SIZE), np.float32)

    def time_us(self) -> float:
        """Median of some runs."""
        times = []
        for _ in range(_RUNS):
            start = time.perf_counter_ns()
            np.matmul(self._left, self._right, out=self._products)
            times.append(time.perf_counter_ns() - start)
        return statistics.median(times) / 1e3


def together_us(processors: Sequence[int]) -> float:
    """The load on all processors at once: the time of the slowest of them, in microseconds.

    Raises:
        DeviceError: one of them may not be used.
    """
    everyone, times, problems = threading.Barrier(len(processors)), list[float](), list[OSError]()

    def look(processor: int) -> None:
        try:
            os.sched_setaffinity(0, (processor,))  # of this thread
        except OSError as error:
            problems.append(error)
            everyone.abort()  # nobody waits for one that does not come
        load = _Load()
        with contextlib.suppress(threading.BrokenBarrierError):
            load.time_us()
            everyone.wait()
            times.append(load.time_us())

    threads = [threading.Thread(target=look, args=(processor,), name="look") for processor in processors]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if problems:
        raise DeviceError(
            f"the processors {', '.join(map(str, processors))} cannot be used: {problems[0]}",
            where="cores of the device file",
            next_step="name processors that this process may use (taskset -p)",
        )
    return max(times)


def wait_until_free(processors: Sequence[int], usual_us: float) -> float:
    """Wait until the processors are free, for some seconds at most.

    Args:
        processors: to be had at once.
        usual_us: time of the load on the slowest of them alone.

    Returns:
        The last look at them, over the usual time: beyond `LIMIT` they are still not free.
    """
    end = time.monotonic() + _WAIT_SECONDS
    while (found := together_us(processors) / usual_us) > LIMIT and time.monotonic() < end:
        time.sleep(_PAUSE_SECONDS)
    return found


class Interference:
    """Looks at the processors of what is measured.

    Args:
        processors: to be had at once; the first and the last alone tell what is usual, since chips of several kinds of cores
            number them by kind. Empty: those of this process.
    """

    def __init__(self, processors: Sequence[int] = ()) -> None:
        self._processors = tuple(processors) or tuple(sorted(os.sched_getaffinity(0)))
        ends = (self._processors[0], self._processors[-1])
        self._alone = {processor: deque[float](maxlen=_LOOKS) for processor in ends}
        for _ in range(_LOOKS):
            self._look()

    @property
    def usual_us(self) -> float:
        """Time of the load on the slowest processor alone: by the medians of the last looks, so that drift is followed."""
        return max(statistics.median(times) for times in self._alone.values())

    def wait(self, processors: Sequence[int] = ()) -> float:
        """`wait_until_free` for these processors, or for all."""
        self._look()
        return wait_until_free(processors or self._processors, self.usual_us)

    def now(self, processors: Sequence[int] = ()) -> float:
        """The load on these processors, or on all, over its usual time."""
        return together_us(processors or self._processors) / self.usual_us

    def _look(self) -> None:
        for processor, times in self._alone.items():
            times.append(together_us((processor,)))
