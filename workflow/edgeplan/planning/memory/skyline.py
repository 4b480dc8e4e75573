"""Streaming plans: tensors have their places, then each weight goes where memory is free earliest.

A skyline says of every address which step uses it last so far. In order of execution, the tensors
that begin with a step raise it until their end; then the step's weights take a window whose highest
point is lowest, so that their load waits for the earliest step. Loads begin in order, so anything
not above what earlier loads wait for is as good; among those the tightest gap is taken. O(steps
(steps + tensors) log steps), in compiled code.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeplan.planning.layout.buffers import Ints
from edgeplan.planning.memory.workload import Placement, Workload, placement
from edgeplan.support.compiled import compiled

#: Ways to choose among gaps that are free equally early.
TIGHTEST, LOWEST, HIGHEST = 0, 1, 2


def place(
    workload: Workload, tensor_offset: Ints, budget: int, pinned: npt.NDArray[np.bool_] | None = None, rule: int = TIGHTEST
) -> Placement | None:
    """Place weights around tensors.

    Args:
        workload: the steps.
        tensor_offset: addresses of the tensors, none above `budget`.
        budget: bytes of all addresses.
        pinned: steps whose weights stay in memory, at its upper end; none without.
        rule: `TIGHTEST`, `LOWEST` or `HIGHEST`.

    Returns:
        None if some weights find no window.
    """
    tensors, n = workload.tensors, workload.steps
    pinned = np.zeros(n, dtype=np.bool_) if pinned is None else pinned & (workload.weight_bytes > 0)
    unit = workload.weight_alignment
    rounded = -(-workload.weight_bytes[pinned] // unit) * unit
    limit = budget if not pinned.any() else budget // unit * unit - int(rounded.sum())
    if limit < int((tensor_offset + tensors.size).max(initial=0)):
        return None
    order = workload.by_begin
    offset, after, placed = _place(
        workload.weight_bytes,
        pinned,
        tensors.lower[order],
        tensors.upper[order],
        tensors.size[order],
        tensor_offset[order],
        limit,
        unit,
        rule,
    )
    if not placed:
        return None
    if pinned.any():
        offset[pinned] = limit + np.cumsum(rounded) - rounded
        after[pinned] = -1
    return placement(workload, tensor_offset, offset, after)


@compiled
def _place(
    weights: Ints,
    pinned: npt.NDArray[np.bool_],
    lower: Ints,
    upper: Ints,
    size: Ints,
    tensor_offset: Ints,
    budget: int,
    unit: int,
    rule: int,
) -> tuple[Ints, Ints, bool]:
    n = len(weights)
    offset = np.full(n, -1, dtype=np.int64)
    after = np.full(n, -1, dtype=np.int64)
    room = 2 * (n + len(lower)) + 3
    begin = np.zeros(room, dtype=np.int64)  # of each level stretch; the next one's begin is its end
    last = np.full(room, -1, dtype=np.int64)  # the step that uses it last
    begin[1] = budget
    count = 1
    tensor, reached = 0, -1
    for k in range(n):
        while tensor < len(lower) and lower[tensor] <= k:
            low = tensor_offset[tensor]
            count = _raise(begin, last, count, low, low + size[tensor], upper[tensor] - 1)
            tensor += 1
        if weights[k] > 0 and not pinned[k]:
            least = _earliest(begin, last, count, weights[k], unit, reached, k - 1)
            if least >= k:
                return offset, after, False
            reached = max(reached, least)
            low = _window(begin, last, count, weights[k], unit, reached, rule)
            offset[k] = low
            after[k] = reached
            count = _raise(begin, last, count, low, low + weights[k], k)
    return offset, after, True


@compiled
def _raise(begin: Ints, last: Ints, count: int, low: int, high: int, level: int) -> int:
    """Raise the skyline in [low, high) to at least `level`. Returns the number of stretches."""
    if high <= low:
        return count
    count = _cut(begin, last, count, low)
    count = _cut(begin, last, count, high)
    for q in range(count):
        if begin[q] >= low and begin[q] < high:
            last[q] = max(last[q], level)
    left = 0  # neighbours of the same level become one
    for q in range(1, count):
        if last[q] != last[left]:
            left += 1
            begin[left], last[left] = begin[q], last[q]
    begin[left + 1] = begin[count]
    return left + 1


@compiled
def _cut(begin: Ints, last: Ints, count: int, at: int) -> int:
    for q in range(count):
        if begin[q] < at < begin[q + 1]:
            for p in range(count, q, -1):
                begin[p + 1] = begin[p]
                if p < count:
                    last[p + 1] = last[p]
            begin[q + 1] = at
            last[q + 1] = last[q]
            return count + 1
    return count


@compiled
def _fits(begin: Ints, last: Ints, count: int, size: int, unit: int, level: int) -> bool:
    """Whether a window is nowhere above a level."""
    q = 0
    while q < count:
        if last[q] <= level:
            low = -(-begin[q] // unit) * unit
            while q < count and last[q] <= level:
                q += 1
            if low + size <= begin[q]:
                return True
        q += 1
    return False


@compiled
def _earliest(begin: Ints, last: Ints, count: int, size: int, unit: int, low: int, high: int) -> int:
    """The lowest level from `low` to `high` that has a window; one above `high` if none has."""
    if _fits(begin, last, count, size, unit, low):
        return low
    if high <= low or not _fits(begin, last, count, size, unit, high):
        return max(low, high) + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _fits(begin, last, count, size, unit, middle):
            high = middle
        else:
            low = middle
    return high


@compiled
def _window(begin: Ints, last: Ints, count: int, size: int, unit: int, level: int, rule: int) -> int:
    """The address of the window to take among those nowhere above the level."""
    best, tightest = -1, np.int64(2**62)
    q = 0
    while q < count:
        if last[q] <= level:
            low = -(-begin[q] // unit) * unit
            while q < count and last[q] <= level:
                q += 1
            left = begin[q] - low - size
            if left >= 0:
                if rule == LOWEST:
                    return int(low)
                if rule == HIGHEST:
                    best = (begin[q] - size) // unit * unit
                elif left < tightest:
                    best, tightest = low, left
        q += 1
    return best
