"""Chooses kernels for products, fully connected steps and those of two activations, and for normalised rows."""

from __future__ import annotations

import math

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.opencl import post_ops
from edgeplan.opencl.launch import (
    ArenaOffset,
    Argument,
    DeviceNumbers,
    Dispatch,
    GpuNumbers,
    Launch,
    Memory,
    Packing,
    UsefulWork,
)
from edgeplan.opencl.spaces import (
    FEW_ROWS,
    GROUP_TILES,
    ROW_GROUP,
    ROW_TILES,
    TILES,
    GroupTile,
    LackingError,
    LaunchChain,
    Layouts,
    Shapes,
    Space,
    Tile,
    by_row,
    ceil,
    defines,
    group_tile,
    grouped,
    is_blocked,
    weighted,
)
from edgeplan.runtime.layouts import BLOCKED, NCHW, same_bytes
from edgeplan.runtime.partitioned.sections import view_of

_IMAGE_RANK = 4
#: Rows and vectors of columns of a work item.
_TILE = (4, 1)
#: Columns of the widest work group, and up to which narrower ones are taken.
_WIDE, _NARROW = 64, 32
_BATCH_AXES = 2


def fc(
    step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers, leading: int = 0, tile: Tile | None = None
) -> Dispatch:
    """Return the kernel of a fully connected step: (rows, inner) to (rows, columns).

    An input of 4 axes is flattened to one row for each image. The tile is rows and vectors of columns of a work item; None for
    those that are fastest as measured. `leading`: see `dispatch`.
    """
    source, target, layout = shapes[step.inputs[0]], shapes[step.outputs[0]], layouts[step.inputs[0]]
    if len(target) == _IMAGE_RANK:
        raise LackingError("a fully connected step with an output of 4 axes")
    if layout not in (BLOCKED, NCHW) and not same_bytes(source, layout, NCHW, numbers.block):
        raise LackingError(f"an input in the layout {layout}")
    posts, columns = post_ops.arguments(step, shapes, layouts, numbers.block), target[-1]
    flat = len(source) == _IMAGE_RANK
    channels, pixels, block = (source[1], math.prod(source[2:]), 1) if flat else (source[-1], 1, 1)
    if flat and layout == BLOCKED:
        block = numbers.block
    rows, inner = source[0] if flat else math.prod(source[:-1]), ceil(channels, block) * block * pixels
    product = (rows, inner, columns, leading or columns)
    flattened = {"transposed": step.integer("transposed"), "channels": channels, "pixels": pixels, "block": block}
    if tile is None and isinstance(numbers, GpuNumbers):
        return _fc_grouped(product, posts, numbers, flattened)
    tile = tile or (ROW_TILES if rows == 1 else TILES)[numbers.vector]
    height, width = tile[0], tile[1] * numbers.vector
    tiles = ceil(columns, width)
    items = ceil(rows, height)
    launch = weighted("linear", tile, (items, tiles), numbers, (*product, tiles, *posts))
    work = UsefulWork(rows, columns, items * height, tiles * width, inner)
    packing = Packing.of("linear", tiles * width * (1 + inner), columns=width, **flattened)
    return Dispatch("linear", (launch,), (height, width), work, numbers.units, packing)


def _fc_grouped(
    given: tuple[int, int, int, int], posts: tuple[Argument, ...], numbers: DeviceNumbers, flattened: dict[str, int]
) -> Dispatch:
    """Return the kernel of work groups: of tiles in local memory, or of slices of what is summed over where rows are few."""
    rows, inner, columns, _ = given
    few = GroupTile(1, ROW_GROUP[0], 1)
    tile = few if rows <= FEW_ROWS else group_tile(rows, columns, numbers) or few
    name = "linear_row" if tile is few else "linear_tiled"
    local = (tile.columns // numbers.vector, ROW_GROUP[1]) if tile is few else tile.local(numbers.vector)
    tiles, down = ceil(columns, tile.columns), ceil(rows, tile.rows)
    macros = tile.defines(numbers.block, numbers.vector)
    if tile is few:  # the tiled kernel of the same file is not run, but compiled
        macros = GROUP_TILES[few.columns][-1].defines(numbers.block, numbers.vector)
    places = (Memory.arena, Memory.weights, ArenaOffset("input:0"), ArenaOffset("output"))
    size = (tiles * local[0], down * local[1])
    launch = Launch("linear_tiled", name, macros, size, local, (*places, *given, tiles, *posts))
    work = UsefulWork(rows, columns, down * tile.rows, tiles * tile.columns, inner)
    packing = Packing.of("linear", tiles * tile.columns * (1 + inner), columns=tile.columns, **flattened)
    return Dispatch(name.replace("_", "."), (launch,), (tile.rows, tile.columns), work, numbers.units, packing)


def matmul(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Launch products of matrices where they lie, by the strides of views (`runtime.lowering`)."""
    if step.weights or step.post_ops:
        raise LackingError("products with constants, or with more behind them")
    chain, roles = LaunchChain(step, shapes, layouts, numbers), ("input:0", "input:1", "output")
    tensors = [chain.tensor(role) for role in roles]
    if any(is_blocked(one, numbers.block) for one in tensors):
        raise LackingError("products of images in blocks")
    views = [view_of(step, key, one.shape) for key, one in zip(("read_0", "read_1", "written"), tensors, strict=True)]
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
        *map(ArenaOffset, roles),
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
    kernel, macros = "matmul_dots" if dots else "matmul", defines(numbers.block, numbers.vector, _TILE)
    launch = Launch("matmul", kernel, macros, (*size[:2], batch), (*group[:2], 1), arguments)
    padded = ceil(rows, height) * height * batch
    work = UsefulWork(rows * batch, columns, padded, ceil(columns, width) * width, inner)
    return Dispatch(f"matmul.{'dots' if dots else 'columns'}", (launch,), (height, width), work, numbers.units)


def _strides(sizes: Shape, steps: Shape, leading: Shape) -> tuple[int, int, int, int]:
    """Return the strides of two batch axes, 0 along those that are repeated, and of rows and columns."""
    batch = [0 if size == 1 else step for size, step in zip(sizes[:-2], steps[:-2], strict=True)]
    batch = [0] * (len(leading) - len(batch)) + batch
    outer, inner = [0] * (_BATCH_AXES - len(batch)) + batch
    return outer, inner, steps[-2], steps[-1]


def layer_norm(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Launch kernels of rows along the last axis of a row-major tensor."""
    chain = LaunchChain(step, shapes, layouts, numbers)
    source, target = chain.ends()
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
    chain.launches.append(by_row("layer_norm", space, rows, numbers, arguments))
    if scales or shifts:
        chain.packing = Packing.of("in_a_row", size * (scales + shifts), size=size)
    return chain.done("layer_norm.rows", space.work(chain.launches[0], numbers.block, size / numbers.block))
