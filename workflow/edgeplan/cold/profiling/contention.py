"""How much preparing, executing and reading slow each other down when they overlap, on two cores that really run.

Measured for each model and home layout, for both ways a step is prepared: by compiled code, with weights from the cache or
without any, and by the interpreter, with weights from the model file. Where kernels are generated or the interpreter is needed,
two preparations wait for each other; where bytes are moved, they hardly do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

import numpy as np

from edgeplan.cold.attempts import ATTEMPTS
from edgeplan.cold.interference import LIMIT, Interference
from edgeplan.cold.profiling.fresh import START, start_signature
from edgeplan.cold.profiling.memory import pinned, release_freed
from edgeplan.cold.profiling.rounds import Rig
from edgeplan.cold.profiling.settings import Cores
from edgeplan.cold.profiling.store import Row
from edgeplan.planning.cold_start.profile import Contention
from edgeplan.runtime.cold_executor import Pace
from edgeplan.runtime.lanes import Lane, Preparation
from edgeplan.runtime.linked import LinkedProgram
from edgeplan.runtime.native.words import Numbers
from edgeplan.runtime.preparation import Executor, Shared
from edgeplan.runtime.tape_file import TapeArrays, tape_of

#: Signatures of the rows of whole programs begin with this.
CONTENTION = "contention-"
_BLOCKS = 5
_REPEATS = 2  # repetitions of the model in a block, alone and overlapped each
_MOST = 20.0  # a factor beyond this says that the machine was busy
_LEAST_LEFT = 0.05  # of a core's speed, when two that prepare get hardly more done than one


@dataclass
class _Work:
    """Milliseconds of whole passes over the model's steps."""

    execute: list[float] = field(default_factory=list)
    prepare: list[float] = field(default_factory=list)
    read: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)  # prepare and read

    def extend(self, other: _Work) -> None:
        """Add the passes of another."""
        for name in ("execute", "prepare", "read", "whole"):
            getattr(self, name).extend(getattr(other, name))


def contention_signature(signed: Sequence[str]) -> str:
    """The key of a program's row."""
    return CONTENTION + start_signature(signed).removeprefix(START)


def contention_row(signed: Sequence[str], factors: Contention) -> Row:
    """The row of a program: each factor as a stage of one sample."""
    stored = {name: (float(np.float32(getattr(factors, name))),) for name in Contention.__slots__}  # as rows are stored
    return Row(contention_signature(signed), "", len(signed), 0, 0, 0, stored, time.time())


def contention_of(rows: Sequence[Row]) -> Contention:
    """The factors of a program; of several, their medians."""
    return Contention(*(float(np.median([row.samples_ms[name][0] for row in rows])) for name in Contention.__slots__))


def measure_contention(rig: Rig, cores: Cores, watch: Interference) -> Contention:
    """Measure the factors with the model of a rig: one thread executes it over and over while another one prepares it.

    Each pass is timed alone and overlapped, in turn, so drift meets both alike.

    Args:
        rig: a model with its first candidates.
        cores: the first big core executes, the first little one, else the second big one, prepares.
        watch: of all cores; a block during which they were disturbed is made again.

    Returns:
        Medians of overlapped / alone over the blocks, at least 1, and `charged`; all 1 where there is one core only.
    """
    preparing = (*cores.little, *cores.big[1:])
    if not preparing:
        return Contention()
    where = cores.big[0], preparing[0]
    compiled = _measure(rig, (rig.trials.cached, rig.trials.cached), *where, watch)
    by_hand = _measure(rig, (rig.trials.raw, rig.trials.program), *where, watch)  # to places of their own
    return replace(compiled, raw_prepare=by_hand.prepare, raw_read=by_hand.read, raw_main=by_hand.main)


def _measure(
    rig: Rig, programs: tuple[LinkedProgram, LinkedProgram], executing: int, preparing: int, watch: Interference
) -> Contention:
    """The factors of programs whose weights all come from one source; two, since they are prepared beside each other."""
    passes, others = (_Passes(rig, program) for program in programs)
    pace = Pace()
    alone, overlapped, both = _Work(), _Work(), _Work()

    def block() -> tuple[_Work, _Work, _Work]:
        lone, beside_other, twice = _Work(), _Work(), _Work()
        with pinned(executing):
            for _ in range(_REPEATS):
                passes.execute(lone)
        with pinned(preparing):
            for _ in range(_REPEATS):
                passes.prepare(lone)
        _beside(lambda: passes.execute(lone, keep=False), executing, lambda: passes.prepare(beside_other), preparing)
        _beside(lambda: passes.prepare(lone, keep=False), preparing, lambda: passes.execute(beside_other), executing)
        _at_once((passes, twice, preparing), (others, _Work(), executing))
        return lone, beside_other, twice

    try:
        for _ in range(_BLOCKS):
            for _ in range(ATTEMPTS):
                watch.wait()
                found = block()
                if watch.now() <= LIMIT:
                    break
            for kept, new in zip((alone, overlapped, both), found, strict=True):
                kept.extend(new)
    finally:
        pace.end()
        passes.close()
        others.close()

    def factor(slowed: list[float], usual: list[float]) -> float:
        return float(np.clip(np.median(slowed) / np.median(usual), 1.0, _MOST)) if usual else 1.0

    return Contention(
        factor(overlapped.prepare, alone.prepare),
        factor(overlapped.execute, alone.execute),
        factor(overlapped.read, alone.read),
        charged(factor(both.whole, alone.whole), factor(overlapped.whole, alone.whole)),
    )


def charged(both: float, beside_execution: float) -> float:
    """The factor on the main core's preparations that makes up for what two preparations take from each other.

    Beside each other they get 2 / `both` of a lone core's work done. The other core goes on at 1 / `beside_execution` in the
    model, so 2 / `both` - 1 / `beside_execution` is left for the main core.
    """
    return float(np.clip(1 / max(2 / both - 1 / beside_execution, _LEAST_LEFT), 1.0, _MOST))


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


def _at_once(*preparing: tuple[_Passes, _Work, int]) -> None:
    """Prepare beside each other, once, each on a processor. Nothing is freed meanwhile, which interrupts: no start does."""
    together = threading.Barrier(len(preparing))

    def one(passes: _Passes, work: _Work, processor: int) -> None:
        with pinned(processor):
            try:
                passes.prepare(work, together=together)
            except BaseException:
                together.abort()
                raise

    with ThreadPoolExecutor(len(preparing), thread_name_prefix="contention") as pool:
        problems = [made.exception() for made in [pool.submit(one, *each) for each in preparing]]
    if found := [problem for problem in problems if problem is not None]:
        # what one failed at, rather than that the other missed it
        raise min(found, key=lambda problem: isinstance(problem, threading.BrokenBarrierError))


class _Passes:
    """Whole passes over a model with the first candidate of every step, by the compiled code of a cold start.

    Args:
        rig: a model with its first candidates.
        program: what is prepared.
    """

    def __init__(self, rig: Rig, program: LinkedProgram) -> None:
        self._rig, self._program, self._tape = rig, program, tape_of(program)
        self._steps = range(len(program.steps))
        self._stack = ExitStack()
        standing = rig.trials.program
        executed = self._stack.enter_context(self._opened(standing, tape_of(standing)))
        self._executing, self._preparing = Executor(rig.dnnl), Executor(rig.dnnl)  # each used by one thread at a time
        self._prepared = _on_one_lane(executed, self._executing)
        self._prepared.wait_for_all()
        self._times: Numbers = np.zeros(2 * len(self._steps), np.int64)

    def _opened(self, program: LinkedProgram, tape: TapeArrays) -> Shared:
        rig = self._rig
        return Shared(rig.dnnl, program, rig.folder, memory=rig.memory, tape=tape, cache=rig.trials.cache)

    def execute(self, work: _Work, *, keep: bool = True) -> None:
        self._rig.dnnl.set_threads(1)
        start = time.perf_counter()
        reached = 0
        while reached < len(self._steps):
            reached = self._prepared.advance(self._times, reached, len(self._steps))
        if keep:
            work.execute.append((time.perf_counter() - start) * 1e3)

    def prepare(self, work: _Work, *, keep: bool = True, together: threading.Barrier | None = None) -> None:
        """Prepare all steps; together with others if they are to begin, and to have ended, at once."""
        self._rig.dnnl.set_threads(1)
        if keep:
            release_freed()
        with self._opened(self._program, self._tape) as shared:  # mapped anew: pages that were seen before cost nothing
            preparation = _on_one_lane(shared, self._preparing)
            if together:
                together.wait()
            preparation.wait_for_all()
            if together:
                together.wait()
            (marks,) = preparation.marks
        spent = [(stage == "read", (end - start) / 1e6) for stage, _, start, end in marks]
        if keep:
            work.whole.append(sum(time_ms for _, time_ms in spent))
            work.prepare.append(sum(time_ms for reading, time_ms in spent if not reading))
            if reading_ms := sum(time_ms for reading, time_ms in spent if reading):
                work.read.append(reading_ms)

    def close(self) -> None:
        self._stack.close()


def _on_one_lane(shared: Shared, executor: Executor) -> Preparation:
    lane = Lane(0, shared, ())
    lane.preparer.own = executor.own
    return Preparation(shared, [lane], stealing=False, continuous=False)
