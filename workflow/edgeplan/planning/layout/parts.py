"""Divides a problem into independent parts, and finds who lives beside whom in one."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan.planning.layout.buffers import LARGEST, Buffers, Ints, max_live
from edgeplan.support.compiled import compiled

Indices = npt.NDArray[np.int32]


@dataclass(frozen=True)
class LayoutPart:
    """A part holds buffers that are laid out apart from all others, from address `base` on.

    Attributes:
        index: positions among all buffers.
        base: everything below is taken by buffers that overlap all of these.
        lower_bound: lower bound of the height, base included.
        unit: heights from `base` on are multiples of it.
    """

    index: Ints
    base: int
    lower_bound: int
    unit: int


@dataclass(frozen=True)
class InterferenceGraph:
    """An interference graph joins the buffers of one part that live at the same time.

    Attributes:
        first, last: half-open range of sections of each buffer, shape (buffers,).
        sections: how many there are; each is a largest set of buffers that live at one time.
        pointer, neighbour: buffers that overlap buffer k in time are
            `neighbour[pointer[k]:pointer[k + 1]]`.
    """

    first: Ints
    last: Ints
    sections: int
    pointer: Ints
    neighbour: Indices


def components(all_of: Buffers, index: Ints) -> Iterator[Ints]:
    """Yield sets of buffers, as positions (n,), no two of different sets alive at the same time; none of size 0."""
    index = index[all_of.size[index] > 0]
    if not len(index):
        return
    index = index[np.argsort(all_of.lower[index], kind="stable")]
    reached = np.maximum.accumulate(all_of.upper[index])
    yield from np.split(index, np.flatnonzero(all_of.lower[index][1:] >= reached[:-1]) + 1)


def parts(all_of: Buffers) -> tuple[list[LayoutPart], Ints]:
    """Divide a problem into parts that can be solved independently.

    A buffer that overlaps all others of its component lies at the bottom without loss of
    generality: what is below it may change places with it. The rest may fall into components again.

    Returns:
        The parts, and offsets of the buffers in none of them; -1 for those in parts.
    """
    found: list[LayoutPart] = []
    offsets = np.zeros(len(all_of), dtype=np.int64)
    waiting = [(index, 0) for index in components(all_of, np.arange(len(all_of)))]
    while waiting:
        index, base = waiting.pop()
        lows, highs = all_of.lower[index], all_of.upper[index]
        common = min(math.lcm(*np.unique(all_of.alignment[index]).tolist()), LARGEST)  # which no size is a multiple of
        over_all = (lows < highs.min()) & (highs > lows.max()) & (all_of.size[index] % common == 0)
        if len(index) == 1:
            over_all[:] = True
        if not over_all.any():
            found.append(_part(all_of, index, base))
            offsets[index] = -1
            continue
        bottom = index[over_all]
        offsets[bottom] = base + np.cumsum(all_of.size[bottom]) - all_of.size[bottom]
        base += int(all_of.size[bottom].sum())
        waiting += [(rest, base) for rest in components(all_of, index[~over_all])]
    return found, offsets


def _part(all_of: Buffers, index: Ints, base: int) -> LayoutPart:
    part = all_of.subset(index)
    step = int(np.gcd.reduce(part.alignment))
    unit = int(np.gcd.reduce(np.concatenate([part.size, part.alignment[part.alignment > 1]])))
    bound = max_live(part)
    if step > 1:
        # All offsets are multiples of `step`: rounded up, only the topmost buffer of a moment may be shorter.
        rounded = -(-part.size // step) * step
        bound = max(
            bound, max_live(Buffers(part.lower, part.upper, rounded, part.alignment)) - int((rounded - part.size).max())
        )
    return LayoutPart(index, base, base + -(-bound // unit) * unit, unit)


def pair_count(part: Buffers) -> int:
    """Count the pairs of buffers that live at the same time."""
    begun = np.searchsorted(np.sort(part.lower), part.lower, side="right").sum()
    ended = np.searchsorted(np.sort(part.upper), part.lower, side="right").sum()
    ties = np.unique(part.lower, return_counts=True)[1]
    return int(begun - ended - len(part) - (ties * (ties - 1) // 2).sum())


def graph(part: Buffers) -> InterferenceGraph:
    """Return the sections and neighbours of a part; O(n log n + pairs)."""
    lows, highs = part.lower, part.upper
    # A section ends where something ends that began since the last section's end.
    begins = np.unique(lows)
    ends = np.unique(highs)
    following = ends[np.searchsorted(ends, begins, side="right")]  # the first end behind each begin
    borders = np.unique(following)
    first = np.searchsorted(borders, lows, side="right")
    last = np.searchsorted(borders, highs, side="right")
    order = np.argsort(lows, kind="stable")
    pointer, neighbour = _neighbours(order, lows[order], highs, pair_count(part))
    return InterferenceGraph(first.astype(np.int64), last.astype(np.int64), len(borders), pointer, neighbour)


@compiled
def _neighbours(order: Ints, sorted_lows: Ints, highs: Ints, pairs: int) -> tuple[Ints, Indices]:
    n = len(order)
    degree = np.zeros(n + 1, dtype=np.int64)
    for a in range(n):
        i = order[a]
        for b in range(a + 1, n):
            if sorted_lows[b] >= highs[i]:
                break
            degree[i + 1] += 1
            degree[order[b] + 1] += 1
    pointer = np.cumsum(degree)
    neighbour = np.empty(2 * pairs, dtype=np.int32)
    at = pointer[:-1].copy()
    for a in range(n):
        i = order[a]
        for b in range(a + 1, n):
            if sorted_lows[b] >= highs[i]:
                break
            j = order[b]
            neighbour[at[i]] = j
            at[i] += 1
            neighbour[at[j]] = i
            at[j] += 1
    return pointer, neighbour
