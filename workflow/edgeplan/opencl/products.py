"""Chooses kernels for what transformers have beside linear layers: products of two activations, and normalised rows."""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.opencl.launch import ArenaOffset, Argument, DeviceNumbers, Dispatch, Launch, Memory, Packing, UsefulWork
from edgeplan.opencl.spaces import LackingError, Layouts, Shapes, Space, activation, by_row, dispatched, is_blocked
from edgeplan.opencl.tiles import FEW_ROWS, ceil, group_tile, grouped

#: Rows and vectors of columns of a work item.
_TILE = (4, 1)
#: Columns of the widest work group, and up to which narrower ones are taken.
_WIDE, _NARROW = 64, 32
_BATCH_AXES = 2


def matmul(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Launch products of matrices where they lie, by the strides of views (`runtime.lowering`)."""
    if step.weights or step.post_ops:
        raise LackingError("products with constants, or with more behind them")
    tensors = [activation(step, role, shapes, layouts) for role in ("input:0", "input:1", "output")]
    if any(is_blocked(one, numbers.block) for one in tensors):
        raise LackingError("products of images in blocks")
    views = [_view(step, key, one.shape) for key, one in zip(("read_0", "read_1", "written"), tensors, strict=True)]
    (rows, inner), (_, columns) = views[0][0][-2:], views[1][0][-2:]
    leading = views[2][0][:-2]
    if len(leading) > _BATCH_AXES:
        raise LackingError(f"products of matrices along {len(leading)} axes")
    first, second = (1,) * (_BATCH_AXES - len(leading)) + leading
    strides = [_strides(sizes, steps, leading) for sizes, steps in views]
    dots = strides[1][3] != 1
    if dots and (strides[0][3] != 1 or strides[1][2] != 1):
        raise LackingError("products of matrices whose values lie apart")
    arguments: tuple[Argument, ...] = (
        Memory.arena,
        *(ArenaOffset(role) for role in ("input:0", "input:1", "output")),
        *(second, rows, columns, inner),
        *(step_of for one in strides for step_of in one),
    )
    batch = first * second
    padded = columns if columns <= _NARROW else ceil(columns, _WIDE) * _WIDE  # wide tiles read less, even half filled
    if rows > FEW_ROWS and (tile := group_tile(rows * batch, padded, numbers)):
        local, down, across = tile.local(numbers.vector), ceil(rows, tile.rows), ceil(columns, tile.columns)
        macros, whole = tile.defines(numbers.block, numbers.vector), (across * local[0], down * local[1], batch)
        launch = Launch("matmul", "matmul_tiled", macros, whole, (*local, 1), arguments)
        work = UsefulWork(rows * batch, columns, down * tile.rows * batch, across * tile.columns, inner)
        return Dispatch("matmul.tiled", (launch,), (tile.rows, tile.columns), work, numbers.units)
    height, width = _TILE[0], 1 if dots else _TILE[1] * numbers.vector
    size, group = grouped((ceil(columns, width), ceil(rows, height)), numbers)
    defines = (("B", numbers.block), ("V", numbers.vector), ("R", height), ("N", _TILE[1]))
    kernel = "matmul_dots" if dots else "matmul"
    launch = Launch("matmul", kernel, defines, (*size[:2], batch), (*group[:2], 1), arguments)
    padded = ceil(rows, height) * height * batch
    work = UsefulWork(rows * batch, columns, padded, ceil(columns, width) * width, inner)
    return Dispatch(f"matmul.{'dots' if dots else 'columns'}", (launch,), (height, width), work, numbers.units)


def _view(step: Step, key: str, shape: Shape) -> tuple[Shape, Shape]:
    """Return the sizes and strides of an operand."""
    if key not in step.settings:
        return shape, tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    axes = step.sizes(key)
    return axes[: len(axes) // 2], axes[len(axes) // 2 :]


def _strides(sizes: Shape, steps: Shape, leading: Shape) -> tuple[int, int, int, int]:
    """Return the strides of two batch axes, 0 along those that are repeated, and of rows and columns."""
    batch = [0 if size == 1 else step for size, step in zip(sizes[:-2], steps[:-2], strict=True)]
    batch = [0] * (len(leading) - len(batch)) + batch
    outer, inner = [0] * (_BATCH_AXES - len(batch)) + batch
    return outer, inner, steps[-2], steps[-1]


def layer_norm(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Launch kernels of rows along the last axis of a row-major tensor."""
    source, target = (activation(step, role, shapes, layouts) for role in ("input:0", "output"))
    if is_blocked(source, numbers.block) or is_blocked(target, numbers.block) or step.post_ops:
        raise LackingError("normalised rows of images in blocks, or with more behind them")
    size = source.shape[-1]
    rows = math.prod(source.shape[:-1])
    scales, shifts = "scale" in step.weights, "shift" in step.weights
    space = Space(1, 1, rows, numbers.block, padded=False)
    arguments: list[Argument] = [
        *(Memory.arena, Memory.weights, ArenaOffset("input:0"), ArenaOffset("output"), rows, size),
        *(step.number("epsilon"), int(scales), int(shifts), size if scales else 0),
    ]
    launch = by_row("layer_norm", space, rows, numbers, arguments)
    found = dispatched("layer_norm.rows", space, [launch], numbers, size / numbers.block)
    if not scales and not shifts:
        return found
    sizes = MappingProxyType({"size": size})
    return replace(found, packing=Packing("in_a_row", size * (scales + shifts), sizes))
