"""The preparation of a plan's steps on several cores: who prepares what next, also when somebody is late or fails."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from functools import cached_property
from queue import Empty, SimpleQueue
from time import perf_counter_ns

from edgeplan.planning.cold_start.plan import Plan
from edgeplan.runtime.linked import LinkedProgram, LinkedStep
from edgeplan.runtime.preparation import Calls, Mark, Preparer, Shared

_PATIENCE_SECONDS = 2e-4
_AHEAD = 4  # steps that the main lane waits for at once
_LATE_SECONDS = 4e-3  # a core that gets nothing done for longer is slowed by others: one slice of the system's scheduler


def pin(cores: Iterable[int]) -> None:
    """Keep the calling thread on some processors; nothing where there are none to name."""
    chosen = tuple(cores)
    if chosen:
        os.sched_setaffinity(0, chosen)


class Lane:
    """One core's preparations.

    Attributes:
        todo: steps in order; taken from its head, by others too where they steal.
        preparer: does the work; used by the lane's thread only.
        marks: what was done in the cold start, in order.
    """

    def __init__(self, shared: Shared, todo: Iterable[int], cores: Sequence[int], ratio: float = 1.0) -> None:
        self.todo = deque(todo)
        self.preparer = Preparer(shared)
        self.marks: list[Mark] = []
        self.cores = tuple(cores)
        self.ratio = ratio

    def take(self) -> int | None:
        """The next step of this lane, or None."""
        try:
            return self.todo.popleft()
        except IndexError:
            return None


class Preparation:
    """All lanes of one cold start. The main lane is driven by the executing thread, each other one by a thread of its own.

    Args:
        shared: files, memory and objects.
        lanes: main first.
        stealing: whether a lane with nothing left takes from the heads of others (section 3.3, hardware dynamics).
        continuous: whether idle lanes prepare kernels for later runs (section 3.5).

    Attributes:
        calls: by step, None until it is prepared.
        later: by step, the calls for later runs that are prepared (section 3.5).
    """

    def __init__(self, shared: Shared, lanes: Sequence[Lane], *, stealing: bool, continuous: bool) -> None:
        self._shared, self._lanes, self._stealing = shared, tuple(lanes), stealing
        program = shared.program
        self.calls: list[Calls | None] = [None] * len(program.steps)
        self.later: dict[int, Calls] = {}
        self._done: SimpleQueue[int] = SimpleQueue()
        self._wanted = -1  # the step whose preparation the main lane is to be told of
        self._failure: BaseException | None = None
        self._stopping = False
        self._continuous, self._idle_allowed = continuous, continuous
        self._narrow = narrow_width(program)
        self._threads: list[threading.Thread] = []

    @cached_property
    def _ahead(self) -> deque[tuple[int, LinkedStep]]:
        return deque((k, step) for k, step in enumerate(self._shared.reserve.later) if step is not None)

    def start(self) -> None:
        """Start the threads of the preparing lanes."""
        for number, lane in enumerate(self._lanes[1:]):
            thread = threading.Thread(target=self._drive, args=(lane,), name=f"prepare:{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _drive(self, lane: Lane) -> None:
        try:
            pin(lane.cores)
            self._shared.dnnl.set_threads(1)
            while not self._stopping and (k := self._next(lane)) is not None:
                self._prepare(lane, k)
            while not self._stopping and self._idle_allowed and self._ahead:
                with contextlib.suppress(IndexError):
                    self._prepare_later(lane, *self._ahead.popleft())
        except BaseException as error:  # noqa: BLE001  raised again in the executing thread
            self._failure = error
        self._done.put(-1)

    def _next(self, lane: Lane) -> int | None:
        k = lane.take()
        if k is None and self._stealing:
            others = (other.take() for other in self._lanes if other is not lane)
            k = next((found for found in others if found is not None), None)
        return k

    def _prepare(self, lane: Lane, k: int) -> None:
        start = perf_counter_ns()
        calls = lane.preparer.prepare(k, self._shared.program.steps[k], lane.marks)
        if lane.ratio > 1:  # stands for a slower core
            time.sleep((lane.ratio - 1) * (perf_counter_ns() - start) / 1e9)
            stage, step, begun, _ = lane.marks[-1]
            lane.marks[-1] = (stage, step, begun, perf_counter_ns())
        self.calls[k] = calls
        if k == self._wanted:
            self._done.put(k)

    def _prepare_later(self, lane: Lane, k: int, step: LinkedStep) -> None:
        if self.calls[k] is None:  # it takes over the weights of the cold start, which another lane is at
            self._ahead.append((k, step))
            time.sleep(_PATIENCE_SECONDS)
            return
        self.later[k] = lane.preparer.prepare(k, step, [])  # no part of the cold start's timeline

    # For the executing thread

    def wait_for(self, k: int) -> Calls:
        """The calls of a step: prepares what is the main lane's until it is there, then waits.

        Waking up for every step would cost more than most steps take, and would take the interpreter from the lane that is
        waited for each time. So a wait is for several steps at once; only when a lane is late are its preparations stolen.

        Raises:
            EdgeplanError: whatever a lane failed with.
        """
        while (calls := self.calls[k]) is None:
            if (own := self._lanes[0].take()) is not None:
                self._prepare_here(own)
            elif self._failure is None:
                self._wait(k)
            if self._failure is not None:
                raise self._failure
        return calls

    def _wait(self, k: int) -> None:
        last = min(k + _AHEAD, len(self.calls))
        self._wanted = max((j for j in range(k, last) if self.calls[j] is None), default=k)
        if self.calls[self._wanted] is not None:  # prepared meanwhile
            return
        try:
            self._done.get(timeout=_LATE_SECONDS if self._stealing else None)
        except Empty:
            if (stolen := self._next(self._lanes[0])) is not None:
                self._prepare_here(stolen)

    def _prepare_here(self, k: int) -> None:
        self._shared.dnnl.set_threads(1)
        self._prepare(self._lanes[0], k)
        self._shared.dnnl.set_threads(self._narrow)

    def wait_for_all(self) -> None:
        """Prepare until every step is prepared, and no lane works on anything else."""
        while self._failure is None and (k := self._next(self._lanes[0])) is not None:
            self._prepare_here(k)
        self.pause()

    def pause(self) -> None:
        """Let the lanes finish what they are at, and then rest: their cores are wanted."""
        self._idle_allowed = False
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        if self._failure is not None:
            raise self._failure

    def switching(self) -> bool:
        """Whether kernels for later runs are still being prepared; goes on with it beside a run, if the mode is continuous."""
        if self._ahead and not any(thread.is_alive() for thread in self._threads):
            self._idle_allowed = self._continuous
            if self._continuous and len(self._lanes) > 1:
                self._threads.clear()
                self.start()
            else:
                self._shared.dnnl.set_threads(1)
                while self._ahead:
                    self._prepare_later(self._lanes[0], *self._ahead.popleft())
        if self._failure is not None:
            raise self._failure
        return any(thread.is_alive() for thread in self._threads)

    def stop(self) -> None:
        """End the threads."""
        self._stopping = True
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    @property
    def marks(self) -> tuple[list[Mark], ...]:
        """What each lane did, main first."""
        return tuple(lane.marks for lane in self._lanes)


def lanes_of(shared: Shared, cores: Sequence[int], little: Sequence[int]) -> tuple[Lane, ...]:
    """The lanes of a program, main first.

    Args:
        shared: for the program.
        cores: processors that execute. Empty: not pinned. Equal cores are left to the scheduler: with every lane pinned to its
            own, cold starts of six models took 1.0 to 1.2 times as long.
        little: processors that only prepare. Empty: not pinned.
    """
    program: LinkedProgram = shared.program
    main: Sequence[int] = () if program.equal_cores else cores
    others: Sequence[int] = () if program.equal_cores else little
    lanes = [Lane(shared, program.main, main)]
    for number, queue in enumerate(program.queues):
        ratio = 1.0 if program.equal_cores else program.little_ratio
        lanes.append(Lane(shared, queue, others[number : number + 1], ratio))
    return tuple(lanes)


def narrow_width(program: LinkedProgram | Plan) -> int:
    """Cores that execute while others prepare."""
    return max(1, program.threads - len(program.queues)) if program.equal_cores else program.threads
