"""Chooses the kernel that runs a fully connected step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

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
from edgeplan.opencl.tiles import (
    FEW_ROWS,
    GROUP_TILES,
    ROW_GROUP,
    ROW_TILES,
    TILES,
    GroupTile,
    Tile,
    ceil,
    group_tile,
    weighted,
)
from edgeplan.runtime.layouts import BLOCKED, NCHW, same_bytes

_IMAGE_RANK = 4


def refusal(step: Step, shapes: Mapping[str, Shape], layouts: Mapping[str, str], numbers: DeviceNumbers) -> str:
    """Return why there are no kernels for a fully connected step, or ""."""
    source, target = shapes[step.inputs[0]], shapes[step.outputs[0]]
    if len(target) == _IMAGE_RANK:
        return "a fully connected step with an output of 4 axes"
    if layouts[step.inputs[0]] not in (BLOCKED, NCHW) and not same_bytes(source, layouts[step.inputs[0]], NCHW, numbers.block):
        return f"an input in the layout {layouts[step.inputs[0]]}"
    return post_ops.refusal(step, shapes, layouts, numbers.block)


def dispatch(
    step: Step,
    shapes: Mapping[str, Shape],
    layouts: Mapping[str, str],
    numbers: DeviceNumbers,
    leading: int = 0,
    tile: Tile | None = None,
) -> Dispatch:
    """Return the kernel of a fully connected step that `refusal` lets pass.

    Args:
        step: (rows, inner) to (rows, columns); an input of 4 axes is flattened to one row for each image.
        shapes: shape of every tensor.
        layouts: layout of every activation.
        numbers: numbers of the device.
        leading: columns of the tensor that the output is a range of; 0 for its own.
        tile: rows and vectors of columns of a work item; None for those that are fastest as measured.
    """
    source, columns = shapes[step.inputs[0]], shapes[step.outputs[0]][-1]
    flat = len(source) == _IMAGE_RANK
    channels, pixels, block = (source[1], math.prod(source[2:]), 1) if flat else (source[-1], 1, 1)
    if flat and layouts[step.inputs[0]] == BLOCKED:
        block = numbers.block
    rows, inner = source[0] if flat else math.prod(source[:-1]), ceil(channels, block) * block * pixels
    if tile is None and isinstance(numbers, GpuNumbers):
        product = (rows, inner, columns, leading or columns)
        flattened = {"transposed": step.integer("transposed"), "channels": channels, "pixels": pixels, "block": block}
        return _grouped(product, post_ops.arguments(step, shapes), numbers, flattened)
    tile = tile or (ROW_TILES if rows == 1 else TILES)[numbers.vector]
    height, width = tile[0], tile[1] * numbers.vector
    tiles = ceil(columns, width)
    items = ceil(rows, height)
    given = (rows, inner, columns, leading or columns, tiles, *post_ops.arguments(step, shapes))
    launch = weighted("linear", tile, (items, tiles), numbers, given)
    sizes = {"columns": width, "transposed": step.integer("transposed"), "channels": channels, "pixels": pixels, "block": block}
    work = UsefulWork(rows, columns, items * height, tiles * width, inner)
    packing = Packing("linear", tiles * width * (1 + inner), MappingProxyType(sizes))
    return Dispatch("linear", (launch,), (height, width), work, numbers.units, packing)


def _grouped(
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
    packing = Packing("linear", tiles * tile.columns * (1 + inner), MappingProxyType({"columns": tile.columns, **flattened}))
    return Dispatch(name.replace("_", "."), (launch,), (tile.rows, tile.columns), work, numbers.units, packing)
