"""Models the machine: what a schedule of one kernel combination costs, and when everything runs (NNV12, section 3.2).

Equal cores: before step `widen_from` execution runs on the main core(s) while the others prepare; from that step on it uses all
cores, and all preparations are finished by then. Asymmetric chips: big cores always execute, little cores prepare; `widen_from`
is the number of steps. Nothing is preempted. The main core executes the next step when it is prepared, else takes its next own
preparation, else waits.

Since own preparations wait for nothing, the main core is idle only after the last of them. So the makespan of a schedule is
exactly

    max(main work,
        finish(k) + executions of steps >= k, for each k < widen_from,
        last finish + executions of steps >= widen_from)

with finish(k) the end of preparation k on its queue: main preparations need no clever order, and on a single queue the order of
steps is best (its tails, the executions still to come, shrink with k: Jackson's rule).

With the page cache evicted the disk is one more machine. It reads the weights of the steps in the order of execution, ahead of
everything, as the executor asks for them, and with the weights of step k come

    A_k = latency + bytes of steps <= k / bandwidth.

A preparation makes its kernels first, and needs the weights then. Until they have come its core makes kernels of later steps;
with none left it stands still, so the closed form is no longer the makespan: schedules are priced event by event. That order is
the model's, and the bounds hold for it: a core that prepares a later step reads its weights at once, which puts them before
others.

What is paid before all of it (`Profile.start_ms`) is the same for every schedule: it is added to makespans and bounds once they
are found (`planning.optimal.Outcome`), and is in no `CostArrays`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
import numpy.typing as npt

from edgeplan.planning.profile import BIG, LITTLE, Disk, Profile, execute_ms, prepare_ms

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
    """Return when the last step has been executed, ms; `note` is told of every piece of work."""
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


MAIN = -1
_ROUNDING_MS = 1e-9
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DiskArrays:
    """Disk arrays hold what a disk adds to a profile, shape (steps, candidates of the richest step), ms.

    Attributes:
        read: reading from the disk; absent candidates cost infinity.
        early_main, early_queue: the part of a preparation that does not wait for the weights, on the main core and on others.
        latency_ms: time before the disk's first byte.
    """

    read: Floats
    early_main: Floats
    early_queue: Floats
    latency_ms: float


@dataclass(frozen=True)
class CostArrays:
    """Cost arrays hold a profile, shape (steps, candidates of the richest step), ms; absent candidates cost infinity.

    Attributes:
        main: preparation on the main core while others work.
        queue: preparation on a preparing core.
        narrow: execution while others prepare.
        wide: execution on all cores, after all preparations; None where execution never widens (asymmetric chips).
        alone_prepare, alone_execute: the same on the main core (execution on all big cores) when nothing overlaps.
        queues: number of preparing cores.
        main_prepares: whether the main core may prepare while others work; a GPU only executes, and its costs of preparing are
            then above any makespan.
        disk: where the weights come from; None if they are in memory. With several cores and a disk, preparations and
            executions are taken as overlapping others.
    """

    main: Floats
    queue: Floats
    narrow: Floats
    wide: Floats | None
    alone_prepare: Floats
    alone_execute: Floats
    queues: int
    main_prepares: bool = True
    disk: DiskArrays | None = None

    @cached_property
    def present(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the candidates that exist, shape (steps, candidates)."""
        return np.isfinite(self.main)

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return len(self.main)

    def widenings(self) -> range:
        """Return the steps from which execution can widen."""
        return range(self.steps, self.steps + 1) if self.wide is None else range(self.steps + 1)

    def execution(self, widen_from: int) -> Floats:
        """Return the execution by step and candidate, ms, shape (steps, candidates), when it widens at a step."""
        if self.wide is None:
            return self.narrow
        return np.where(np.arange(self.steps)[:, None] < widen_from, self.narrow, self.wide)


def cost_arrays(profile: Profile, disk: Disk | None = None) -> CostArrays:
    """Return the costs of a profile on its machine, contention included, with weights in memory or on a disk."""
    shape = (len(profile.layers), max(len(layer.candidates) for layer in profile.layers))
    arrays = [np.full(shape, np.inf) for _ in range(9)]
    core = BIG if profile.equal else LITTLE
    overlapped = disk is None or profile.queues > 0  # else nothing overlaps but the disk
    for k, layer in enumerate(profile.layers):
        for o, c in enumerate(layer.candidates):
            on_main = prepare_ms(profile, c, BIG, overlapped=overlapped, main=True)
            on_queue = prepare_ms(profile, c, core, overlapped=True)
            values = (
                sum(on_main),
                sum(on_queue),
                execute_ms(profile, c, profile.narrow, overlapped=overlapped),
                execute_ms(profile, c, profile.big_cores, overlapped=False),
                sum(prepare_ms(profile, c, BIG, overlapped=False)),
                execute_ms(profile, c, profile.big_cores, overlapped=False),
                disk.transfer_ms(c.read_bytes) if disk is not None else 0.0,
                on_main[1],
                on_queue[1],
            )
            for array, value in zip(arrays, values, strict=True):
                array[k, o] = value
    main, queue, narrow, wide, alone_prepare, alone_execute, read, early_main, early_queue = arrays
    arrivals = None if disk is None else DiskArrays(read, early_main, early_queue, disk.latency_ms)
    widens = wide if profile.equal else None
    return CostArrays(main, queue, narrow, widens, alone_prepare, alone_execute, profile.queues, disk=arrivals)


@dataclass(frozen=True, slots=True)
class KernelSchedule:
    """A schedule is a kernel combination with its placement.

    Attributes:
        choice: position of the chosen candidate, by step.
        place: preparing core by step, `MAIN` for the main core.
        widen_from: first step executed on all cores; the number of steps if none is.
    """

    choice: tuple[int, ...]
    place: tuple[int, ...]
    widen_from: int

    def queue(self, place: int) -> tuple[int, ...]:
        """Return the steps prepared at a place, in order."""
        return tuple(k for k, p in enumerate(self.place) if p == place)


def sequential(costs: CostArrays, choice: tuple[int, ...]) -> KernelSchedule:
    """Schedule everything one after the other: prepare on the main core, execute on all cores that execute."""
    return KernelSchedule(choice, (MAIN,) * costs.steps, costs.steps if costs.wide is None else 0)


def makespans_ms(costs: CostArrays, choice: Ints, place: Ints) -> Floats:
    """Return exact makespans (ms) by the closed form above, one for each of `costs.widenings()`."""
    rows, n = np.arange(costs.steps), costs.steps
    finish = np.zeros(n)
    prepare = costs.queue[rows, choice]
    for q in range(costs.queues):
        mine = place == q
        finish[mine] = np.cumsum(prepare[mine])
    on_main = place == MAIN
    narrow = np.append(0.0, np.cumsum(costs.narrow[rows, choice]))
    late = np.maximum.accumulate(np.append(-np.inf, finish - narrow[:-1])) + narrow
    late = np.maximum(late, narrow + costs.main[rows, choice][on_main].sum())
    if costs.wide is None:
        result: Floats = late[-1:]
    else:
        wide = np.append(np.cumsum(costs.wide[rows, choice][::-1])[::-1], 0.0)
        result = np.maximum(late, finish.max(initial=0.0)) + wide
    if on_main.all():  # nothing overlaps
        result[0] = costs.alone_prepare[rows, choice].sum() + costs.alone_execute[rows, choice].sum()
    return result


def makespan_ms(costs: CostArrays, schedule: KernelSchedule) -> float:
    """Return the exact makespan (ms) of a schedule."""
    makespans = makespans_ms(costs, np.asarray(schedule.choice), np.asarray(schedule.place))
    return float(makespans[schedule.widen_from - costs.widenings()[0]])


@dataclass(frozen=True, slots=True)
class Span:
    """A span is one piece of work: a stage of a step on a core, from start to end (ms)."""

    core: str
    layer: int
    stage: str
    start_ms: float
    end_ms: float


def core_name(place: int) -> str:
    """Return the name of a core: "main" or "prepare:<queue>"."""
    return "main" if place == MAIN else f"prepare:{place}"


def simulate(profile: Profile, schedule: KernelSchedule, disk: Disk | None = None) -> tuple[float, tuple[Span, ...]]:
    """Run a schedule on the machine model, event by event, from `Profile.start_ms` on.

    Args:
        profile: costs of the model's steps.
        schedule: schedule to run.
        disk: where weights come from, in the order of the steps, ahead of everything; without it they are in memory. What waits
            for it counts as reading.

    Returns:
        The makespan (ms) and the timeline, for a Gantt picture; an execution on all equal cores has a span on each of them.
    """
    chosen = [layer.candidates[o] for layer, o in zip(profile.layers, schedule.choice, strict=True)]
    n = len(chosen)
    in_sequence = schedule.widen_from == (0 if profile.equal else n) and set(schedule.place) == {MAIN}
    overlapped = not in_sequence if disk is None else profile.queues > 0  # else there is no contention
    together = schedule.widen_from if profile.equal else n
    arrivals = [0.0] * n  # of weights; what has none waits for none
    if disk is not None:
        sizes = np.cumsum([c.read_bytes for c in chosen]).tolist()
        come = [profile.start_ms + disk.latency_ms + disk.transfer_ms(size) for size in sizes]
        arrivals = [arrival if c.read_bytes else 0.0 for arrival, c in zip(come, chosen, strict=True)]
    prepare = []
    for c, place in zip(chosen, schedule.place, strict=True):
        core = LITTLE if place != MAIN and not profile.equal else BIG
        prepare.append(prepare_ms(profile, c, core, overlapped=overlapped, main=place == MAIN))
    execute = [
        execute_ms(profile, c, profile.big_cores, overlapped=False)
        if profile.equal and k >= together
        else execute_ms(profile, c, profile.narrow, overlapped=overlapped)
        for k, c in enumerate(chosen)
    ]
    spans: list[Span] = []

    def note(lane: int, k: int, part: str, start: float, end: float) -> None:
        read, create, transform = prepare[k]
        if part == EXECUTE:
            places = range(MAIN, profile.queues if profile.equal and k >= together else 0)
            spans.extend(Span(core_name(place), k, EXECUTE, start, end) for place in places)
        elif part == EARLY and create > 0:
            spans.append(Span(core_name(lane - 1), k, "create", start, end))
        elif part == LATE:
            read_until = end - transform
            if read_until > start and (read > 0 or read_until - start > _ROUNDING_MS):
                spans.append(Span(core_name(lane - 1), k, "read", start, read_until))
            if transform > 0:
                spans.append(Span(core_name(lane - 1), k, "transform", read_until, end))

    work = Work(
        lanes=[schedule.queue(place) for place in range(MAIN, profile.queues)],
        early=[create for _, create, _ in prepare],
        late=[read + transform for read, _, transform in prepare],
        arrivals=arrivals,
        execute=execute,
        together=together,
        start_ms=profile.start_ms,
    )
    return finished_ms(work, note), tuple(spans)
