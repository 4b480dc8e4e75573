"""The execution model that plans are priced by: when steps and loads begin and end.

Loads are issued in order of their steps, by the lane that is free first, as soon as the step they
wait for has ended; each lane reads with its share of the bandwidth. A step begins when the one
before has ended and all loads up to its own are done.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapreplace

import numpy as np

from edgeplan.planning.memory.workload import Floats, Placement, Reader, Workload


@dataclass(frozen=True)
class Timeline:
    """A timeline shows inferences that follow each other; ms from the begin of the first, shape (inferences, steps).

    Attributes:
        load_start, load_end: 0 for weights that are in memory at the begin, those of the inference
            before where they stay.
        step_start, step_end: of the computing.
    """

    load_start: Floats
    load_end: Floats
    step_start: Floats
    step_end: Floats

    @property
    def latency_ms(self) -> float:
        """Return the latency of the first inference in ms, which begins with memory filled."""
        return float(self.step_end[0, -1])

    @property
    def period_ms(self) -> float:
        """Mean time from a step to the same of the next inference, of the step with the longest.

        Over the second half of the inferences, of which there are at least three.
        """
        starts = self.step_start[len(self.step_start) // 2 :]
        return float(((starts[-1] - starts[0]) / (len(starts) - 1)).max())


def run(workload: Workload, reader: Reader, placement: Placement, inferences: int = 1) -> Timeline:
    """Run inferences one after the other.

    Args:
        workload: the steps.
        reader: what weights are read with.
        placement: where they go.
        inferences: how many.
    """
    lanes = [0.0] * reader.lanes  # a heap of when each is free
    loads = placement.weight_offset >= 0
    own = placement.after >= 0  # loads that wait for a step of their own inference
    takes = workload.weight_bytes / (reader.bytes_per_ms / reader.lanes)
    waits = np.where(own, placement.after, placement.again)
    shape = (inferences, workload.steps)
    load_start, load_end, step_start, step_end = (np.zeros(shape) for _ in range(4))
    before: list[float] = []
    issued = ready = now = 0.0
    for m in range(inferences):
        loaded = loads & ~placement.stays if m else loads & own
        steps = zip(
            workload.compute_ms.tolist(), np.where(loaded, takes, -1.0).tolist(), waits.tolist(), own.tolist(), strict=True
        )
        begun: list[float] = []
        done: list[float] = []
        starts: list[float] = []
        ends: list[float] = []
        for ms, take, wait, same in steps:
            if take >= 0:
                issued = max(issued, lanes[0], ends[wait] if same else before[wait])
                end = issued + take
                heapreplace(lanes, end)
                ready = max(ready, end)
                begun.append(issued)
                done.append(end)
            now = max(now, ready)
            starts.append(now)
            now += ms
            ends.append(now)
        before = ends
        step_start[m], step_end[m] = starts, ends
        if m:
            load_start[m], load_end[m] = load_start[m - 1], load_end[m - 1]
        load_start[m, loaded], load_end[m, loaded] = begun, done
    return Timeline(load_start, load_end, step_start, step_end)
