"""This module simulates a plan under its costs: start and end of every step.

Two ways of executing. *In sequence*, one step is under way at a time: the next starts when the one
before has ended, its processors know it, and its inputs are in their memory. *Side by side*, each
processor has a queue and takes its next step as soon as that step's inputs are there; a split takes
both at once. While parts of different steps run side by side they are slowed by the contention
factors. Where readers move what they read, a step begins with that, on all its processors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from edgeplan.planning.partition.costs import CPU, GPU, SPLIT, Choice, Option, PairCosts


@dataclass(frozen=True, slots=True)
class PairSpan:
    """When a step runs (ms).

    Attributes:
        start_ms: on both processors at once if it is split.
        cpu_end_ms, gpu_end_ms: end of its part on each; its start where it has none.
    """

    start_ms: float
    cpu_end_ms: float
    gpu_end_ms: float

    @property
    def end_ms(self) -> float:
        """End of the slower part."""
        return max(self.cpu_end_ms, self.gpu_end_ms)


@dataclass(frozen=True, slots=True)
class OptionSchedule:
    """A schedule gives each step its option and each processor its order.

    Attributes:
        choice: option of each step.
        queues: steps on the CPU and on the GPU in their order, those with a busy time there; None
            for one step at a time.
    """

    choice: Choice
    queues: tuple[tuple[int, ...], tuple[int, ...]] | None = None


def whole_queues(starts_ms: Sequence[float], kinds: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """List all steps of each processor in order, also those that take no time, which queues leave out.

    Args:
        starts_ms: of the steps, each after what it reads.
        kinds: `CPU`, `GPU` or `SPLIT`.
    """
    order = sorted(range(len(starts_ms)), key=lambda k: (starts_ms[k], k))
    cpu, gpu = (tuple(k for k in order if kinds[k] in (processor, SPLIT)) for processor in (CPU, GPU))
    return cpu, gpu


@dataclass(frozen=True, slots=True)
class PairTimeline:
    """A timeline holds the simulated times of all steps."""

    makespan_ms: float
    spans: tuple[PairSpan, ...]


@dataclass(frozen=True, slots=True)
class Boundary:
    """A boundary describes the surroundings of a part of a model, all 0 for a whole one.

    Attributes:
        entry_ms: from the start until a step can have what it reads from before, [step][its kind].
        exit_ms: from the end of a step until what comes after can have it, [step][its kind].
        direct_ms: least time from start to end.
    """

    entry_ms: tuple[tuple[float, ...], ...]
    exit_ms: tuple[tuple[float, ...], ...]
    direct_ms: float = 0.0


def open_boundary(costs: PairCosts) -> Boundary:
    """Return a boundary with nothing before and nothing after."""
    nothing = ((0.0,) * 3,) * len(costs.steps)
    return Boundary(nothing, nothing)


def simulate(costs: PairCosts, schedule: OptionSchedule) -> PairTimeline:
    """Execute a schedule under the costs."""
    if schedule.queues is None:
        return in_sequence(costs, schedule.choice)
    return side_by_side(costs, schedule, open_boundary(costs))


def in_sequence(costs: PairCosts, choice: Choice) -> PairTimeline:
    """Execute one step at a time, in the order of the steps.

    An output is moved into a processor's memory once, before its first reader there; both
    directions move at once.
    """
    now, before = 0.0, -1
    spans: list[PairSpan] = []
    there: list[set[int]] = []
    for step, option in zip(costs.steps, costs.chosen(choice), strict=True):
        if before >= 0:
            now += costs.synchronisation_ms[before][option.kind]
        moved = [0.0, 0.0]
        for processor in (CPU, GPU):
            if option.kind in {processor, SPLIT}:
                for i in step.inputs:
                    if processor not in there[i]:
                        there[i].add(processor)
                        source = costs.steps[i]
                        moved[processor] += source.to_gpu_ms if processor == GPU else source.to_cpu_ms
        now += max(moved)
        spans.append(PairSpan(now, now + option.cpu_ms, now + option.gpu_ms))
        there.append({option.kind} - {SPLIT})
        now, before = spans[-1].end_ms, option.kind
    return PairTimeline(now, tuple(spans))


def queues_by(costs: PairCosts, choice: Choice, keys: Sequence[float]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return queues of both processors, by the steps' keys, equal ones in the order of the model."""
    order = sorted(range(len(choice)), key=lambda k: (keys[k], k))
    options = costs.chosen(choice)
    return tuple(k for k in order if options[k].cpu_ms > 0), tuple(k for k in order if options[k].gpu_ms > 0)


def side_by_side(costs: PairCosts, schedule: OptionSchedule, boundary: Boundary) -> PairTimeline:
    """Simulate both queues side by side."""
    return _Execution(costs, schedule, boundary).run()


class _Execution:
    def __init__(self, costs: PairCosts, schedule: OptionSchedule, boundary: Boundary) -> None:
        self.costs, self.boundary = costs, boundary
        self.options: list[Option] = costs.chosen(schedule.choice)
        self.queues = schedule.queues or ((), ())
        self._check()
        self.missing = [len(s.inputs) for s in costs.steps]
        self.ready = [boundary.entry_ms[k][o.kind] for k, o in enumerate(self.options)]
        self.heads = [0, 0]
        self.running = [-1, -1]
        self.left = [0.0, 0.0]
        self.there = [{o.kind} - {SPLIT} for o in self.options]  # memories with all of a step's output
        self.start = [-1.0] * len(self.options)
        self.ends = [[-1.0, -1.0] for _ in self.options]
        self.parts = [(o.cpu_ms > 0) + (o.gpu_ms > 0) for o in self.options]
        self.instant = {k for k, parts in enumerate(self.parts) if not parts and not self.missing[k]}
        self.now, self.done = 0.0, 0

    def _check(self) -> None:
        for processor, queue in enumerate(self.queues):
            busy = [k for k, o in enumerate(self.options) if (o.gpu_ms if processor == GPU else o.cpu_ms) > 0]
            if sorted(queue) != busy:
                raise ValueError("the queues do not hold what the options run there")

    def run(self) -> PairTimeline:
        while True:
            while self._begin():
                pass
            if self.done == len(self.options):
                break
            self._advance()
        spans = tuple(PairSpan(s, *(e if e >= 0 else s for e in ends)) for s, ends in zip(self.start, self.ends, strict=True))
        last = (span.end_ms + self.boundary.exit_ms[k][self.options[k].kind] for k, span in enumerate(spans))
        return PairTimeline(max(self.boundary.direct_ms, *last) if spans else self.boundary.direct_ms, spans)

    def _head(self, processor: int) -> int:
        queue, at = self.queues[processor], self.heads[processor]
        return queue[at] if self.running[processor] < 0 and at < len(queue) else -1

    def _begin(self) -> bool:
        """Start or finish what can be at this moment; whether anything was."""
        for k in [k for k in self.instant if self.ready[k] <= self.now]:
            self.instant.remove(k)
            self.start[k] = self.now
            self._finish(k)
            return True
        for processor in (CPU, GPU):
            k = self._head(processor)
            if k < 0 or self.missing[k] or self.ready[k] > self.now:
                continue
            busy = (self.options[k].cpu_ms, self.options[k].gpu_ms)
            on = [p for p in (CPU, GPU) if busy[p] > 0]
            if all(self._head(p) == k for p in on):
                self.start[k], moving = self.now, self._moving_ms(k, on)
                for p in on:
                    self.running[p], self.left[p] = k, moving + busy[p]
                    self.heads[p] += 1
                return True
        return False

    def _moving_ms(self, k: int, on: Sequence[int]) -> float:
        """Return the time in which the processors of a step move what they read first; each output is moved once."""
        moved = [0.0, 0.0]
        for p in on if self.costs.occupying else ():
            for i in self.costs.steps[k].inputs:
                if p not in self.there[i]:
                    self.there[i].add(p)
                    moved[p] += self.costs.steps[i].to_gpu_ms if p == GPU else self.costs.steps[i].to_cpu_ms
        return max(moved)

    def _advance(self) -> None:
        """Go to the next end of a part, or to the next moment at which inputs are there."""
        rates = (1.0, 1.0)
        if min(self.running) >= 0 and self.running[CPU] != self.running[GPU]:
            rates = self.costs.factors(self.running[CPU], self.running[GPU])
        wall = [self.left[p] * rates[p] if self.running[p] >= 0 else math.inf for p in (CPU, GPU)]
        waiting = [k for k in (*map(self._head, (CPU, GPU)), *self.instant) if k >= 0 and not self.missing[k]]
        arrival = min((self.ready[k] for k in waiting if self.ready[k] > self.now), default=math.inf)
        step = min(*wall, arrival - self.now)
        if step == math.inf:
            raise ValueError("the queues wait for each other")
        self.now = arrival if arrival - self.now == step else self.now + step
        for p in (CPU, GPU):
            if (k := self.running[p]) < 0:
                continue
            if wall[p] > step:
                self.left[p] -= step / rates[p]
                continue
            self.running[p], self.ends[k][p] = -1, self.now
            self.parts[k] -= 1
            if not self.parts[k]:
                self._finish(k)

    def _finish(self, k: int) -> None:
        self.done += 1
        delays = self.costs.delays_ms[k][self.options[k].kind]
        for reader in self.costs.readers[k]:
            self.missing[reader] -= 1
            self.ready[reader] = max(self.ready[reader], self.now + delays[self.options[reader].kind])
            if not self.missing[reader] and not self.parts[reader]:
                kind = self.options[reader].kind
                self.ready[reader] += self._moving_ms(reader, (CPU, GPU) if kind == SPLIT else (kind,))
                self.instant.add(reader)
