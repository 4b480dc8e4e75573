"""Kernels from bytes to bytes: what they stand for is summed, multiplied, averaged, joined or looked up, and rounded once.

A kernel is told a list of numbers (`runtime.byte_numbers`), which factors, shifts and bounds begin. Signed bytes become
unsigned ones by their highest bit, so that a kernel is compiled once for all types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from edgeplan.graph.blocks import AT_DIMS, AT_OPERANDS, AT_RANK, AT_ROW, REACH, STEP, STRIDES
from edgeplan.runtime.constants import (
    FIRST_FACTOR,
    FLIP_READ,
    FLIP_SECOND,
    FLIP_WRITTEN,
    HIGHEST,
    LOWEST,
    NUMBERS,
    SECOND_FACTOR,
    SHIFT,
    THIRD_FACTOR,
)
from edgeplan.runtime.kernels.walking import float32_at, inlined, int32_at, uint8_at

# mypy: disable-error-code="no-any-return"


@inlined
def _byte(value: Any, low: Any, high: Any, flip: Any) -> Any:
    value = np.rint(value)
    value = min(value, high) if value > low else low
    return np.int32(value) ^ flip


@inlined
def _walked(block: Any, operand: int, field: int) -> int:
    rank = block[AT_RANK]
    return block[AT_DIMS + rank + operand * (STRIDES + rank) + field]


@inlined
def looked_up(block: Any, _like: Any, _count: int, at: Any) -> int:
    x, table, y = uint8_at(at[0]), uint8_at(at[1]), uint8_at(at[2])
    for i in range(block[AT_ROW]):
        y[i] = table[x[i]]
    return 0


@inlined
def added(a: Any, b: Any, first: Any, second: Any, _third: Any) -> Any:
    return a * first + b * second


@inlined
def multiplied(a: Any, b: Any, first: Any, second: Any, third: Any) -> Any:
    return (a + first) * (b + second) * third


@inlined
def _pair_row(a: Any, b: Any, y: Any, count: int, by: Any, numbers: Any, function: Any) -> None:
    first, second, third, shift = numbers[FIRST_FACTOR], numbers[SECOND_FACTOR], numbers[THIRD_FACTOR], numbers[SHIFT]
    low, high, flip = numbers[LOWEST], numbers[HIGHEST], np.int32(numbers[FLIP_WRITTEN])
    flip_a, flip_b = np.uint8(numbers[FLIP_READ]), np.uint8(numbers[FLIP_SECOND])
    if by[0] == 1 and by[1] == 1:  # compilers make vectors of rows without gaps
        for i in range(count):
            value = function(np.float32(a[i] ^ flip_a), np.float32(b[i] ^ flip_b), first, second, third)
            y[i] = _byte(value + shift, low, high, flip)
    elif by[0] == 1 and by[1] == 0:
        one = np.float32(b[0] ^ flip_b)
        for i in range(count):
            value = function(np.float32(a[i] ^ flip_a), one, first, second, third)
            y[i] = _byte(value + shift, low, high, flip)
    else:
        for i in range(count):
            value = function(np.float32(a[i * by[0]] ^ flip_a), np.float32(b[i * by[1]] ^ flip_b), first, second, third)
            y[i] = _byte(value + shift, low, high, flip)


@inlined
def _begins(block: Any, operand: int, outer: int, inner: int) -> int:
    """Where the row of an operand begins at places of at most two axes."""
    rank = block[AT_RANK]
    begin = 0
    if rank > 0:
        begin += inner * _walked(block, operand, STRIDES + rank - 1)
    if rank > 1:
        begin += outer * _walked(block, operand, STRIDES)
    return begin


def paired(function: Any) -> Callable[..., int]:
    """Make the kernel of a function of two numbers, over at most two axes and a row."""

    def kernel(block: Any, _like: Any, _count: int, at: Any) -> int:
        rank = block[AT_RANK]
        outer = block[AT_DIMS] if rank > 1 else 1
        inner = block[AT_DIMS + rank - 1] if rank > 0 else 1
        by = (_walked(block, 0, STEP), _walked(block, 1, STEP))
        for o in range(outer):
            for k in range(inner):
                a, b = uint8_at(at[0] + _begins(block, 0, o, k)), uint8_at(at[1] + _begins(block, 1, o, k))
                y = uint8_at(at[3] + _begins(block, 3, o, k))
                _pair_row(a, b, y, block[AT_ROW], by, float32_at(at[2]), function)
        return 0

    return kernel


@inlined
def joined(block: Any, _like: Any, _count: int, at: Any) -> int:
    """Runs of several tensors; of each there are numbers of its own."""
    last, rows = block[AT_OPERANDS] - 1, block[AT_DIMS]
    y = uint8_at(at[last])
    for operand in range(last - 1):
        numbers, x = float32_at(at[last - 1] + 4 * NUMBERS * operand), uint8_at(at[operand])
        factor, shift, low, high = numbers[FIRST_FACTOR], numbers[SHIFT], numbers[LOWEST], numbers[HIGHEST]
        flip_x, flip = np.uint8(numbers[FLIP_READ]), np.int32(numbers[FLIP_WRITTEN])
        count, whole, begin = _walked(block, operand, REACH) + 1, _walked(block, last, REACH) + 1, 0
        for before in range(operand):
            begin += _walked(block, before, REACH) + 1
        same = factor == 1 and shift == 0 and low == 0 and high == 255
        for k in range(rows):
            written, read = k * whole + begin, k * count
            if same:
                for i in range(count):
                    y[written + i] = np.int32(x[read + i] ^ flip_x) ^ flip
            else:
                for i in range(count):
                    y[written + i] = _byte(np.float32(x[read + i] ^ flip_x) * factor + shift, low, high, flip)
    return 0


@inlined
def averaged(block: Any, _like: Any, _count: int, at: Any) -> int:
    """Means of places along an axis that others lie beside; sums of these are kept apart."""
    before, after, numbers = block[AT_DIMS], block[AT_ROW], float32_at(at[1])
    factor, shift, low, high = numbers[FIRST_FACTOR], numbers[SHIFT], numbers[LOWEST], numbers[HIGHEST]
    flip_x, flip = np.uint8(numbers[FLIP_READ]), np.int32(numbers[FLIP_WRITTEN])
    size = _walked(block, 0, REACH) // after + 1
    sums = int32_at(at[2])
    for k in range(before):
        x, y = uint8_at(at[0] + k * size * after), uint8_at(at[3] + k * after)
        if after == 1:
            total = np.int64(0)
            for p in range(size):
                total += np.int32(x[p] ^ flip_x)
            y[0] = _byte(np.float32(total) * factor + shift, low, high, flip)
            continue
        for i in range(after):
            sums[i] = 0
        for p in range(size):
            for i in range(after):
                sums[i] += np.int32(x[p * after + i] ^ flip_x)
        for i in range(after):
            y[i] = _byte(np.float32(sums[i]) * factor + shift, low, high, flip)
    return 0
