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

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

import numpy as np
import numpy.typing as npt

from edgeplan.planning.profile import BIG, LITTLE, Disk, Profile, execute_ms, prepare_ms

MAIN = -1
_ROUNDING_MS = 1e-9
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DiskArrays:
    """Disk arrays hold what a disk adds to a profile, shape (steps, candidates of the richest step), ms.

    Reading costs infinity for absent candidates; `early_main` and `early_queue` are the part of a preparation that does not
    wait for the weights, on the main core and on others; the latency passes before the disk's first byte.
    """

    read: Floats
    early_main: Floats
    early_queue: Floats
    latency_ms: float


@dataclass(frozen=True)
class CostArrays:
    """Cost arrays hold a profile, shape (steps, candidates of the richest step), ms; absent candidates cost infinity.

    Attributes:
        main, queue: preparation on the main core while others work, and on a preparing core.
        narrow, wide: execution while others prepare, and on all cores after all preparations; None where it never widens
            (asymmetric chips).
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
    arrays = np.full((9, *shape), np.inf)
    core = BIG if profile.equal else LITTLE
    overlapped = disk is None or profile.queues > 0  # else nothing overlaps but the disk
    for k, layer in enumerate(profile.layers):
        for o, c in enumerate(layer.candidates):
            on_main = prepare_ms(profile, c, BIG, overlapped=overlapped, main=True)
            on_queue = prepare_ms(profile, c, core, overlapped=True)
            arrays[:, k, o] = (
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
    main, queue, narrow, wide, alone_prepare, alone_execute, read, early_main, early_queue = arrays
    arrivals = None if disk is None else DiskArrays(read, early_main, early_queue, disk.latency_ms)
    widens = wide if profile.equal else None
    return CostArrays(main, queue, narrow, widens, alone_prepare, alone_execute, profile.queues, disk=arrivals)


@dataclass(frozen=True, slots=True)
class KernelSchedule:
    """A schedule is a kernel combination with its placement.

    By step, the position of the chosen candidate and the preparing core (`MAIN` for the main core), and the first step executed
    on all cores; the number of steps if none is.
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


@dataclass(slots=True)
class _Lane:
    """A core's preparations in order: those before place `at` have ended, kernels of those before `made` are made."""

    core: str
    own: Sequence[int]
    at: int = 0
    made: int = 0


class _Run:
    """A run of a schedule, event by event.

    Of each step there are the times to read, create and transform, when its weights have come (0 without any; no step's come
    before those of earlier ones), and, once it is known, when it is prepared. The first lane is the main core's.
    """

    def __init__(
        self, lanes: Iterable[Sequence[int]], prepare: Sequence[tuple[float, float, float]], arrivals: Sequence[float]
    ) -> None:
        self.main, *self.others = (_Lane(core_name(place), own) for place, own in enumerate(lanes, MAIN))
        self._prepare, self._arrivals, self._ready = prepare, arrivals, [inf] * len(prepare)
        self.spans: list[Span] = []

    def _can_make(self, lane: _Lane, now: float) -> bool:
        """Tell whether the weights of the next step are on their way while kernels remain to be made."""
        return lane.made < len(lane.own) and self._arrivals[lane.own[lane.at]] > now

    def _make(self, lane: _Lane, now: float) -> float:
        """Make the next kernel; return the end, ms."""
        step = lane.own[lane.made]
        lane.made += 1
        create = self._prepare[step][1]
        if create > 0:
            self.spans.append(Span(lane.core, step, "create", now, now + create))
        return now + create

    def _finish(self, lane: _Lane, now: float) -> float:
        """Finish the next step once its weights have arrived; return its end, ms."""
        if lane.made == lane.at:
            now = self._make(lane, now)
        step = lane.own[lane.at]
        lane.at += 1
        read, _, transform = self._prepare[step]
        end = self._ready[step] = max(now, self._arrivals[step]) + (read + transform)
        read_until = end - transform
        if read_until > now and (read > 0 or read_until - now > _ROUNDING_MS):
            self.spans.append(Span(lane.core, step, "read", now, read_until))
        if transform > 0:
            self.spans.append(Span(lane.core, step, "transform", read_until, end))
        return end

    def prepare_all(self, lane: _Lane, now: float) -> float:
        """Prepare all remaining steps; return the end, ms."""
        while lane.at < len(lane.own):
            now = self._make(lane, now) if self._can_make(lane, now) else self._finish(lane, now)
        return now

    def prepared(self, k: int, now: float) -> float:
        """Prepare on the main core until step k is prepared; return when it can be executed there, ms."""
        main = self.main
        while self._ready[k] > now:
            if main.at == len(main.own):
                now = self._ready[k]
            elif self._can_make(main, now):
                now = self._make(main, now)
            elif (following := main.own[main.at]) == k or self._arrivals[following] <= now:
                now = self._finish(main, now)
            else:
                now = min(self._ready[k], self._arrivals[following])
        return now


def simulate(profile: Profile, schedule: KernelSchedule, disk: Disk | None = None) -> tuple[float, tuple[Span, ...]]:
    """Run a schedule on the machine model, event by event, from `Profile.start_ms` on; return makespan (ms) and timeline.

    Weights come from the disk in the order of the steps, ahead of everything; without one they are in memory. What waits for it
    counts as reading. An execution on all equal cores has a span on each of them.
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
    run = _Run([schedule.queue(place) for place in range(MAIN, profile.queues)], prepare, arrivals)
    now = profile.start_ms
    free = [run.prepare_all(lane, now) for lane in run.others]
    for k, time in enumerate(execute):
        if k == together:
            now = max([run.prepare_all(run.main, now), *free])
        now = run.prepared(k, now)
        places = range(MAIN, profile.queues if profile.equal and k >= together else 0)
        run.spans.extend(Span(core_name(place), k, "execute", now, now + time) for place in places)
        now += time
    return now, tuple(run.spans)
