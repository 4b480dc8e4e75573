"""The cost of handing over is that of a chain of empty steps, each of which waits for the other processor's one before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeplan.runtime import loops
from edgeplan.runtime.loops import Loop, array
from edgeplan.runtime.partitioned.lanes import EventLanes, Item, PollingLanes
from edgeplan.runtime.partitioned.session import LIMIT_SECONDS, Synchronisation, cannot_poll, synchronisation_of
from edgeplan.runtime.processor import Host, Processor

_US_PER_NS = 1e-3


@dataclass(frozen=True, slots=True)
class Handshake:
    """Time of a handshake, in us."""

    least_us: float
    median_us: float


def handshake(
    cpu: Host,
    gpu: Processor,
    synchronisation: Synchronisation,
    runs: int = 200,
    steps: int = 20,
) -> Handshake:
    """Measure the handshake of a pair: both processors run a step side by side, and start the next when both are done.

    The time of a run counts from the CPU's first step to its last; what a run takes to begin and to
    end does not count.

    Args:
        cpu: one processor.
        gpu: the other.
        synchronisation: how they wait for each other.
        runs: of the chain.
        steps: of the chain, at least two.
    """
    kernel = gpu.empty()
    items = [Item(lane, k, kernel) for k in range(steps) for lane in (1, 0)]
    nothing = array(steps * loops.ITEM_WORDS)
    nothing[loops.FIRST :: loops.ITEM_WORDS] = nothing[loops.END :: loops.ITEM_WORDS] = [1] * steps  # prepared, without calls
    loop = Loop(cpu.dnnl.info.path, cpu.worker.stream.value, nothing)
    kind = PollingLanes if synchronisation == Synchronisation.polling else EventLanes
    best, why = synchronisation_of(cpu, gpu)
    if synchronisation == Synchronisation.polling != best:
        raise cannot_poll(why, "the handshake")
    lanes, times = kind(cpu, gpu, items, loop, LIMIT_SECONDS), np.zeros((len(items), 2), np.int64)
    found = []
    for _ in range(runs + 1):  # the first one has kernels built
        lanes.run(times)
        begins = times[[k for k, item in enumerate(items) if item.lane == 0], 0]
        found.append((begins[-1] - begins[0]) / (steps - 1) * _US_PER_NS)
    lanes.close()
    return Handshake(float(min(found[1:])), float(np.median(found[1:])))
