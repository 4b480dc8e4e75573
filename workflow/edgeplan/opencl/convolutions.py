"""Which kernels run a convolution. Thresholds were measured with PoCL on one core (AVX2, vectors of 8)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.opencl import post_ops
from edgeplan.opencl.launch import DeviceNumbers, Dispatch, Launch, Memory, Packing, Place, Work
from edgeplan.runtime.layouts import BLOCKED, NCHW, same_bytes

#: Vector -> pixels and vectors of channels of a work item's tile: as many sums as registers hold beside the factors.
TILES: Mapping[int, tuple[int, int]] = MappingProxyType({4: (3, 4), 8: (6, 2), 16: (12, 2)})
#: Work items of a group along pixels.
GROUP_PIXELS = 1
_IMAGE_RANK = 4


@dataclass(frozen=True, slots=True)
class Convolution:
    """The numbers of a convolution step of one image."""

    channels_in: int
    channels_out: int
    groups: int
    size_in: tuple[int, int]
    size_out: tuple[int, int]
    kernel: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    pads: tuple[int, int]

    @property
    def pixels(self) -> int:
        """Of the output."""
        return math.prod(self.size_out)

    @property
    def multiplications(self) -> int:
        """Of one element of the output."""
        return self.channels_in // self.groups * math.prod(self.kernel)


def refusal(step: Step, shapes: Mapping[str, Shape], layouts: Mapping[str, str], numbers: DeviceNumbers) -> str:
    """Why there are no kernels for a convolution, or ""."""
    source, target = shapes[step.inputs[0]], shapes[step.outputs[0]]
    if len(source) != _IMAGE_RANK:
        return f"a convolution of {len(source) - 2} axes"
    if source[0] != 1:
        return f"a batch of {source[0]}"
    if not same_bytes(target, layouts[step.outputs[0]], BLOCKED, numbers.block):
        return f"an output in the layout {layouts[step.outputs[0]]}"
    if layouts[step.inputs[0]] not in (BLOCKED, NCHW):
        return f"an input in the layout {layouts[step.inputs[0]]}"
    c = convolution(step, shapes)
    tile = math.prod(TILES[numbers.vector][1:]) * numbers.vector
    if c.groups > 1 and (c.channels_in // c.groups % numbers.block or c.channels_out // c.groups % tile):
        return f"{c.groups} groups of {c.channels_in // c.groups} channels"
    return post_ops.refusal(step, shapes, layouts, numbers.block)


def convolution(step: Step, shapes: Mapping[str, Shape]) -> Convolution:
    """The numbers of a step."""
    source, target = shapes[step.inputs[0]], shapes[step.outputs[0]]

    def pair(key: str) -> tuple[int, int]:
        y, x = step.sizes(key)
        return y, x

    return Convolution(
        source[1],
        target[1],
        step.integer("groups"),
        (source[2], source[3]),
        (target[2], target[3]),
        pair("kernel"),
        pair("strides"),
        pair("dilations"),
        pair("pads_before"),
    )


def dispatch(step: Step, shapes: Mapping[str, Shape], layouts: Mapping[str, str], numbers: DeviceNumbers) -> Dispatch:
    """The kernels of a convolution that `refusal` lets pass."""
    del layouts
    return _direct(step, shapes, convolution(step, shapes), numbers)


def _direct(step: Step, shapes: Mapping[str, Shape], c: Convolution, numbers: DeviceNumbers) -> Dispatch:
    rows, vectors = TILES[numbers.vector]
    columns, block = vectors * numbers.vector, numbers.block
    tiles, in_blocks = -(-c.channels_out // columns), -(-(c.channels_in // c.groups) // block)
    items = _rounded(-(-c.pixels // rows), GROUP_PIXELS)
    launch = Launch(
        "conv_direct",
        "conv_direct",
        (("B", block), ("V", numbers.vector), ("R", rows), ("N", vectors)),
        (items, tiles),
        (GROUP_PIXELS, 1),
        (
            Memory.arena,
            Memory.weights,
            Place("input:0"),
            Place("output"),
            *c.size_in,
            in_blocks,
            c.size_out[1],
            c.pixels,
            c.channels_out,
            tiles,
            max(1, tiles // c.groups),
            *c.kernel,
            *c.strides,
            *c.dilations,
            *c.pads,
            *post_ops.arguments(step, shapes),
        ),
    )
    elements = block + tiles * columns * (1 + math.prod(c.kernel) * in_blocks * block)
    return Dispatch(
        "conv.direct",
        (launch,),
        (rows, columns),
        Work(c.pixels, c.channels_out, items * rows, tiles * columns, math.prod(c.kernel) * in_blocks * block),
        numbers.units,
        Packing("conv_direct", elements, MappingProxyType({"block": block, "columns": columns})),
    )


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit
