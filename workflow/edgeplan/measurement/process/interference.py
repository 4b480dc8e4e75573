"""Tells whether the processors of a run are its own, or share their cores with someone.

The processors of a virtual machine are threads of its host. Two of them may be put on the two hardware threads of one core, and
other guests come and go on the hardware thread beside one: for hundredths of a second up to several seconds, and for six to
nine tenths of the time in the hours in which a machine of two processors was looked at. What is bound by one kind of arithmetic
hardly feels a neighbour that does something else (products of matrices took 1.05 times as long); what keeps all of a core busy,
as code that generates kernels does, takes 1.5 to 2 times as long. A plan on two threads took 8.6 ms while the processors were
free, and 11.9 while they were not. References on one processor do not show it, so a load is timed on all processors of a run at
once. For a cold start that is work of the kind that feels every neighbour. What lasts longer than neighbours stay, as a round
over a whole model, only looks for two processors on one core, by products of matrices.

Other guests of a host slow a machine for minutes or hours, too, and profiles and cold starts lie that far apart. So that costs
are held against starts at one speed, both are timed beside the same references, by the same statistic (`Clock`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from edgeplan.errors import DeviceError
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.measurement.settings import ReferenceExponents

#: Beyond this many times its usual time a load was disturbed. Drift of the machine stays below it; another guest on a core
#: gives 1.4 to 2 (hashes), two processors on one core 1.9 (products).
LIMIT = 1.25
#: A factor of contention between threads of ours beyond this says that the machine was busy.
MOST_CONTENTION = 20.0
HASHES, PRODUCTS = "hashes", "products"
WAIT_SECONDS = 3.0
_PAUSE_SECONDS = 0.01
_RUNS = 6  # of the load in a look: 0.6 or 2 ms
_LOOKS = 50  # whose least is the usual time
_HASHED_BYTES = 50_000
_MATRICES, _SIZE = 64, 64  # products that small are done by one thread, whatever BLAS is there


def _hashes() -> Callable[[], object]:
    """Return a load of integer work, about 0.1 ms, that keeps all of a core busy."""
    data = bytes(_HASHED_BYTES)
    return lambda: hashlib.sha3_256(data)


def _products() -> Callable[[], object]:
    """Return a load of floating-point work, about 0.3 ms, that is bound by the core's multipliers."""
    values = np.random.default_rng(0).random((2, _SIZE, _SIZE), dtype=np.float32)
    left, right = (np.broadcast_to(value, (_MATRICES, _SIZE, _SIZE)) for value in values)
    products = np.empty((_MATRICES, _SIZE, _SIZE), np.float32)
    return lambda: np.matmul(left, right, out=products)


#: Loads for one thread each, which leave the interpreter to others.
_LOADS: Mapping[str, Callable[[], Callable[[], object]]] = MappingProxyType({HASHES: _hashes, PRODUCTS: _products})


def _time_us(work: Callable[[], object]) -> float:
    """Return the median time of some runs."""
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter_ns()
        work()
        times.append(time.perf_counter_ns() - start)
    return statistics.median(times) / 1e3


def together_us(processors: Sequence[int], load: str = HASHES) -> float:
    """Run a load on all processors at once; return the time of the slowest of them, in microseconds."""
    everyone, times, problems = threading.Barrier(len(processors)), list[float](), list[OSError]()

    def look(processor: int) -> None:
        try:
            os.sched_setaffinity(0, (processor,))  # of this thread
        except OSError as error:
            problems.append(error)
            everyone.abort()  # nobody waits for one that does not come
        work = _LOADS[load]()
        with contextlib.suppress(threading.BrokenBarrierError):
            _time_us(work)
            everyone.wait()
            times.append(_time_us(work))

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


def wait_until_free(processors: Sequence[int], usual_us: float, load: str = HASHES, seconds: float | None = None) -> float:
    """Wait until all processors are free at once, for some seconds at most (`WAIT_SECONDS`).

    `usual_us` is the time of the load on the slowest of them alone. Returned is the last look at them over it: beyond `LIMIT`
    they are still not free.
    """
    end = time.monotonic() + (WAIT_SECONDS if seconds is None else seconds)
    while (found := together_us(processors, load) / usual_us) > LIMIT and time.monotonic() < end:
        time.sleep(_PAUSE_SECONDS)
    return found


class Interference:
    """Watches whether others use the processors of what is measured.

    Args:
        processors: to be had at once; the first and the last alone tell what is usual, since chips of several kinds of cores
            number them by kind. Empty: those of this process.
        load: `HASHES` or `PRODUCTS`.
    """

    def __init__(self, processors: Sequence[int] = (), load: str = HASHES) -> None:
        self._processors = tuple(processors) or tuple(sorted(os.sched_getaffinity(0)))
        self._load = load
        ends = (self._processors[0], self._processors[-1])
        self._alone = {processor: deque[float](maxlen=_LOOKS) for processor in ends}
        for _ in range(_LOOKS):
            self.look()
            time.sleep(_PAUSE_SECONDS)  # else all of them may fall into one disturbance

    @property
    def usual_us(self) -> float:
        """Return the load's time on the slowest processor alone, in us: its least in the last looks, so that drift is followed.

        A median would be a disturbed time in hours when most of them are.
        """
        return max(min(times) for times in self._alone.values())

    def wait(self) -> float:
        """Wait by `wait_until_free` for all processors; return the last look at them over the usual time."""
        self.look()
        return wait_until_free(self._processors, self.usual_us, self._load)

    def now(self) -> float:
        """Run the load on all processors once; return its time over the usual one."""
        return together_us(self._processors, self._load) / self.usual_us

    def look(self) -> None:
        """Update the usual time from a new look."""
        for processor, times in self._alone.items():
            times.append(together_us((processor,), self._load))


#: Runs of each reference in a look. The least of two scatters by 9 % where the least of eight does by 4 %, and cold starts
#: scatter less: dividing by the former adds noise.
LOOK_RUNS = 8
#: How strongly costs follow the references: as fitted on carriers (`measurement.reference_exponents` of params.yaml). Of cold
#: starts with the page cache warm the exponents were .8 to 1 and about 0.
EXPONENTS = ReferenceExponents(compute=0.8, bandwidth=0.05)
NOMINAL_SECONDS = 3.0


@dataclass(frozen=True)
class Clock:
    """Times the references beside their nominal times.

    Attributes:
        nominal: times that slowness is relative to.
        watch: watch over the processors that measure; None waits for nobody.
    """

    references: References
    nominal: ReferenceTimes
    watch: Interference | None
    runs: int = LOOK_RUNS

    def now(self) -> ReferenceTimes:
        """Time both references once, now."""
        return self.references.time(self.runs)

    def slowness(self, *looks: ReferenceTimes) -> float:
        """Return the factor over the nominal time for work done between looks at the references."""
        now = least_times(looks)
        compute, bandwidth = now.compute_us / self.nominal.compute_us, now.bandwidth_us / self.nominal.bandwidth_us
        return float(EXPONENTS.scaled(compute, bandwidth))


def least_times(looks: Iterable[ReferenceTimes]) -> ReferenceTimes:
    """Return the least time of each reference over several looks."""
    found = tuple(looks)
    return ReferenceTimes(min(look.compute_us for look in found), min(look.bandwidth_us for look in found))


def calibrate(references: References, runs: int, seconds: float = NOMINAL_SECONDS) -> ReferenceTimes:
    """Return the usual times of the references: medians of pairs of looks, as they are taken around what is measured.

    The least time ever seen would be another statistic than a pair of looks gives, and make all that is measured seem slow.
    """
    pairs: list[ReferenceTimes] = []
    end = time.monotonic() + seconds
    while not pairs or time.monotonic() < end:
        pairs.append(least_times((references.time(runs), references.time(runs))))
    return ReferenceTimes(statistics.median(p.compute_us for p in pairs), statistics.median(p.bandwidth_us for p in pairs))
