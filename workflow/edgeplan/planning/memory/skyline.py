"""Streaming plans: tensors have their places, then each weight goes where memory is free earliest.

A skyline says of every address which step uses it last so far. In order of execution, the tensors
that begin with a step raise it until their end; then the step's weights take a window whose highest
point is lowest, so that their load waits for the earliest step. Loads begin in order, so anything
not above what earlier loads wait for is as good; among those the tightest gap is taken.

What loads wait for only rises, so the gaps at its height are kept: when nothing fits, the lowest
stretches beside them become free, one height after the other, each once. O((steps + tensors) (log
steps + gaps)), in plain Python: the process that runs a plan makes the next one, and has no memory
for a compiler.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from edgeplan.planning.layout.buffers import Ints
from edgeplan.planning.memory.workload import Placement, Workload

#: Ways to choose among gaps that are free equally early.
TIGHTEST, LOWEST, HIGHEST = 0, 1, 2


def place(
    workload: Workload,
    tensor_offset: Ints,
    budget: int,
    pinned: npt.NDArray[np.bool_] | None = None,
    rule: int = TIGHTEST,
    first: Sequence[int] = (),
) -> Placement | None:
    """Find addresses for weights around the tensors.

    Args:
        workload: the steps.
        tensor_offset: addresses of the tensors, counted from where weights that stay end.
        budget: bytes of all addresses.
        pinned: steps whose weights stay in memory, at its lower end, which does not move with the budget;
            none without.
        rule: `TIGHTEST`, `LOWEST` or `HIGHEST`.
        first: steps whose weights come first there, in this order: those of a smaller budget do not move.

    Returns:
        None if some weights find no window.
    """
    tensors, n = workload.tensors, workload.steps
    pinned = np.zeros(n, dtype=np.bool_) if pinned is None else pinned & (workload.weight_bytes > 0)
    unit = workload.weight_alignment
    stay, base = kept(workload, np.flatnonzero(pinned), first)
    limit = budget - base
    if limit < int((tensor_offset + tensors.size).max(initial=0)):
        return None
    order = workload.by_begin
    rows = zip(tensors.lower[order].tolist(), tensors.upper[order].tolist(), tensors.size[order].tolist(), strict=True)
    tensor_rows = [(*row, low) for row, low in zip(rows, tensor_offset[order].tolist(), strict=True) if row[2]]
    skyline = _Skyline(limit, unit, rule)
    weights = np.where(pinned, 0, workload.weight_bytes).tolist()
    if (placed := _placed(skyline, weights, tensor_rows)) is None:
        return None
    offsets, waits = placed
    again = [skyline.highest(low, low + size) if wait < 0 <= low else -1 for low, size, wait in zip(offsets, weights, waits)]  # noqa: B905
    offset, after, last = (np.array(values, dtype=np.int64) for values in (offsets, waits, again))
    offset[offset >= 0] += base
    for k, at in stay.items():
        offset[k], after[k], last[k] = at, -1, k
    ends = np.where(offset >= 0, offset + workload.weight_bytes, 0)
    height = max(int(ends.max()), base + int((tensor_offset + tensors.size).max(initial=0)))
    return Placement(tensor_offset + base, offset, after, last, height)


def kept(workload: Workload, steps: Ints, first: Sequence[int] = ()) -> tuple[dict[int, int], int]:
    """Addresses of weights that stay, from the lower end of memory on, and where what is used again begins behind them.

    Args:
        workload: the steps.
        steps: those whose weights stay.
        first: steps whose weights come first, in this order.
    """
    unit, size = workload.weight_alignment, workload.weight_bytes
    staying = set(steps.tolist())
    order = [k for k in first if k in staying]
    order += sorted(staying.difference(order))
    found, at = {}, 0
    for k in order:
        found[k] = at
        at += -(-int(size[k]) // unit) * unit
    whole = math.lcm(unit, *np.unique(workload.tensors.alignment).tolist())
    return found, -(-at // whole) * whole


def _placed(
    skyline: _Skyline, weights: Sequence[int], tensors: Sequence[tuple[int, int, int, int]]
) -> tuple[list[int], list[int]] | None:
    """Offset of each step's weights, and the step that its load waits for; None if some find no window.

    Args:
        skyline: of an empty memory.
        weights: bytes of each step, 0 for those that are not placed.
        tensors: begin, end, bytes and address, by begin.
    """
    offset, after = [-1] * len(weights), [-1] * len(weights)
    tensor = 0
    for k, size in enumerate(weights):
        while tensor < len(tensors) and tensors[tensor][0] <= k:
            _, upper, length, low = tensors[tensor]
            skyline.raised(low, low + length, upper - 1)
            tensor += 1
        if size:
            while (low := skyline.window(size)) < 0:
                if not skyline.rise(k):
                    return None
            offset[k], after[k] = low, skyline.reached
            skyline.raised(low, low + size, k)
    return offset, after


class _Skyline:
    """A skyline knows, of addresses [0, size), which step uses each last, and gaps that no step after `reached` uses."""

    def __init__(self, size: int, unit: int, rule: int) -> None:
        self._unit, self._rule = unit, rule
        self.reached = -1
        self._begin, self._last = [0, size], [-1, 1 << 62]  # of stretches; one behind the end
        self._low, self._high = [0], [size]  # of gaps, by address
        self._levels: list[tuple[int, int, int]] = []  # a heap of stretches that were raised: level, begin, end

    def raised(self, low: int, high: int, level: int) -> None:
        """A step that is later than all that use these addresses so far is their last one now."""
        begin, last = self._begin, self._last
        first, stop = bisect_right(begin, low) - 1, bisect_left(begin, high)
        before, behind = last[first], last[stop - 1]
        starts, levels = [low], [level]
        if begin[first] < low:
            starts, levels = [begin[first], low], [before, level]
        if begin[stop] > high:
            starts.append(high)
            levels.append(behind)
        begin[first:stop], last[first:stop] = starts, levels
        heappush(self._levels, (level, low, high))
        lows, highs = self._low, self._high
        first, stop = bisect_right(highs, low), bisect_left(lows, high)
        if first < stop:
            starts, ends = [], []
            if lows[first] < low:
                starts, ends = [lows[first]], [low]
            if highs[stop - 1] > high:
                starts.append(high)
                ends.append(highs[stop - 1])
            lows[first:stop], highs[first:stop] = starts, ends

    def window(self, size: int) -> int:
        """Where so many bytes go among the gaps; -1 if they fit in none."""
        unit, found, tightest = self._unit, -1, 1 << 62
        for low, high in zip(self._low, self._high, strict=True):
            left = high + -low // unit * unit - size
            if left < 0:
                continue
            if self._rule == LOWEST:
                return -(-low // unit) * unit
            if self._rule == HIGHEST:
                found = (high - size) // unit * unit
            elif left < tightest:
                found, tightest = -(-low // unit) * unit, left
        return found

    def rise(self, step: int) -> bool:
        """Wait for the next step that frees memory; whether there is one before a step."""
        levels = self._levels
        if not levels or levels[0][0] >= step:
            return False
        self.reached = max(self.reached, levels[0][0])
        while levels and levels[0][0] <= self.reached:
            _, low, high = heappop(levels)
            at = bisect_left(self._begin, low)
            while self._begin[at] < high:  # parts of it may have been raised since
                if self._last[at] <= self.reached:
                    self._free(self._begin[at], min(self._begin[at + 1], high))
                at += 1
        return True

    def _free(self, low: int, high: int) -> None:
        lows, highs = self._low, self._high
        first, stop = bisect_left(highs, low), bisect_right(lows, high)
        if first < stop:
            low, high = min(low, lows[first]), max(high, highs[stop - 1])
        lows[first:stop], highs[first:stop] = [low], [high]

    def highest(self, low: int, high: int) -> int:
        """Return the last step that uses any of these addresses."""
        first, stop = bisect_right(self._begin, low) - 1, bisect_left(self._begin, high)
        return max(self._last[first:stop])
