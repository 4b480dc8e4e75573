"""Runs a schedule event by event: what a core does next, on the machine model as in the executor.

A lane is the list of steps that a core prepares, in their order. A preparation has an early part, which makes its kernels, and
a late one, which needs its weights. While the weights of a lane's next step are on their way (see `streams`) the early parts of
steps behind it are done, one by one. With none left the core waits: the main core for those weights or for the step to execute,
whichever comes first, unless they are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

EARLY, LATE, EXECUTE = "early", "late", "execute"
#: Number of the lane (0: main), step, part of the work, from when to when (ms); a late part begins with waiting for weights.
Note = Callable[[int, int, str, float, float], None]


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a schedule is the preparation, arrivals, and execution of each step, in ms.

    Attributes:
        lanes: steps prepared by each core, in order; the main core's first.
        early, late: parts of preparing, on the core that does it.
        arrivals: when the weights have come, 0 without any; no step's come before those of earlier ones.
        execute: execution.
        together: step before whose execution all preparations have ended; the number of steps if there is none.
        start_ms: when everything begins.
    """

    lanes: Sequence[Sequence[int]]
    early: Sequence[float]
    late: Sequence[float]
    arrivals: Sequence[float]
    execute: Sequence[float]
    together: int
    start_ms: float = 0.0


def finished_ms(work: Work, note: Note | None = None) -> float:
    """Return when the last step has been executed, ms.

    Args:
        work: the work of the schedule.
        note: is told of every piece of work.
    """
    ready = [inf] * len(work.execute)
    main, *others = (_Lane(work, lane, ready, note) for lane in range(len(work.lanes)))
    free = [lane.prepare_all(work.start_ms) for lane in others]
    now = work.start_ms
    for k, time in enumerate(work.execute):
        if k == work.together:
            now = max([main.prepare_all(now), *free])
        while ready[k] > now:
            if main.at == main.count:
                now = ready[k]
            elif main.can_make(now):
                now = main.make(now)
            elif (following := main.own[main.at]) == k or work.arrivals[following] <= now:
                now = main.prepare(now)
            else:
                now = min(ready[k], work.arrivals[following])
        if note:
            note(0, k, EXECUTE, now, now + time)
        now += time
    return now


class _Lane:
    """A lane tells its progress: steps before place `at` are prepared, kernels of those before `made` are made."""

    __slots__ = ("at", "count", "made", "note", "number", "own", "ready", "work")

    def __init__(self, work: Work, number: int, ready: list[float], note: Note | None) -> None:
        self.work, self.number, self.ready, self.note = work, number, ready, note
        self.own = work.lanes[number]
        self.count, self.at, self.made = len(self.own), 0, 0

    def can_make(self, now: float) -> bool:
        """Tell whether the weights of the next step are on their way while kernels remain to be made."""
        return self.made < self.count and self.work.arrivals[self.own[self.at]] > now

    def make(self, now: float) -> float:
        """Place the next early part; return its end, ms."""
        step = self.own[self.made]
        self.made += 1
        end = now + self.work.early[step]
        if self.note:
            self.note(self.number, step, EARLY, now, end)
        return end

    def prepare(self, now: float) -> float:
        """Finish the next step once its weights have arrived; return its end, ms."""
        if self.made == self.at:
            now = self.make(now)
        step = self.own[self.at]
        self.at += 1
        end = max(now, self.work.arrivals[step]) + self.work.late[step]
        if self.note:
            self.note(self.number, step, LATE, now, end)
        self.ready[step] = end
        return end

    def prepare_all(self, now: float) -> float:
        """Prepare all remaining steps; return the end, ms."""
        while self.at < self.count:
            now = self.make(now) if self.can_make(now) else self.prepare(now)
        return now
