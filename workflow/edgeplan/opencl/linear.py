"""Chooses the kernel that runs a fully connected step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.opencl import post_ops
from edgeplan.opencl.launch import DeviceNumbers, Dispatch, Packing, UsefulWork
from edgeplan.opencl.tiles import ROW_TILES, TILES, Tile, ceil, weighted
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
