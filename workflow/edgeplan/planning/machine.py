"""Models the machine: what a schedule of one kernel combination costs (NNV12, section 3.2).

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

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from edgeplan.planning.profile import BIG, LITTLE, Disk, Profile, execute_ms, prepare_ms

MAIN = -1
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
    arrays = np.full((8, *shape), np.inf)
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
                disk.transfer_ms(c.read_bytes) if disk is not None else 0.0,
                on_main[1],
                on_queue[1],
            )
    main, queue, narrow, wide, alone_prepare, read, early_main, early_queue = arrays
    arrivals = None if disk is None else DiskArrays(read, early_main, early_queue, disk.latency_ms)
    widens = wide if profile.equal else None
    return CostArrays(main, queue, narrow, widens, alone_prepare, wide, profile.queues, disk=arrivals)


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


def stages_ms(profile: Profile, schedule: KernelSchedule) -> dict[str, float]:
    """Return for how long a schedule reads, creates, transforms and executes, ms over all steps, weights being in memory.

    An execution counts once however wide it is.
    """
    wide_from = schedule.widen_from if profile.equal else len(schedule.place)
    overlapped = not (wide_from == (0 if profile.equal else len(schedule.place)) and set(schedule.place) == {MAIN})
    sums = dict.fromkeys(("read", "create", "transform", "execute"), 0.0)
    for k, (layer, choice, place) in enumerate(zip(profile.layers, schedule.choice, schedule.place, strict=True)):
        candidate, core = layer.candidates[choice], LITTLE if place != MAIN and not profile.equal else BIG
        stages = prepare_ms(profile, candidate, core, overlapped=overlapped, main=place == MAIN)
        wide = profile.equal and k >= wide_from
        width = profile.big_cores if wide else profile.narrow
        execution = execute_ms(profile, candidate, width, overlapped=overlapped and not wide)
        for stage, time in zip(sums, (*stages, execution), strict=True):
            sums[stage] += time
    return sums
