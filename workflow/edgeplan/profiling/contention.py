"""Measures by how much two preparations on two cores slow each other down.

It is measured for each model and home layout, for both ways a step is prepared: with weights from the cache or without any, and
with weights from the model file. Where kernels are generated, two preparations wait for each other; where bytes are moved, they
share the memory. What preparing and executing take from each other is seen in starts of whole programs
(`fresh_process_factors.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import numpy as np

from edgeplan.measurement.others import thread_waited_ms
from edgeplan.measurement.process.interference import LIMIT, MOST_CONTENTION, Interference
from edgeplan.measurement.process.record_bench import Bench
from edgeplan.measurement.process.starts import ATTEMPTS
from edgeplan.profiling.rounds import Harness, release_freed
from edgeplan.profiling.samples import TrialProgram
from edgeplan.profiling.settings import Cores
from edgeplan.support.cpus import pinned

#: Of each measurement.
REPEATS = 5
_MOST_LOST = 0.9  # of a measurement, to waiting for a processor
_LEAST_LEFT = 0.05  # of a core's speed, when two that prepare get hardly more done than one


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs hold factors (>= 1) of preparing beside another preparation, by where the weights come from."""

    cached: float = 1.0
    raw: float = 1.0


def measure_pairs(rig: Harness, cores: Cores, watch: Interference | None, repeats: int = REPEATS) -> Pairs:
    """Prepare a model on one core, alone and beside another preparation of it, by turns, so that drift meets both alike.

    The cores are the first big one, and the first little one, else the second big one. What they were disturbed in is measured
    again, by the watch of all cores; without it nothing is waited for, and a waiting for a processor is taken off.

    Returns:
        Medians of together / alone; 1 where there is one core only.
    """
    others = (*cores.little, *cores.big[1:])
    if not others:
        return Pairs()
    trials, where = rig.trials, (others[0], cores.big[0])

    def factor(*programs: TrialProgram) -> float:
        with ExitStack() as stack:
            first, second = (stack.enter_context(_Passes(rig, program)) for program in programs)
            return _pair((first, second), where, watch, repeats)

    return Pairs(factor(trials.cached, trials.cached), factor(trials.raw, trials.trying))  # raw ones go to places of their own


def _pair(pair: tuple[_Passes, _Passes], where: tuple[int, int], watch: Interference | None, repeats: int) -> float:
    """Return the factor of the first of two."""

    def alone() -> float:
        with pinned(where[0]):
            return pair[0].prepare()

    def together() -> float:
        return _at_once(*zip(pair, where, strict=True))[0]

    times = [(_undisturbed(alone, watch), _undisturbed(together, watch)) for _ in range(repeats)]
    usual, slowed = (float(np.median(found)) for found in zip(*times, strict=True))
    return float(np.clip(slowed / usual, 1.0, MOST_CONTENTION))


def _undisturbed(measure: Callable[[], float], watch: Interference | None) -> float:
    """Return a measurement during which the processors were free, if there was one; else the last."""
    if watch is None:
        return measure()
    for _ in range(ATTEMPTS):
        before = watch.wait()
        found = measure()
        if max(before, watch.now()) <= LIMIT:
            break
    return found


def charged(both: float, beside_execution: float) -> float:
    """Return the factor on the main core's preparations that makes up for what two preparations take from each other.

    Beside each other they get 2 / `both` of a lone core's work done. The other core goes on at 1 / `beside_execution` in the
    model, so 2 / `both` - 1 / `beside_execution` is left for the main core.
    """
    return float(np.clip(1 / max(2 / both - 1 / beside_execution, _LEAST_LEFT), 1.0, MOST_CONTENTION))


def _at_once(*preparing: tuple[_Passes, int]) -> list[float]:
    """Prepare beside each other, once, each on a processor. Nothing is freed meanwhile, which interrupts: no start does."""
    together = threading.Barrier(len(preparing))

    def one(passes: _Passes, processor: int) -> float:
        with pinned(processor):
            try:
                return passes.prepare(together)
            except BaseException:
                together.abort()
                raise

    with ThreadPoolExecutor(len(preparing), thread_name_prefix="contention") as pool:
        made = [pool.submit(one, *each) for each in preparing]
        problems = [each.exception() for each in made]
    if found := [problem for problem in problems if problem is not None]:
        # what one failed at, rather than that the other missed it
        raise min(found, key=lambda problem: isinstance(problem, threading.BrokenBarrierError))
    return [each.result() for each in made]


class _Passes:
    """Passes prepare a whole model with the first candidate of every step, as a cold start does."""

    def __init__(self, rig: Harness, program: TrialProgram) -> None:
        self._dnnl = rig.dnnl
        self._bench = Bench(program.content, rig.dnnl.info.path, program.cache, rig.bench)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._bench.close()

    def prepare(self, together: threading.Barrier | None = None) -> float:
        """Return milliseconds of preparing all steps; together with others if they are to begin, and to have ended, at once."""
        self._dnnl.set_threads(1)
        release_freed()
        self._bench.renew()  # also what is mapped: pages that were seen before cost nothing
        if together:
            together.wait()
        waited, start = thread_waited_ms(), time.perf_counter()
        spent = self._bench.prepare_all()
        elapsed_ms = (time.perf_counter() - start) * 1e3
        lost = min((thread_waited_ms() - waited) / elapsed_ms, _MOST_LOST)
        if together:
            together.wait()
        return spent / 1e6 * (1 - lost)
