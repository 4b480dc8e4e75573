"""How much preparing, executing and reading slow each other down when they overlap, on two cores that really run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from edgeplan.cold.profiling.memory import pinned
from edgeplan.cold.profiling.rounds import Rig
from edgeplan.cold.profiling.settings import Cores
from edgeplan.planning.cold_start.profile import Contention
from edgeplan.runtime.executable import Prepared, Worker

_BLOCKS = 5
_REPEATS = 2  # repetitions of the model in a block, alone and overlapped each
_MOST = 20.0  # a factor beyond this says that the machine was busy


@dataclass
class _Work:
    """Milliseconds of whole passes over the model's steps."""

    execute: list[float] = field(default_factory=list)
    prepare: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)


def measure_contention(rig: Rig, cores: Cores) -> Contention:
    """Measure the factors with the model of a rig: one thread executes it over and over while another one prepares it.

    Each pass is timed alone and overlapped, in turn, so drift meets both alike.

    Args:
        rig: a model with its first candidates.
        cores: the first big core executes, the first little one, else the second big one, prepares.

    Returns:
        Medians of overlapped / alone over the blocks, at least 1; all 1 where there is one core only.
    """
    preparing = (*cores.little, *cores.big[1:])
    if not preparing:
        return Contention()
    passes = _Passes(rig)
    alone, overlapped = _Work(), _Work()
    for _ in range(_BLOCKS):
        with pinned(cores.big[0]):
            for _ in range(_REPEATS):
                passes.execute(alone)
        with pinned(preparing[0]):
            for _ in range(_REPEATS):
                passes.prepare(alone)
        _beside(lambda: passes.execute(alone, keep=False), cores.big[0], lambda: passes.prepare(overlapped), preparing[0])
        _beside(lambda: passes.prepare(alone, keep=False), preparing[0], lambda: passes.execute(overlapped), cores.big[0])

    def factor(slowed: list[float], usual: list[float]) -> float:
        return float(np.clip(np.median(slowed) / np.median(usual), 1.0, _MOST)) if usual else 1.0

    return Contention(
        factor(overlapped.prepare, alone.prepare),
        factor(overlapped.execute, alone.execute),
        factor(overlapped.read, alone.read),
    )


def _beside(background: Callable[[], None], where: int, timed: Callable[[], None], here: int) -> None:
    """Time passes while another thread repeats its own."""
    stop, started = threading.Event(), threading.Event()

    def loop() -> None:
        with pinned(where):
            started.set()
            while not stop.is_set():
                background()

    thread = threading.Thread(target=loop, name="contention")
    thread.start()
    try:
        started.wait()
        with pinned(here):
            for _ in range(_REPEATS):
                timed()
    finally:
        stop.set()
        thread.join()


class _Passes:
    """Whole passes over a model with the first candidate of every step."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.executable = rig, rig.executable
        rig.dnnl.set_primitive_cache(0)
        worker = Worker(rig.dnnl)
        self.prepared: list[Prepared] = [self.executable.prepare(i, worker) for i in range(len(rig.subject.program.steps))]

    def execute(self, work: _Work, *, keep: bool = True) -> None:
        worker = Worker(self.rig.dnnl)
        start = time.perf_counter()
        for prepared in self.prepared:
            self.executable.execute(prepared, worker)
        if keep:
            work.execute.append((time.perf_counter() - start) * 1e3)

    def prepare(self, work: _Work, *, keep: bool = True) -> None:
        executable, worker = self.executable, Worker(self.rig.dnnl)
        reading = preparing = 0.0
        for index in range(len(self.prepared)):
            start = time.perf_counter()
            created = executable.create(index)
            end = time.perf_counter()
            preparing += end - start
            if created.slots:
                raw = executable.read(index)
                read = time.perf_counter()
                executable.transform(index, created, raw, worker)
                reading += read - end
                preparing += time.perf_counter() - read
        if keep:
            work.prepare.append(preparing * 1e3)
            if reading:
                work.read.append(reading * 1e3)
