"""Which kernels run a convolution. Thresholds were measured with PoCL on one core (AVX2, vectors of 8)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from edgeplan.graph.ir import BYTES_PER_ELEMENT, Shape
from edgeplan.graph.steps import Step
from edgeplan.opencl import post_ops
from edgeplan.opencl.launch import DeviceNumbers, Dispatch, Launch, Memory, Packing, Place, Work
from edgeplan.runtime.layouts import BLOCKED, NCHW, same_bytes

#: Vector -> pixels and vectors of channels of a work item's tile: as many sums as registers hold beside the factors.
TILES: Mapping[int, tuple[int, int]] = MappingProxyType({4: (3, 4), 8: (6, 2), 16: (12, 2)})
#: Of the input, which all channels of the output are computed from before the next is read.
CHUNK_BYTES = int(__import__("os").environ.get("CHUNK",1 << 15))
#: Work items of a group along pixels.
GROUP_PIXELS = int(__import__("os").environ.get("GP",1))
#: Pixels along a side of what F(4 x 4, 3 x 3) computes at once.
WINOGRAD_TILE = 4
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
    c = convolution(step, shapes)
    if _is_winograd(c):
        return _winograd(step, shapes, c, numbers)
    return _direct(step, shapes, c, numbers)


def _is_winograd(c: Convolution) -> bool:
    plain = c.kernel == (3, 3) and c.strides == c.dilations == (1, 1) and c.groups == 1
    return plain and __import__("os").environ.get("WINO","1")=="1"


def _winograd(step: Step, shapes: Mapping[str, Shape], c: Convolution, numbers: DeviceNumbers) -> Dispatch:
    rows, vectors = TILES[numbers.vector]
    rows = int(__import__("os").environ.get("WR",rows))
    columns, block = vectors * numbers.vector, numbers.block
    tiles, in_blocks = -(-c.channels_out // columns), -(-c.channels_in // block)
    down, across = (-(-size // WINOGRAD_TILE) for size in c.size_out)
    places, groups = down * across, -(-down * across // rows)
    elements = (WINOGRAD_TILE + 2) ** 2
    products = elements * groups * rows * in_blocks * block
    shared = ("conv_winograd", (("B", block), ("V", numbers.vector), ("R", rows), ("N", vectors)))
    source, defines = shared
    one = (1, 1)
    launches = (
        Launch(
            source,
            "winograd_input",
            defines,
            (groups * rows, in_blocks * block // numbers.vector),
            one,
            (Memory.arena, Memory.workspace, Place("input:0"), *c.size_in, in_blocks, across, places, groups, *c.pads),
        ),
        Launch(
            source,
            "winograd_product",
            defines,
            (groups, tiles, elements),
            (*one, 1),
            (Memory.weights, Memory.workspace, in_blocks, tiles, groups, products),
        ),
        Launch(
            source,
            "winograd_output",
            defines,
            (places, -(-c.channels_out // block) * block // numbers.vector),
            one,
            (
                Memory.arena,
                Memory.weights,
                Memory.workspace,
                Place("output"),
                *c.size_out,
                c.channels_out,
                across,
                places,
                tiles,
                groups,
                products,
                *post_ops.arguments(step, shapes),
            ),
        ),
    )
    return Dispatch(
        "conv.winograd",
        launches,
        (rows, columns),
        Work(
            c.pixels,
            c.channels_out,
            groups * rows * WINOGRAD_TILE**2,
            tiles * columns,
            elements / WINOGRAD_TILE**2 * in_blocks * block,
        ),
        numbers.units,
        Packing(
            "conv_winograd",
            tiles * columns * (1 + elements * in_blocks * block),
            MappingProxyType({"block": block, "columns": columns}),
        ),
        products + elements * groups * rows * tiles * columns,
    )


def _direct(step: Step, shapes: Mapping[str, Shape], c: Convolution, numbers: DeviceNumbers) -> Dispatch:
    rows, vectors = TILES[numbers.vector]
    columns, block = vectors * numbers.vector, numbers.block
    tiles, in_blocks = -(-c.channels_out // columns), -(-(c.channels_in // c.groups) // block)
    read = rows * math.prod(c.strides) * in_blocks * block * BYTES_PER_ELEMENT["float32"]
    items, chunks = _chunks(-(-c.pixels // rows), read)
    launch = Launch(
        "conv_direct",
        "conv_direct",
        (("B", block), ("V", numbers.vector), ("R", rows), ("N", vectors)),
        (items, tiles, chunks),
        (GROUP_PIXELS, 1, 1),
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
        Work(c.pixels, c.channels_out, items * chunks * rows, tiles * columns, math.prod(c.kernel) * in_blocks * block),
        numbers.units,
        Packing("conv_direct", elements, MappingProxyType({"block": block, "columns": columns})),
    )


def _chunks(items: int, read: int) -> tuple[int, int]:
    """Work items along pixels as so many in each of so many chunks; what a chunk reads stays in the cache for all channels.

    Args:
        items: along pixels.
        read: bytes of the input that one reads.
    """
    chunks = -(-items * read // CHUNK_BYTES)
    return _rounded(-(-items // chunks), GROUP_PIXELS), chunks


def _rounded(count: int, unit: int) -> int:
    return -(-count // unit) * unit
