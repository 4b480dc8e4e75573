"""The execution model that plans are priced by: when steps and loads begin and end.

Loads are issued in order of their steps, by the lane that is free first, as soon as the step they
wait for has ended; each lane reads with its share of the bandwidth. A step begins when the one
before has ended and all loads up to its own are done.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from edgeplan.planning.layout.buffers import Ints
from edgeplan.planning.memory.workload import Floats, Placement, Reader, Workload
from edgeplan.support.compiled import compiled


@dataclass(frozen=True)
class Timeline:
    """Inferences that follow each other; ms from the begin of the first, shape (inferences, steps).

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
        """Of the first inference, which begins with memory filled."""
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
    times = _run(
        workload.compute_ms,
        workload.weight_bytes,
        placement.weight_offset,
        placement.after,
        placement.again,
        reader.bytes_per_ms / reader.lanes,
        reader.lanes,
        inferences,
    )
    return Timeline(*times)


@compiled
def _run(
    compute: Floats, weights: Ints, offset: Ints, after: Ints, again: Ints, rate: float, lanes: int, inferences: int
) -> tuple[Floats, Floats, Floats, Floats]:
    n = len(compute)
    load_start = np.zeros((inferences, n))
    load_end = np.zeros((inferences, n))
    step_start = np.zeros((inferences, n))
    step_end = np.zeros((inferences, n))
    free = np.zeros(lanes)
    issued, ready, now = 0.0, 0.0, 0.0
    for m in range(inferences):
        for k in range(n):
            stays = after[k] < 0 and (m == 0 or again[k] == k)
            if offset[k] >= 0 and not stays:
                lane = np.argmin(free)
                issued = max(issued, free[lane])
                issued = max(issued, step_end[m, after[k]] if after[k] >= 0 else step_end[m - 1, again[k]])
                free[lane] = issued + weights[k] / rate
                ready = max(ready, free[lane])
                load_start[m, k], load_end[m, k] = issued, free[lane]
            elif m > 0:
                load_start[m, k], load_end[m, k] = load_start[m - 1, k], load_end[m - 1, k]
            step_start[m, k] = max(now, ready)
            now = step_start[m, k] + compute[k]
            step_end[m, k] = now
    return load_start, load_end, step_start, step_end
