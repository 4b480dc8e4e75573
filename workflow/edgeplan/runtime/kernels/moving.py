"""Kernels that pick elements, whatever they hold, and those that go along an axis."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from edgeplan.graph.blocks import AT_DIMS, AT_OPERANDS, AT_RANK, AT_ROW, REACH, STRIDES
from edgeplan.runtime.constants import BAD_INDEX
from edgeplan.runtime.kernels.walking import bool_at, elements_at, float32_at, inlined, int64_at, located, rows_of, step_of

# mypy: disable-error-code="no-any-return"

# `like` is of a type of their size


@inlined
def copied(like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    x, y = elements_at(at[0], like), elements_at(at[1], like)
    for i in range(count):
        y[i * by[1]] = x[i * by[0]]
    return 0


@inlined
def where(like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    which, a, b, y = bool_at(at[0]), elements_at(at[1], like), elements_at(at[2], like), elements_at(at[3], like)
    for i in range(count):
        y[i * by[3]] = a[i * by[1]] if which[i * by[0]] != 0 else b[i * by[2]]
    return 0


@inlined
def gathered(like: Any, count: int, at: Any, _by: Any, reach: int, indices_at: Any) -> int:
    """A slice of `count` elements; `reach` is where the last one begins."""
    size, index = reach // count + 1, indices_at(at[1])[0]
    if index < -size or index >= size:
        return BAD_INDEX
    if index < 0:
        index += size
    x, y = elements_at(at[0], like), elements_at(at[2], like)
    for i in range(count):
        y[i] = x[index * count + i]
    return 0


@inlined
def _begin(indices: Any, table: Any) -> int:
    """Where what some indices name begins; -1: nowhere. A table says how many there are, then each axis's size and stride."""
    place = 0
    for k in range(table[0]):
        size, index = table[1 + 2 * k], indices[k]
        if index < -size or index >= size:
            return -1
        place += (index + size if index < 0 else index) * table[2 + 2 * k]
    return place


@inlined
def gathered_slice(like: Any, count: int, at: Any, by: Any, _reach: int, indices_at: Any) -> int:
    begin = _begin(indices_at(at[1]), int64_at(at[2]))
    if begin < 0:
        return BAD_INDEX
    x, y = elements_at(at[0], like), elements_at(at[3], like)
    for i in range(count):
        y[i * by[3]] = x[begin + i * by[0]]
    return 0


@inlined
def gathered_element(like: Any, count: int, at: Any, by: Any, _reach: int, indices_at: Any) -> int:
    x, indices, table, y = elements_at(at[0], like), indices_at(at[1]), int64_at(at[2]), elements_at(at[3], like)
    size, stride = table[1], table[2]
    for i in range(count):
        index = indices[i * by[1]]
        if index < -size or index >= size:
            return BAD_INDEX
        y[i * by[3]] = x[(index + size if index < 0 else index) * stride + i * by[0]]
    return 0


# Written to places that indices name: behind the data, the indices, what is written there, and the table of `_begin`


@inlined
def replaced(_held: Any, given: Any) -> Any:
    return given


def scattered_slices(indices_at: Any, function: Any) -> Callable[..., int]:
    """Make the kernel that writes a slice for each row of indices, in their order."""

    def kernel(block: Any, like: Any, _count: int, at: Any) -> int:
        _copy_whole(block, like, at)
        for k in range(rows_of(block)):
            begin = _begin(indices_at(located(block, at, 1, k)), int64_at(at[3]))
            if begin < 0:
                return BAD_INDEX
            given, y = elements_at(located(block, at, 2, k), like), elements_at(at[4], like)
            for i in range(block[AT_ROW]):
                y[begin + i] = function(y[begin + i], given[i])
        return 0

    return kernel


def scattered_elements(indices_at: Any, function: Any) -> Callable[..., int]:
    """Make the kernel that writes an element for each index, in their order."""

    def kernel(block: Any, like: Any, _count: int, at: Any) -> int:
        _copy_whole(block, like, at)
        table, step = int64_at(at[3]), step_of(block, 4)
        size, stride = table[1], table[2]
        for k in range(rows_of(block)):
            indices, given = indices_at(located(block, at, 1, k)), elements_at(located(block, at, 2, k), like)
            y = elements_at(located(block, at, 4, k), like)
            for i in range(block[AT_ROW]):
                index = indices[i]
                if index < -size or index >= size:
                    return BAD_INDEX
                place = (index + size if index < 0 else index) * stride + i * step
                y[place] = function(y[place], given[i])
        return 0

    return kernel


@inlined
def _copy_whole(block: Any, like: Any, at: Any) -> None:
    x, y = elements_at(at[0], like), elements_at(at[4], like)
    for i in range(_reach(block, 0) + 1):
        y[i] = x[i]


# By tables: slices of an axis, of `size` places before and `out` behind


@inlined
def _reach(block: Any, operand: int) -> int:
    rank = block[AT_RANK]
    return block[AT_DIMS + rank + operand * (STRIDES + rank) + REACH]


def picked(block: Any, like: Any, _count: int, at: Any) -> int:
    before, out, after = block[AT_DIMS], block[AT_DIMS + 1], block[AT_ROW]
    x, places, fill, y = elements_at(at[0], like), int64_at(at[1]), elements_at(at[2], like)[0], elements_at(at[3], like)
    size = _reach(block, 0) // after + 1
    for k in range(before):
        for o in range(out):
            read, written = (k * size + places[o]) * after, (k * out + o) * after
            if places[o] >= size:
                return BAD_INDEX
            for i in range(after):
                y[written + i] = x[read + i] if places[o] >= 0 else fill
    return 0


def mixed(block: Any, _like: Any, _count: int, at: Any) -> int:
    before, out, after = block[AT_DIMS], block[AT_DIMS + 1], block[AT_ROW]
    x, places, weights, y = float32_at(at[0]), int64_at(at[1]), float32_at(at[2]), float32_at(at[3])
    size, taps = _reach(block, 0) // after + 1, _reach(block, 1) + 1
    for k in range(before):
        for o in range(out):
            written = (k * out + o) * after
            for i in range(after):
                y[written + i] = 0
            for tap in range(o * taps, (o + 1) * taps):
                if places[tap] < 0 or places[tap] >= size:
                    return BAD_INDEX
                read, weight = (k * size + places[tap]) * after, weights[tap]
                if weight != 0:
                    for i in range(after):
                        y[written + i] += weight * x[read + i]
    return 0


# Runs of several tensors that one holds


def joined(block: Any, like: Any, _count: int, at: Any) -> int:
    last = block[AT_OPERANDS] - 1
    y, written = elements_at(at[last], like), 0
    for k in range(block[AT_DIMS]):
        for operand in range(last):
            count, x = _reach(block, operand) + 1, elements_at(at[operand], like)
            for i in range(count):
                y[written + i] = x[k * count + i]
            written += count
    return 0


# Matrices


@inlined
def upper(like: Any, count: int, at: Any, _by: Any, _reach: int, _function: Any) -> int:
    x, y, bound = elements_at(at[0], like), elements_at(at[2], like), int64_at(at[1])[0]
    for i in range(count):
        y[i] = x[i] if i >= bound else 0
    return 0


@inlined
def lower(like: Any, count: int, at: Any, _by: Any, _reach: int, _function: Any) -> int:
    x, y, bound = elements_at(at[0], like), elements_at(at[2], like), int64_at(at[1])[0]
    for i in range(count):
        y[i] = x[i] if i < bound else 0
    return 0


# Along an axis


@inlined
def best(like: Any, count: int, at: Any, by: Any, _reach: int, better: Any) -> int:
    x, found = elements_at(at[0], like), 0
    for i in range(1, count):
        if better(x[i * by[0]], x[found * by[0]]):
            found = i
    int64_at(at[1])[0] = found
    return 0


@inlined
def summed(like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    x, y = elements_at(at[0], like), elements_at(at[1], like)
    y[0] = total = x[0]
    for i in range(1, count):
        total += x[i * by[0]]
        y[i * by[1]] = total
    return 0


@inlined
def summed_before(like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    x, y, total = elements_at(at[0], like), elements_at(at[1], like), 0
    for i in range(count):
        y[i * by[1]] = total
        total += x[i * by[0]]
    return 0


@inlined
def more(a: Any, b: Any) -> Any:
    return max(a, b)


@inlined
def less(a: Any, b: Any) -> Any:
    return min(a, b)


@inlined
def reduced(like: Any, count: int, at: Any, by: Any, _reach: int, function: Any) -> int:
    x = elements_at(at[0], like)
    found = x[0]
    for i in range(1, count):
        found = function(found, x[i * by[0]])
    elements_at(at[1], like)[0] = found
    return 0


@inlined
def _sunk(values: Any, places: Any, by: Any, size: int, better: Any) -> None:
    """Put the root of a heap of `size`, the worst first, where it belongs; of equal values the later is the worse."""
    k = 0
    while 2 * k + 1 < size:
        child = 2 * k + 1
        if child + 1 < size:
            a, b = values[child * by[1]], values[(child + 1) * by[1]]
            if better(a, b) or (not better(b, a) and places[(child + 1) * by[2]] > places[child * by[2]]):
                child += 1
        a, b = values[k * by[1]], values[child * by[1]]
        if better(b, a) or (not better(a, b) and places[k * by[2]] > places[child * by[2]]):
            return
        values[k * by[1]], values[child * by[1]] = b, a
        places[k * by[2]], places[child * by[2]] = places[child * by[2]], places[k * by[2]]
        k = child


@inlined
def chosen(like: Any, count: int, at: Any, by: Any, reach: int, better: Any) -> int:
    """The best `count`, the best first, in the memory of what is written: a heap of the best so far, then sorted."""
    x, values, places = elements_at(at[0], like), elements_at(at[1], like), int64_at(at[2])
    for first in range(count):
        k = first
        values[k * by[1]], places[k * by[2]] = x[k * by[0]], k
        while k > 0:
            above = (k - 1) // 2
            if better(values[above * by[1]], values[k * by[1]]) or (
                not better(values[k * by[1]], values[above * by[1]]) and places[k * by[2]] > places[above * by[2]]
            ):
                values[k * by[1]], values[above * by[1]] = values[above * by[1]], values[k * by[1]]
                places[k * by[2]], places[above * by[2]] = places[above * by[2]], places[k * by[2]]
                k = above
            else:
                break
    for i in range(count, count + reach // by[0]):
        if better(x[i * by[0]], values[0]):
            values[0], places[0] = x[i * by[0]], i
            _sunk(values, places, by, count, better)
    for size in range(count - 1, 0, -1):
        values[0], values[size * by[1]] = values[size * by[1]], values[0]
        places[0], places[size * by[2]] = places[size * by[2]], places[0]
        _sunk(values, places, by, size, better)
    return 0
