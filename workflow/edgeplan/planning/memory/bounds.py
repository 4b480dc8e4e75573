"""What no plan can beat: for these steps and slices, in this order, within a budget.

With e_i the earliest start of step i, c_i its compute time, A_i the bytes of tensors alive in it,
W(i..k) the weights of steps i to k, B the budget and r the bandwidth:

    e_k = max(e_(k-1) + c_(k-1), max over i < k of e_i + (W(i..k) - (B - A_i)) / r)

since when step i begins, at most B - A_i bytes of the weights of steps i to k are in memory; the
others are read before step k begins. With prefix sums of W the inner maximum is a running one:
O(steps).
"""

from __future__ import annotations

import math

import numpy as np

from edgeplan.planning.memory.workload import Floats, Reader, Workload
from edgeplan.support.compiled import compiled


def least_bytes(workload: Workload) -> int:
    """No budget below it is enough: what a step uses is in memory together."""
    return int((workload.live_bytes + workload.weight_bytes).max())


def isolated_ms(workload: Workload, reader: Reader, budget: int) -> float:
    """Bound of the latency of one inference that begins with memory filled.

    Infinite if the budget is too small.
    """
    if budget < least_bytes(workload):
        return math.inf
    twice = _twice(workload)
    return float(_from(0, workload.steps, *twice, float(budget), reader.bytes_per_ms))


def period_ms(workload: Workload, reader: Reader, budget: int) -> float:
    """Bound of the mean time between inferences that follow each other.

    Infinite if the budget is too small. Counted from step i of one inference to step i of the next,
    all weights are used once, and what is in memory at first is bounded as in one inference; so the
    bound of any i holds. O(steps^2).
    """
    if budget < least_bytes(workload):
        return math.inf
    return float(_period(workload.steps, *_twice(workload), float(budget), reader.bytes_per_ms))


def _twice(workload: Workload) -> tuple[Floats, Floats, Floats]:
    compute = np.concatenate([workload.compute_ms, workload.compute_ms])
    weights = np.concatenate([[0], np.cumsum(np.concatenate([workload.weight_bytes, workload.weight_bytes]))]).astype(float)
    live = np.concatenate([workload.live_bytes, workload.live_bytes]).astype(float)
    return compute, weights, live


@compiled
def _from(first: int, steps: int, compute: Floats, prefix: Floats, live: Floats, budget: float, rate: float) -> float:
    """Earliest end of the steps `first` to `first + steps - 1`, if the first begins at 0."""
    start = 0.0
    needed = -np.inf  # the largest e_i - (P_i + B - A_i) / r so far
    for k in range(first, first + steps):
        if k > first:
            start = max(start + compute[k - 1], needed + prefix[k + 1] / rate)
        needed = max(needed, start - (prefix[k] + budget - live[k]) / rate)
    return float(start + compute[first + steps - 1])


@compiled
def _period(steps: int, compute: Floats, prefix: Floats, live: Floats, budget: float, rate: float) -> float:
    best = 0.0
    for first in range(steps):
        start = 0.0
        needed = -np.inf
        for k in range(first, first + steps):
            if k > first:
                start = max(start + compute[k - 1], needed + prefix[k + 1] / rate)
            needed = max(needed, start - (prefix[k] + budget - live[k]) / rate)
        # The same step of the next inference begins no earlier, and all weights but those that were there have been read.
        whole = max(start + compute[first + steps - 1], needed + prefix[first + steps] / rate)
        best = max(best, whole)
    return best
