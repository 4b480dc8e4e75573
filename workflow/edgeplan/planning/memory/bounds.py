"""This module bounds the latency of every streaming plan from below.

With e_i the earliest start of step i, c_i its compute time, A_i the bytes of tensors alive in it,
W(i..k) the weights of steps i to k, B the budget, r the bandwidth and l the time of a read besides
its bytes:

    e_k = max(e_(k-1) + c_(k-1), max over i < k of e_i + c_i + l + (W(i..k) - (B - A_i)) / r)

where the inner maximum is over those i for which more than nothing is left to read. While step i
runs, its tensors and weights stay, so at most B - A_i bytes of the weights of steps i to k are in
memory or on their way there; the reads of the others begin once it has ended. Each i counts from one
k on, since W grows, so the inner maximum is a running one.
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

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
    live, weights = workload.live_bytes.tolist(), workload.weight_bytes.tolist()
    compute, rate = workload.compute_ms.tolist(), reader.bytes_per_ms
    waiting: list[tuple[int, float]] = []  # a heap: bytes of weights from which on a step counts, and what it adds
    needed, start, read = -math.inf, 0.0, 0  # read: weights up to step k
    for k in range(workload.steps):
        before, read = read, read + weights[k]
        while waiting and waiting[0][0] < read:
            needed = max(needed, heappop(waiting)[1])
        start = max(start, needed + read / rate)
        heappush(waiting, (before + budget - live[k], start + compute[k] + reader.read_ms - (before + budget - live[k]) / rate))
        start += compute[k]
    return start


def period_ms(workload: Workload, reader: Reader, budget: int, stride: int = 1) -> float:
    """Bound of the mean time between inferences that follow each other.

    Infinite if the budget is too small. Counted from step i of one inference to step i of the next,
    all weights are used once, and what is in memory at first is bounded as in one inference; so the
    bound of any i holds. O(steps^2 / stride), all i side by side.

    Only each `stride`-th step is counted from: all of these bounds hold, the largest over all steps is the tightest.
    """
    if budget < least_bytes(workload):
        return math.inf
    n, rate = workload.steps, reader.bytes_per_ms
    firsts = range(0, n, stride)
    compute = np.tile(workload.compute_ms, 2)
    prefix = np.concatenate([[0], np.cumsum(np.tile(workload.weight_bytes, 2))])
    room = prefix[:-1] + budget - np.tile(workload.live_bytes, 2)
    counting: list[list[int]] = [[] for _ in range(2 * n + 1)]  # the steps that count from each step on
    for i, k in enumerate(np.searchsorted(prefix[1:], room, side="right").tolist()):
        counting[max(k, i + 1)].append(i)
    start = np.zeros(len(firsts))  # of the step that is looked at, counted from the start of each first step
    needed = np.full(len(firsts), -math.inf)
    added: dict[int, Floats] = {}
    longest, begun, ended = 0.0, 0, 0
    for k in range(2 * n):
        read = float(prefix[k + 1]) / rate
        if ended < len(firsts) and k == firsts[ended] + n:  # the same step again, whose weights may have stayed
            longest = max(longest, float(start[ended]), float(needed[ended]) + float(prefix[k]) / rate)
            ended += 1
        for i in counting[k]:
            np.maximum(needed[: len(added[i])], added[i], out=needed[: len(added[i])])
            del added[i]
        active = slice(ended, begun)
        np.maximum(start[active], needed[active] + read, out=start[active])
        begun += begun < len(firsts) and k == firsts[begun]
        added[k] = start[:begun] + (float(compute[k]) + reader.read_ms - float(room[k]) / rate)
        start[ended:begun] += compute[k]
    return longest
