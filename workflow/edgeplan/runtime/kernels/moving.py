"""Kernels that pick elements, whatever they hold, and those that go along an axis."""

from __future__ import annotations

from typing import Any

from edgeplan.runtime.constants import BAD_INDEX
from edgeplan.runtime.kernels.walking import bool_at, elements_at, inlined, int32_at, int64_at, walk

# mypy: disable-error-code="no-any-return"

# `like` is of a type of their size


@inlined
def _copied(like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    x, y = elements_at(at[0], like), elements_at(at[1], like)
    for i in range(count):
        y[i * by[1]] = x[i * by[0]]
    return 0


@inlined
def _where(like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    which, a, b, y = bool_at(at[0]), elements_at(at[1], like), elements_at(at[2], like), elements_at(at[3], like)
    for i in range(count):
        y[i * by[3]] = a[i * by[1]] if which[i * by[0]] != 0 else b[i * by[2]]
    return 0


@inlined
def _gathered(like: Any, count: int, at: Any, _by: Any, reach: int, indices_at: Any) -> int:
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


def copied(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _copied, 0)


def where(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _where, 0)


def gathered_by_int32(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _gathered, int32_at)


def gathered_by_int64(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _gathered, int64_at)


# Along an axis


@inlined
def _above(a: Any, b: Any) -> Any:
    return a > b


@inlined
def _not_below(a: Any, b: Any) -> Any:
    return a >= b


@inlined
def _below(a: Any, b: Any) -> Any:
    return a < b


@inlined
def _not_above(a: Any, b: Any) -> Any:
    return a <= b


@inlined
def _best(like: Any, count: int, at: Any, by: Any, _reach: int, better: Any) -> int:
    x, found = elements_at(at[0], like), 0
    for i in range(1, count):
        if better(x[i * by[0]], x[found * by[0]]):
            found = i
    int64_at(at[1])[0] = found
    return 0


def largest(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _best, _above)


def last_largest(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _best, _not_below)


def smallest(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _best, _below)


def last_smallest(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _best, _not_above)


@inlined
def _summed(like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    x, y = elements_at(at[0], like), elements_at(at[1], like)
    y[0] = total = x[0]
    for i in range(1, count):
        total += x[i * by[0]]
        y[i * by[1]] = total
    return 0


@inlined
def _summed_before(like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    x, y, total = elements_at(at[0], like), elements_at(at[1], like), 0
    for i in range(count):
        y[i * by[1]] = total
        total += x[i * by[0]]
    return 0


def summed(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _summed, 0)


def summed_before(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _summed_before, 0)
