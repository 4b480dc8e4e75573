"""Kernels go over their operands by a loop over all axes but one, and a row along that one.

What is compiled into a kernel is not compiled apart: it is told the function to apply, and a function that
is compiled by itself could be no argument of one that is kept on the disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba import types
from numba.extending import intrinsic, register_jitable

from edgeplan.graph.blocks import AT_DIMS, AT_OPERANDS, AT_RANK, AT_ROW, BYTES, REACH, STARTS, STEP, STRIDES
from edgeplan.runtime.native.intrinsics import pointing
from edgeplan.support.compiled import compiled


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function as a part of kernels."""
    return register_jitable(function)


def _intrinsic(function: Callable[..., Any]) -> Callable[..., Any]:
    return intrinsic(function)


@_intrinsic
def elements_at(typing: Any, address: Any, like: Any) -> Any:  # noqa: ARG001  numba's protocol
    """Elements at an address, of the type that another pointer is of."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001
        return builder.inttoptr(arguments[0], context.get_value_type(like))

    return like(types.int64, like), generate


#: Truth values are bytes, of 0 and 1.
float32_at, int32_at, int64_at, int8_at, uint8_at, uint16_at = map(
    pointing, (types.float32, types.int32, types.int64, types.int8, types.uint8, types.uint16)
)
bool_at = uint8_at


@compiled
def rows_of(block: Any) -> int:
    rows = 1
    for axis in range(block[AT_RANK]):
        rows *= block[AT_DIMS + axis]
    return rows


@compiled
def located(block: Any, at: Any, operand: int, row: int) -> int:
    """Where a row of an operand begins; of one that is not there, of the last."""
    rank = block[AT_RANK]
    operand = min(operand, block[AT_OPERANDS] - 1)
    own = AT_DIMS + rank + operand * (STRIDES + rank)
    place = block[own + STARTS]
    for axis in range(rank - 1, -1, -1):
        size = block[AT_DIMS + axis]
        place += row % size * block[own + STRIDES + axis]
        row //= size
    return at[operand] + place * block[own + BYTES]  # type: ignore[no-any-return]


@compiled
def step_of(block: Any, operand: int) -> int:
    rank = block[AT_RANK]
    return block[AT_DIMS + rank + min(operand, block[AT_OPERANDS] - 1) * (STRIDES + rank) + STEP]  # type: ignore[no-any-return]


@inlined
def walk(block: Any, like: Any, at: Any, row: Any, function: Any) -> int:
    """Apply a row function everywhere; the first status that is not 0."""
    by = (step_of(block, 0), step_of(block, 1), step_of(block, 2), step_of(block, 3))
    reach = block[AT_DIMS + block[AT_RANK] + REACH]
    for k in range(rows_of(block)):
        places = (located(block, at, 0, k), located(block, at, 1, k), located(block, at, 2, k), located(block, at, 3, k))
        status = row(like, block[AT_ROW], places, by, reach, function)
        if status != 0:
            return status  # type: ignore[no-any-return]
    return 0


@inlined
def single(like: Any, count: int, at: Any, by: Any, _reach: int, function: Any) -> int:
    """A value from each element."""
    x, y = elements_at(at[0], like), elements_at(at[1], like)
    for i in range(count):
        y[i * by[1]] = function(x[i * by[0]])
    return 0


@inlined
def pair(like: Any, count: int, at: Any, by: Any, _reach: int, function: Any) -> int:
    """A value from each two elements."""
    a, b, y = elements_at(at[0], like), elements_at(at[1], like), elements_at(at[2], like)
    for i in range(count):
        y[i * by[2]] = function(a[i * by[0]], b[i * by[1]])
    return 0


@inlined
def probe(like: Any, count: int, at: Any, by: Any, _reach: int, function: Any) -> int:
    """Test a property of each element."""
    x, y = elements_at(at[0], like), bool_at(at[1])
    for i in range(count):
        y[i * by[1]] = function(x[i * by[0]])
    return 0


@inlined
def test(like: Any, count: int, at: Any, by: Any, _reach: int, function: Any) -> int:
    """Test a property of each two elements."""
    a, b, y = elements_at(at[0], like), elements_at(at[1], like), bool_at(at[2])
    for i in range(count):
        y[i * by[2]] = function(a[i * by[0]], b[i * by[1]])
    return 0


def over(row: Callable[..., int], function: Any = 0) -> Callable[..., int]:
    """Make the kernel that applies a row function everywhere; `function` is handed on to it."""

    def kernel(block: Any, like: Any, _count: int, at: Any) -> int:
        return walk(block, like, at, row, function)  # type: ignore[no-any-return]

    return kernel
