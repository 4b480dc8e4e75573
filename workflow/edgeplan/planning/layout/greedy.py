"""Lays buffers out greedily: one after the other, each at the lowest address where it fits."""

from __future__ import annotations

import numpy as np

from edgeplan.planning.layout.buffers import Buffers, Ints
from edgeplan.planning.layout.parts import Indices, InterferenceGraph
from edgeplan.support.compiled import compiled


def orders(part: Buffers) -> dict[str, Ints]:
    """Return orders in which buffers are worth placing, by name: positions of all buffers (n,)."""
    length = part.upper - part.lower
    area = part.size.astype(float) * length.astype(float)
    keys = {
        "size": (part.lower, -length, -part.size),
        "area": (part.lower, -part.size, -area),
        "length": (part.lower, -part.size, -length),
        "start": (-part.size, part.lower),
        "end": (-part.size, -part.upper),
    }
    return {name: np.lexsort(key) for name, key in keys.items()}


def first_fit(graph: InterferenceGraph, part: Buffers, order: Ints) -> Ints:
    """Return offsets (n,) by placing in this order; O(sum of degree log degree)."""
    return _first_fit(graph.pointer, graph.neighbour, part.size, part.alignment, order)


def lowest(graph: InterferenceGraph, part: Buffers) -> Ints:
    """Return offsets (n,) by placing in the order that gives the lowest layout."""
    found = [first_fit(graph, part, order) for order in orders(part).values()]
    return min(found, key=lambda offsets: int((offsets + part.size).max(initial=0)))


@compiled
def _first_fit(pointer: Ints, neighbour: Indices, size: Ints, alignment: Ints, order: Ints) -> Ints:
    n = len(size)
    offset = np.full(n, -1, dtype=np.int64)
    begins = np.empty(n, dtype=np.int64)
    ends = np.empty(n, dtype=np.int64)
    for k in order:
        count = 0
        for q in range(pointer[k], pointer[k + 1]):
            j = neighbour[q]
            if offset[j] >= 0:
                begins[count] = offset[j]
                ends[count] = offset[j] + size[j]
                count += 1
        free = 0
        for at in np.argsort(begins[:count]):
            if begins[at] >= free + size[k]:
                break
            free = max(free, -(-ends[at] // alignment[k]) * alignment[k])
        offset[k] = free
    return offset


def stack(part: Buffers) -> Ints:
    """Stack buffers one above the other and return their offsets; only different components share memory. O(n log n)."""
    return _stack(part.lower, part.upper, part.size, part.alignment, np.argsort(part.lower, kind="stable"))


@compiled
def _stack(lower: Ints, upper: Ints, size: Ints, alignment: Ints, order: Ints) -> Ints:
    offset = np.zeros(len(order), dtype=np.int64)
    top = reached = 0
    for at, k in enumerate(order):
        if at == 0 or lower[k] >= reached:
            top, reached = 0, upper[k]
        offset[k] = -(-top // alignment[k]) * alignment[k]
        top = offset[k] + size[k]
        reached = max(reached, upper[k])
    return offset


def sweep(part: Buffers, order: Ints, limit: int) -> Ints | None:
    """Return offsets by placing in order of begin, for parts with too many neighbours to list; O(n live).

    Args:
        part: the buffers.
        order: positions by begin.
        limit: most steps; None is returned beyond it.
    """
    offset, done = _sweep(part.lower, part.upper, part.size, part.alignment, order, limit)
    return offset if done else None


@compiled
def _sweep(lower: Ints, upper: Ints, size: Ints, alignment: Ints, order: Ints, limit: int) -> tuple[Ints, bool]:
    n = len(size)
    offset = np.zeros(n, dtype=np.int64)
    live = np.empty(n, dtype=np.int64)  # sorted by offset
    count = 0
    steps = 0
    for k in order:
        free, left, at = 0, 0, -1
        for q in range(count):
            j = live[q]
            if upper[j] <= lower[k]:
                continue
            if at < 0:
                if offset[j] >= free + size[k]:
                    at = left
                else:
                    free = max(free, -(-(offset[j] + size[j]) // alignment[k]) * alignment[k])
            live[left] = j
            left += 1
        steps += count + 1
        if steps > limit:
            return offset, False
        if at < 0:
            at = left
        for q in range(left, at, -1):
            live[q] = live[q - 1]
        live[at] = k
        count = left + 1
        offset[k] = free
    return offset, True
