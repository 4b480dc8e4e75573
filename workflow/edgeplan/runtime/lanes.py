"""The preparation of a plan's steps on several cores: who prepares what next, also when somebody is late or fails."""

from __future__ import annotations

import os
import sys
import threading
import time
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from time import perf_counter_ns
from typing import TYPE_CHECKING

from edgeplan.runtime.linked import LinkedProgram, LinkedStep
from edgeplan.runtime.native import entries, words
from edgeplan.runtime.native.words import Numbers
from edgeplan.runtime.pace import SWITCH_SECONDS
from edgeplan.runtime.preparation import Calls, Mark, Preparer, Shared

if TYPE_CHECKING:
    from edgeplan.planning.document import Plan

_LATE_NS = 1_000_000  # a core that gets nothing done for longer is slowed by others, or has more to do than was planned


def pin(cores: Iterable[int]) -> None:
    """Keep the calling thread on some processors; nothing where there are none to name."""
    chosen = tuple(cores)
    if chosen:
        os.sched_setaffinity(0, chosen)


class LaneThread:
    """A thread that is not waited for when it starts.

    `threading.Thread` waits for its first words: to pass the interpreter there and back takes as long as several kernels.

    Args:
        work: what it does; must not raise.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self._ended = work, threading.Lock()
        self._ended.acquire()
        start_new_thread(self._run, ())

    def _run(self) -> None:
        try:
            self._work()
        finally:
            self._ended.release()

    def is_alive(self) -> bool:
        """Tell whether the lane is still at work."""
        return self._ended.locked()

    def join(self) -> None:
        """Wait until it is done."""
        with self._ended:
            pass


class Lane:
    """One core's preparations; which steps, stands in the store of the session's objects.

    Attributes:
        number: 0 is the main lane.
        preparer: does the work of the cold start; used by the lane's thread only.
        by_hand: what Python did in the cold start.
    """

    def __init__(self, number: int, shared: Shared, cores: Sequence[int], ratio: float = 1.0) -> None:
        self.number = number
        self.preparer = Preparer(shared)
        self.by_hand: list[Mark] = []
        self.cores = tuple(cores)
        self.ratio = ratio
        self._shared = shared

    @cached_property
    def later(self) -> Preparer:
        """Prepares for later runs; apart, so that what was done in the cold start stays."""
        return Preparer(self._shared)

    @property
    def marks(self) -> list[Mark]:
        """Return the marks of the cold start, in order, once all of it is done."""
        self.by_hand += self.preparer.taken_marks()
        return sorted(self.by_hand, key=lambda mark: mark[2])


class LanePreparation:
    """A preparation drives all lanes of one cold start.

    The main lane is driven by the executing thread, each other one by a thread of its own.

    Args:
        shared: files, memory and objects.
        lanes: main first.
        stealing: whether a lane with nothing left takes from the heads of others (section 3.3, hardware dynamics).
        continuous: whether idle lanes prepare kernels for later runs (section 3.5), between runs.

    Attributes:
        later: by step, the calls for later runs that are prepared (section 3.5).
    """

    def __init__(self, shared: Shared, lanes: Sequence[Lane], *, stealing: bool, continuous: bool) -> None:
        self._shared, self._lanes, self._stealing = shared, tuple(lanes), stealing
        self._objects = shared.objects
        self.later: dict[int, Calls] = {}
        self._failure: BaseException | None = None
        self._stopping = False
        self._continuous = continuous
        # not before the first outputs: where execution widens, it would wait for a kernel of a later run
        self._later_allowed = False
        self._reading = threading.Lock()
        self._left_ahead: deque[tuple[int, LinkedStep]] | None = None
        self._narrow = narrow_width(shared.program)
        self._threads: list[LaneThread] = []

    @property
    def _ahead(self) -> deque[tuple[int, LinkedStep]]:
        """Return the steps still to be prepared for later runs; the first caller reads the program's reserve."""
        with self._reading:
            if self._left_ahead is None:
                later = enumerate(self._shared.reserve.later)
                self._left_ahead = deque((k, step) for k, step in later if step is not None)
            return self._left_ahead

    def items(self) -> Numbers:
        """The steps as later runs execute them, for the loop (`words.NEEDED`)."""
        found = self._objects.store.items.copy()
        for k, calls in self.later.items():
            at = words.ITEM_WORDS * k
            found[at + words.FIRST], found[at + words.END] = calls
        return found

    def start(self) -> None:
        """Start the threads of the preparing lanes."""
        self._threads += [LaneThread(partial(self._drive, lane)) for lane in self._lanes[1:]]

    def _drive(self, lane: Lane) -> None:
        try:
            pin(lane.cores)
            self._shared.dnnl.set_threads(1)
            self._prepare_all(lane)
            if self._later_allowed:
                self._prepare_later(lane)
        except BaseException as error:  # noqa: BLE001  raised again in the executing thread
            self._failure = error
            self._objects.store.flags[words.STOP] = 1  # nobody waits for what will not be prepared

    def _prepare_all(self, lane: Lane) -> None:
        """Prepare a lane's steps, and those of others where it steals, until there are none."""
        objects, own = self._objects, lane.preparer.own
        given = (objects.context, own, lane.preparer.marks, lane.number)
        while not self._stopping:
            found = entries.drive(*given, stealing=self._stealing, slower=lane.ratio - 1)
            if found == words.DONE:
                return
            self._left(lane, found)

    def _left(self, lane: Lane, found: int) -> None:
        """Handle a step that compiled code left to Python, or failed at."""
        if found != words.LEFT_TO_PYTHON:
            self._objects.fail(lane.preparer.own)
        k, start = int(lane.preparer.own[words.OWN_STEP]), perf_counter_ns()
        block = lane.preparer.take_over(k, lane.by_hand)
        if lane.ratio > 1:  # as `entries.drive` stands for a slower core
            time.sleep((lane.ratio - 1) * (perf_counter_ns() - start) / 1e9)
            stage, step, begun, _ = lane.by_hand[-1]
            lane.by_hand[-1] = (stage, step, begun, perf_counter_ns())
        self._objects.publish(k, block)

    def _prepare_later(self, lane: Lane) -> None:
        """Prepare what later runs lack until nothing is left; several lanes take from the same heap."""
        while not self._stopping:
            try:
                k, step = self._ahead.popleft()
            except IndexError:
                return
            self.later[k] = lane.later.prepare(k, step, [])

    # For the executing thread

    def advance(self, times: Numbers, first: int, last: int) -> int:
        """Execute steps from `first` on, preparing the main lane's and those of late lanes when one is not there.

        Args:
            times: begin and end of each step's execution.
            first: step.
            last: the step after the last.

        Returns:
            the first step that was not executed: call again from there.
        """
        lane, objects = self._lanes[0], self._objects
        own = lane.preparer.own
        given = (objects.context, own, lane.preparer.marks, times, first, last)
        found = entries.advance(*given, narrow=self._narrow, stealing=self._stealing, patience_ns=_LATE_NS)
        self._require_no_failure()
        if found >= 0:
            return found
        if found == words.FAILED and int(own[words.OWN_OPERATION]) == words.EXECUTION:
            self._shared.dnnl.check_execution(int(own[words.OWN_STATUS]))
        self._shared.dnnl.set_threads(1)
        self._left(lane, found)
        self._shared.dnnl.set_threads(self._narrow)
        return next((k for k in range(first, last) if not times[2 * k + 1]), last)

    def wait_for_all(self) -> None:
        """Prepare until every step is prepared. Threads with nothing left to do are not waited for: to wake takes .1 ms."""
        objects = self._objects
        self._shared.dnnl.set_threads(1)
        self._prepare_all(self._lanes[0])
        entries.await_all(objects.context)
        self._shared.dnnl.set_threads(self._narrow)
        self._require_no_failure()

    def _join(self) -> None:
        """Wait for the lanes to finish what they are at."""
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        self._require_no_failure()

    def _require_no_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    @property
    def working(self) -> bool:
        """Tell whether a lane is at work."""
        return any(thread.is_alive() for thread in self._threads)

    @property
    def unfinished(self) -> bool:
        """Tell whether kernels for later runs are still to be prepared, or are being; reads the reserve of the program."""
        return self.working or bool(self._ahead)

    def resume(self) -> bool:
        """Have the lanes prepare kernels for later runs, if the mode is continuous: between runs they are idle.

        Whether there are any, the lanes find out: to read the reserve takes milliseconds.

        Returns:
            whether they are at it.
        """
        if self._continuous and not self._later_allowed:
            self._start_later()
        return self.working

    def finish(self) -> bool:
        """Prepare what later runs lack, on all cores.

        A run beside the lanes would share its cores with them, and wait for the interpreter, which one thread holds at a time:
        second inferences took 1.8 times as long as where the first thing that they did was this.

        Returns:
            whether anything was left to prepare.
        """
        if not self.unfinished:
            self._require_no_failure()  # the last kernel of all may have failed between runs
            return False
        if not self._later_allowed:
            self._start_later()
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        self._shared.dnnl.set_threads(1)
        try:
            self._prepare_later(self._lanes[0])
            self._join()
        finally:
            sys.setswitchinterval(interval)
        return True

    def _start_later(self) -> None:
        self._join()  # from the cold start, of which no step is left
        self._later_allowed = True
        self.start()

    def stop(self) -> None:
        """End the threads of all lanes."""
        self._stopping = True
        self._objects.store.flags[words.STOP] = 1
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    @property
    def marks(self) -> tuple[list[Mark], ...]:
        """Return the marks of each lane in the cold start, main first."""
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
    lanes = [Lane(0, shared, main)]
    for number in range(len(program.queues)):
        ratio = 1.0 if program.equal_cores else program.little_ratio
        lanes.append(Lane(1 + number, shared, others[number : number + 1], ratio))
    return tuple(lanes)


def narrow_width(program: LinkedProgram | Plan) -> int:
    """Cores that execute while others prepare."""
    return max(1, program.threads - len(program.queues)) if program.equal_cores else program.threads
