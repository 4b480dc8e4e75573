"""Models the machine with a disk: cold starts with the page cache evicted.

The disk is one more machine. It reads the weights of the steps in the order of execution, ahead of everything, as the executor
asks for them, and with the weights of step k come

    A_k = latency + bytes of steps <= k / bandwidth.

A preparation makes its kernels first, and needs the weights then. Until they have come its core makes kernels of later steps
(`events`); with none left it stands still, so the closed form of `machine` is no longer the makespan: schedules are priced by
`streamed_ms`, event by event, as `machine.simulate` does with a disk. That order is the model's, and the bounds hold for it: a
core that prepares a later step reads its weights at once, which puts them before others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from edgeplan.chapters.cold_start.planners import descent
from edgeplan.chapters.cold_start.planners.descent import Scratch, SearchTimes, priced
from edgeplan.planning.machine import CostArrays, Floats, KernelSchedule, costs_of
from edgeplan.planning.profile import BIG, LITTLE, Disk, Profile, prepare_ms


@dataclass(frozen=True)
class Streams:
    """Holds a profile on a machine with a disk, as arrays of shape (steps, candidates of the richest step); ms.

    Attributes:
        costs: costs on the cores.
        read: reading from the disk; absent candidates cost infinity.
        early_main, early_queue: the part of a preparation that does not wait for the weights, on the main core and on others.
        latency_ms: time before the disk's first byte.
    """

    costs: CostArrays
    read: Floats
    early_main: Floats
    early_queue: Floats
    latency_ms: float

    @cached_property
    def times(self) -> SearchTimes:
        """Return the same times for the native library."""
        costs = self.costs
        wide = costs.narrow if costs.wide is None else costs.wide
        times = (self.read, self.early_main, self.early_queue, costs.main, costs.queue, costs.narrow, wide)
        candidates, widens = costs.present.sum(axis=1), costs.wide is not None
        return SearchTimes(np.stack(times, axis=-1), candidates, costs.queues, self.latency_ms, widens=widens)

    @cached_property
    def scratch(self) -> Scratch:
        """Return memory for pricing schedules."""
        return Scratch(self.costs.steps, self.costs.queues)


def streams_of(profile: Profile, disk: Disk) -> Streams:
    """Return the arrays of a profile and a disk."""
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


def streamed_ms(s: Streams, schedule: KernelSchedule) -> float:
    """Return the makespan (ms) of a schedule whose weights are on the disk: `machine.simulate` with arrivals, no timeline.

    With several cores, preparations and executions are taken as overlapping others.
    """
    choice, place = np.array(schedule.choice, np.int64), np.array(schedule.place, np.int64)
    return priced(s.times, s.scratch, choice, place, schedule.widen_from, np.inf)


def descended(s: Streams, schedule: KernelSchedule, until: float) -> KernelSchedule:
    """Improve a schedule by single changes of candidates, places and the step that widens, until none helps.

    Args:
        s: the profile and its disk.
        schedule: to start from.
        until: `time.monotonic()` at which to stop.
    """
    choice, place = np.array(schedule.choice, np.int64), np.array(schedule.place, np.int64)
    widen_from, now_ms, helped = schedule.widen_from, streamed_ms(s, schedule), True
    while helped and time.monotonic() < until:
        widen_from, now_ms, helped = descent.descended(s.times, s.scratch, choice, place, widen_from, now_ms)
    return KernelSchedule(tuple(choice.tolist()), tuple(place.tolist()), int(widen_from))
