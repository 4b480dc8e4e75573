"""This module bounds the latency of every streaming plan from below.

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


def least_bytes(workload: Workload) -> int:
    """No budget below it is enough: what a step uses is in memory together."""
    return int((workload.live_bytes + workload.weight_bytes).max())


def isolated_ms(workload: Workload, reader: Reader, budget: int) -> float:
    """Bound of the latency of one inference that begins with memory filled.

    Infinite if the budget is too small.
    """
    if budget < least_bytes(workload):
        return math.inf
    return float(_ends(workload, reader, budget, 1)[0][0])


def period_ms(workload: Workload, reader: Reader, budget: int) -> float:
    """Bound of the mean time between inferences that follow each other.

    Infinite if the budget is too small. Counted from step i of one inference to step i of the next,
    all weights are used once, and what is in memory at first is bounded as in one inference; so the
    bound of any i holds: the next begins no earlier, and all weights but those that were there have
    been read. O(steps^2), all i side by side.
    """
    if budget < least_bytes(workload):
        return math.inf
    return float(np.maximum(*_ends(workload, reader, budget, workload.steps)).max())


def _ends(workload: Workload, reader: Reader, budget: int, firsts: int) -> tuple[Floats, Floats]:
    """Earliest ends of as many steps as there are, from each of the first `firsts` steps on, which begins at 0.

    The second value: earliest ends of the loads of the step behind.
    """
    n, rate = workload.steps, reader.bytes_per_ms
    compute = np.concatenate([workload.compute_ms, workload.compute_ms])
    weights = np.concatenate([workload.weight_bytes, workload.weight_bytes]) / rate
    prefix = np.concatenate([[0.0], np.cumsum(weights)])
    room = prefix[:-1] + (budget - np.concatenate([workload.live_bytes, workload.live_bytes])) / rate
    start = np.zeros(firsts)
    needed = -room[:firsts]  # the largest e_i - (P_i + B - A_i) / r so far
    for k in range(1, n):
        start = np.maximum(start + compute[k - 1 : k - 1 + firsts], needed + prefix[k + 1 : k + 1 + firsts])
        np.maximum(needed, start - room[k : k + firsts], out=needed)
    return start + compute[n - 1 : n - 1 + firsts], needed + prefix[n : n + firsts]
