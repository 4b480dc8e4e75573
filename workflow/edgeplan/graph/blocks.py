"""Blocks of numbers: all that a compiled kernel knows of the tensors that it works on (`native/src/kernels/kernels.h`).

A kernel goes over a loop of axes and, for each place there, along one row. A block holds, in order: the number
of axes, the number of operands (what is written comes last), the length of the row, the sizes of the axes; then
for each operand the bytes of an element, where it starts, how far behind its places it is read besides, and its
strides: along the row, along each axis. All but the bytes count elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from edgeplan.graph.shapes import BYTES_PER_ELEMENT, FLOAT32, Shape

AT_RANK, AT_OPERANDS, AT_ROW, AT_DIMS = range(4)
BYTES, STARTS, REACH, STEP, STRIDES = range(5)


class Walked(NamedTuple):
    """How a kernel goes over one operand: elements along axes and the row, of the first place, and read behind its places."""

    dtype: str
    strides: tuple[int, ...]
    step: int
    start: int = 0
    reach: int = 0


def block(axes: Shape, row: int, operands: Sequence[Walked]) -> tuple[int, ...]:
    """Return a block from a loop, the length of a row and the operands."""
    found = [len(axes), len(operands), row, *axes]
    for one in operands:
        found += [BYTES_PER_ELEMENT[one.dtype], one.start, one.reach, one.step, *one.strides]
    return tuple(found)


def dense(shape: Shape) -> tuple[int, ...]:
    """Return strides of a row-major tensor."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def broadcast(shape: Shape, out: Shape) -> tuple[int, ...]:
    """Return strides of a row-major tensor as numpy broadcasts it to another shape."""
    own = [0 if size == 1 else stride for size, stride in zip(shape, dense(shape), strict=True)]
    return (*[0] * (len(out) - len(shape)), *own)


def element_wise(out: Shape, operands: Sequence[tuple[Shape, str]], written: str) -> tuple[int, ...]:
    """Return a block for operands, each with a shape and a type, that are broadcast to a shape and written row-major."""
    strides = [broadcast(shape, out) for shape, _ in operands] + [dense(out)]
    return strided(out, strides, [*(dtype for _, dtype in operands), written])


def strided(
    out: Shape,
    strides: Sequence[tuple[int, ...]],
    dtypes: Sequence[str],
    starts: Sequence[int] = (),
    reaches: Sequence[int] = (),
) -> tuple[int, ...]:
    """Return a block over a shape, with the strides of every operand; axes that all operands go through as one are joined."""
    sizes: list[int] = []
    ways: list[list[int]] = []
    for axis, size in enumerate(out):
        if size == 1:
            continue
        mine = [one[axis] for one in strides]
        if ways and all(before == size * now for before, now in zip(ways[-1], mine, strict=True)):
            sizes[-1] *= size
            ways[-1] = mine
        else:
            sizes.append(size)
            ways.append(mine)
    row, steps = (sizes.pop(), ways.pop()) if sizes else (1, [0] * len(strides))
    begins, behind = starts or [0] * len(strides), reaches or [0] * len(strides)
    operands = [Walked(dtype, tuple(way[k] for way in ways), steps[k], begins[k], behind[k]) for k, dtype in enumerate(dtypes)]
    return block(tuple(sizes), row, operands)


def along(shape: Shape, axis: int, dtypes: tuple[str, str], *, kept: bool, backwards: bool = False) -> tuple[int, ...]:
    """Return a block whose rows go along one axis of a row-major tensor, for a kernel that reads it and writes another.

    As many places are `kept` (written), or one for a row; `backwards` goes from the last place to the first.
    """
    size, after = shape[axis], math.prod(shape[axis + 1 :])
    axes, count = (math.prod(shape[:axis]), after), size if kept else 1
    start, sign = ((size - 1) * after, -1) if backwards else (0, 1)
    written = Walked(dtypes[1], (count * after, 1), sign * after if kept else 0, start if kept else 0)
    return block(axes, size, [Walked(dtypes[0], (size * after, 1), sign * after, start), written])


def gathered(shape: Shape, axis: int, count: int, dtype: str, indices: str) -> tuple[int, ...]:
    """Return a block that picks slices of a row-major tensor by indices, of which there are `count`."""
    size, after = shape[axis], math.prod(shape[axis + 1 :])
    read = Walked(dtype, (size * after, 0), 1, reach=(size - 1) * after)
    written = Walked(dtype, (count * after, after), 1)
    return block((math.prod(shape[:axis]), count), after, [read, Walked(indices, (0, 1), 0), written])


def gathered_slices(shape: Shape, batch: int, indices: Shape, dtypes: tuple[str, str]) -> tuple[int, ...]:
    """Return a block that copies slices of a row-major tensor that the last axis of indices names, behind common axes."""
    depth, strides = indices[-1], dense(shape)
    loop, count = indices[:-1], math.prod(shape[batch + depth :])
    reach = sum((size - 1) * stride for size, stride in zip(shape[batch:][:depth], strides[batch:], strict=False))
    read = Walked(dtypes[0], (*strides[:batch], *[0] * (len(loop) - batch)), 1, reach=reach)
    named = Walked(dtypes[1], tuple(stride * depth for stride in dense(loop)), 0, reach=depth - 1)
    return block(
        loop, count, [read, named, _table(depth, loop), Walked(dtypes[0], tuple(stride * count for stride in dense(loop)), 1)]
    )


def gathered_elements(shape: Shape, axis: int, indices: Shape, dtypes: tuple[str, str]) -> tuple[int, ...]:
    """Return a block that copies an element of a row-major tensor for each index, which names its place along one axis."""
    strides, own = dense(shape), dense(indices)
    *loop, step = (0 if place == axis else stride for place, stride in enumerate(strides))
    read = Walked(dtypes[0], tuple(loop), step, reach=(shape[axis] - 1) * strides[axis])
    walked = [Walked(dtype, own[:-1], own[-1]) for dtype in (dtypes[1], dtypes[0])]
    return block(indices[:-1], indices[-1], [read, walked[0], _table(1, indices[:-1]), walked[1]])


def scattered_slices(shape: Shape, indices: Shape, dtypes: tuple[str, str]) -> tuple[int, ...]:
    """Return a block that writes a slice of a row-major tensor, a copy, for each row of indices, which name it axis by axis."""
    depth, loop = indices[-1], indices[:-1]
    count, strides = math.prod(shape[depth:]), dense(shape)
    reach = sum((size - 1) * stride for size, stride in zip(shape[:depth], strides, strict=False))
    named = Walked(dtypes[1], tuple(stride * depth for stride in dense(loop)), 0, reach=depth - 1)
    given = Walked(dtypes[0], tuple(stride * count for stride in dense(loop)), 1)
    written = Walked(dtypes[0], (0,) * len(loop), 1, reach=reach)
    return block(loop, count, [_whole(shape, dtypes[0], loop), named, given, _table(depth, loop), written])


def scattered_elements(shape: Shape, axis: int, indices: Shape, dtypes: tuple[str, str]) -> tuple[int, ...]:
    """Return a block that writes an element of a row-major tensor for each index, which names its place along one axis."""
    strides, own, rows = dense(shape), dense(indices), indices[:-1]
    *loop, step = (0 if place == axis else stride for place, stride in enumerate(strides))
    named, given = (Walked(dtype, own[:-1], own[-1]) for dtype in (dtypes[1], dtypes[0]))
    written = Walked(dtypes[0], tuple(loop), step, reach=(shape[axis] - 1) * strides[axis])
    return block(rows, indices[-1], [_whole(shape, dtypes[0], rows), named, given, _table(1, rows), written])


def _whole(shape: Shape, dtype: str, loop: Shape) -> Walked:
    return Walked(dtype, (0,) * len(loop), 0, reach=math.prod(shape) - 1)


def _table(depth: int, loop: Shape) -> Walked:
    return Walked("int64", (0,) * len(loop), 0, reach=2 * depth)


def picked(before: int, size: int, after: int, dtype: str, out: int) -> tuple[int, ...]:
    """Return a block that fills `out` places of an axis from those that a table names, or from a value where it names none."""
    read, written = _slices(size, after, dtype, out)
    return block((before, out), after, [read, Walked("int64", (0, 1), 0), Walked(dtype, (0, 0), 0), written])


def mixed(before: int, size: int, after: int, out: int, taps: int) -> tuple[int, ...]:
    """Return a block that mixes each of `out` places of an axis of as many others as there are taps, by two tables."""
    read, written = _slices(size, after, FLOAT32, out)
    tables = [Walked(dtype, (0, taps), 0, reach=taps - 1) for dtype in ("int64", FLOAT32)]
    return block((before, out), after, [read, *tables, written])


def _slices(size: int, after: int, dtype: str, out: int) -> tuple[Walked, Walked]:
    read = Walked(dtype, (size * after, 0), 1, reach=(size - 1) * after)
    return read, Walked(dtype, (out * after, after), 1)


def runs(shapes: Sequence[Shape], axis: int, dtype: str) -> tuple[int, ...]:
    """Return a block over row-major tensors that hold, or are held by, the last of them along an axis: runs of each."""
    lengths = [math.prod(shape[axis:]) for shape in shapes]
    return block((math.prod(shapes[-1][:axis]),), 1, [Walked(dtype, (size,), 0, reach=size - 1) for size in lengths])


def looked_up(count: int, dtype: str, out: str) -> tuple[int, ...]:
    """Return a block over bytes, each of which a table of all bytes has another one for."""
    return block((), count, [Walked(dtype, (), 1), Walked(out, (), 0, reach=255), Walked(out, (), 1)])


def paired(out: Shape, shapes: Sequence[Shape], numbers: int) -> tuple[int, ...]:
    """Return a block over two operands of bytes, which are broadcast to a shape, and a list of so many numbers."""
    strides = [*(broadcast(shape, out) for shape in shapes), (0,) * len(out), dense(out)]
    return strided(out, strides, (*["int8"] * 2, FLOAT32, "int8"), reaches=(0, 0, numbers - 1, 0))


def byte_runs(shapes: Sequence[Shape], axis: int, numbers: int) -> tuple[int, ...]:
    """Return a block over tensors of bytes that the last one holds along an axis, with so many numbers before that one."""
    lengths = [math.prod(shape[axis:]) for shape in shapes]
    *read, written = (Walked("int8", (size,), 0, reach=size - 1) for size in lengths)
    return block((math.prod(shapes[-1][:axis]),), 1, [*read, Walked(FLOAT32, (0,), 0, reach=numbers - 1), written])


def averaged(before: int, size: int, after: int, numbers: int) -> tuple[int, ...]:
    """Return a block over places of bytes along an axis: what is read, so many numbers, sums, and what is written."""
    read, written = Walked("int8", (size * after,), 1, reach=(size - 1) * after), Walked("int8", (after,), 1)
    return block((before,), after, [read, Walked(FLOAT32, (0,), 0, reach=numbers - 1), Walked("int32", (0,), 1), written])


def selected(shape: Shape, axis: int, count: int, dtype: str) -> tuple[int, ...]:
    """Return a block of a kernel that writes so many places along an axis, and where they were."""
    size, after = shape[axis], math.prod(shape[axis + 1 :])
    read = Walked(dtype, (size * after, 1), after, reach=(size - count) * after)
    written = [Walked(kind, (count * after, 1), after) for kind in (dtype, "int64")]
    return block((math.prod(shape[:axis]), after), count, [read, *written])


def triangle(shape: Shape, dtype: str) -> tuple[int, ...]:
    """Return a block over the rows of matrices, with a number for each row."""
    *batch, rows, columns = shape
    whole = Walked(dtype, (rows * columns, columns), 1)
    return block((math.prod(batch), rows), columns, [whole, Walked("int64", (0, 1), 0), whole])


def block_length(given: Sequence[int]) -> int:
    """Return the length of the block at the head of some numbers; 0 without one."""
    if len(given) < AT_DIMS:
        return 0
    rank, operands = given[AT_RANK], given[AT_OPERANDS]
    return AT_DIMS + rank + operands * (STRIDES + rank) if rank >= 0 and operands >= 1 else 0


def span_bytes(given: Sequence[int], operand: int) -> int:
    """Return the bytes that a kernel may touch of an operand, from its address on."""
    if not len(given) == block_length(given) > 0:
        raise ValueError("a block of another length")
    rank = given[AT_RANK]
    sizes = (*given[AT_DIMS : AT_DIMS + rank], given[AT_ROW])
    own = given[AT_DIMS + rank + operand * (STRIDES + rank) :][: STRIDES + rank]
    moves = [(size - 1) * stride for size, stride in zip(sizes, (*own[STRIDES:], own[STEP]), strict=True)]
    lowest = own[STARTS] + sum(min(0, move) for move in moves)
    if min(sizes, default=1) < 1 or own[BYTES] not in BYTES_PER_ELEMENT.values() or own[REACH] < 0 or lowest < 0:
        raise ValueError("a block that reads elsewhere")
    return int(own[BYTES] * (1 + own[STARTS] + own[REACH] + sum(max(0, move) for move in moves)))
