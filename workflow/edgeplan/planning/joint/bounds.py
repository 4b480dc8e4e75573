"""This module bounds the time of every first inference within a budget from below.

With e_i the earliest start of step i, c_i its time, A_i the bytes of tensors alive in it, W(i..k) the weights of steps i to
k, K_k the kernels of steps 0 to k and p_m the time to make kernel m, B the budget, r the bandwidth, l the time of a read
besides its bytes, and T the number of threads that make kernels:

    e_k = max(e_(k-1) + c_(k-1),
              max of p_m over K_k,
              (sum of p_m over K_k + c_0 + ... + c_(k-1)) / T,
              l + W(0..k) / r,
              max over i < k of e_i + c_i + l + (W(i..k) - (B - A_i)) / r)

By the begin of step k all these kernels are made and these steps executed, by T threads; nothing was read before; and while
step i runs, at most B - A_i bytes of weights are in memory or on their way there (`planning.memory.bounds`).
"""

from __future__ import annotations

import math
from heapq import heappop, heappush

from edgeplan.planning.joint.first import FirstInference
from edgeplan.planning.memory.bounds import least_bytes


def first_ms(problem: FirstInference, budget: int) -> float:
    """Return the bound; infinite if the budget is too small.

    Args:
        problem: steps and kernels.
        budget: bytes for tensors and weights.
    """
    work, reader = problem.workload, problem.reader
    if budget < least_bytes(work):
        return math.inf
    live, weights, compute = work.live_bytes.tolist(), work.weight_bytes.tolist(), work.compute_ms.tolist()
    threads, rate = 1 + problem.beside, reader.bytes_per_ms
    making = {step: problem.making_ms[kernel] for kernel, step in problem.first_use.items()}
    waiting: list[tuple[int, float]] = []  # a heap: bytes of weights from which on a step counts, and what it adds
    needed, start, read, done_ms = reader.read_ms, 0.0, 0, 0.0
    for k in range(work.steps):
        before, read = read, read + weights[k]
        while waiting and waiting[0][0] < read:
            needed = max(needed, heappop(waiting)[1])
        own = making.get(k, 0.0)
        done_ms += own
        start = max(start, own, done_ms / threads, needed + read / rate if read else 0.0)
        room = before + budget - live[k]
        heappush(waiting, (room, start + compute[k] + reader.read_ms - room / rate))
        start += compute[k]
        done_ms += compute[k]
    return start
