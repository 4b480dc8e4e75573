"""The machine model with a disk: cold starts with the page cache evicted.

The disk is one more machine. It reads the weights of the steps in the order of execution, ahead of everything, as the executor
asks for them, and with the weights of step k come

    A_k = latency + bytes of steps <= k / bandwidth.

A preparation makes its kernels first, and needs the weights then. Until they have come its core makes kernels of later steps
(`events`); with none left it stands still, so the closed form of `machine` is no longer the makespan: schedules are priced by
`streamed_ms`, event by event, as `machine.simulate` does with a disk. That order is the model's, and the bounds hold for it: a
core that prepares a later step reads its weights at once, which puts them before others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from edgeplan.planning.cold_start.events import Work, finished_ms
from edgeplan.planning.cold_start.machine import MAIN, Costs, Floats, Schedule, costs_of
from edgeplan.planning.cold_start.profile import BIG, LITTLE, Disk, Profile, prepare_ms


@dataclass(frozen=True)
class Streams:
    """A profile on a machine with a disk, as arrays of shape (steps, candidates of the richest step); ms.

    Attributes:
        costs: of the cores.
        read: of the disk; absent candidates cost infinity.
        early_main, early_queue: the part of a preparation that does not wait for the weights, on the main core and on others.
        latency_ms: before the first byte.
    """

    costs: Costs
    read: Floats
    early_main: Floats
    early_queue: Floats
    latency_ms: float


def streams_of(profile: Profile, disk: Disk) -> Streams:
    """The arrays of a profile."""
    costs = costs_of(profile)
    if costs.queues == 0:  # nothing overlaps but the disk
        costs = replace(costs, main=costs.alone_prepare, narrow=costs.alone_execute)
    alone = costs.queues == 0
    read, early_main, early_queue = (np.full(costs.main.shape, np.inf) for _ in range(3))
    core = BIG if profile.equal else LITTLE
    for k, layer in enumerate(profile.layers):
        for o, c in enumerate(layer.candidates):
            read[k, o] = disk.transfer_ms(c.read_bytes)
            _, early_main[k, o], _ = prepare_ms(profile, c, BIG, overlapped=not alone, main=True)
            _, early_queue[k, o], _ = prepare_ms(profile, c, core, overlapped=True)
    return Streams(costs, read, early_main, early_queue, disk.latency_ms)


def streamed_ms(s: Streams, schedule: Schedule) -> float:
    """The makespan of a schedule whose weights are on the disk: `machine.simulate` with arrivals, without its timeline.

    With several cores, preparations and executions are taken as overlapping others.
    """
    costs, rows = s.costs, np.arange(s.costs.steps)
    choice, place = np.asarray(schedule.choice), np.asarray(schedule.place)
    read, on_main = s.read[rows, choice], place == MAIN
    early = np.where(on_main, s.early_main[rows, choice], s.early_queue[rows, choice])
    prepare = np.where(on_main, costs.main[rows, choice], costs.queue[rows, choice])
    work = Work(
        lanes=[np.flatnonzero(place == q).tolist() for q in range(MAIN, costs.queues)],
        early=early.tolist(),
        late=(prepare - early).tolist(),
        arrivals=np.where(read > 0, s.latency_ms + np.cumsum(read), 0.0).tolist(),  # what has no weights waits for none
        execute=costs.execution(schedule.widen_from)[rows, choice].tolist(),
        together=costs.steps if costs.wide is None else schedule.widen_from,
    )
    return finished_ms(work)
