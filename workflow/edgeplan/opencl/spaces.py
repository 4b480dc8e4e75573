"""Describes tensors as kernels walk through them, whatever their layout: blocks of lanes, rows and pixels, with strides.

Lanes are channels where a tensor is an image in blocks, else the places along the last axis. One kernel thus reads and writes
every layout, also two at once, and operands that are broadcast (a stride of 0). Sizes of tiles were measured with PoCL on one
core with AVX2 and vectors of 8.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
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
from edgeplan.runtime.layouts import BLOCKED, NCHW, same_bytes, size_bytes

Tile = tuple[int, int]
_ONE: Tile = (1, 1)
#: Work items of a group along the axis that has the most of them.
LANE_GROUP = 32
#: Of a group that computes a row (`sources/grouped_rows.cl`).
ROW_ITEMS = 64
_RANK = 4
_FLOAT_BYTES = 4
_ALIGNED = 16  # elements of a cache line
Shapes = Mapping[str, Shape]
Layouts = Mapping[str, str]
#: Of a block of lanes, a row, a pixel and a lane, in elements.
Strides = tuple[int, int, int, int]
#: Vector -> rows (or pixels) and vectors of columns (or channels) of a work item: as many sums as registers hold beside the
#: factors, so 12 of 16 with AVX2. Also of a linear step.
TILES: Final[Mapping[int, Tile]] = MappingProxyType({4: (6, 2), 8: (6, 2), 16: (12, 2)})
#: Of a pointwise convolution whose channels fill these better.
WIDE_TILES: Final[Mapping[int, Tile]] = MappingProxyType({4: (3, 3), 8: (4, 3), 16: (8, 3)})
#: Of the products of a Winograd convolution, whose rows are few.
WINOGRAD_TILES: Final[Mapping[int, Tile]] = MappingProxyType({4: (4, 2), 8: (4, 2), 16: (8, 2)})
#: Of a product of one row: enough sums that none waits for the one before it.
ROW_TILES: Final[Mapping[int, Tile]] = MappingProxyType({4: (1, 8), 8: (1, 4), 16: (1, 4)})
#: What autotuning tries: of about as many sums.
TRIED: Final[Mapping[int, tuple[Tile, ...]]] = MappingProxyType(
    {4: ((6, 2), (4, 2), (8, 2)), 8: ((6, 2), (4, 2), (8, 1)), 16: ((12, 2), (8, 2), (16, 1))}
)
#: Pixels of a row of a depthwise convolution: a divisor of the rows of most networks.
DEPTHWISE_ROWS: Final = 7
#: Of the input, from which all channels of the output are computed before the next such chunk is read.
CHUNK_BYTES: Final = 1 << 16
#: Vectors from this width on are those of CPUs: a work item does all of a chunk, since to begin costs as much as 50 products,
#: and is a group of its own.
CPU_VECTOR: Final = 8
#: Work items of a group along the first two dimensions, where there are groups at all: as many as a wave of most GPUs has.
GROUP: Final = (8, 8)


@dataclass(frozen=True, slots=True)
class GroupTile:
    """What a group of a GPU computes from local memory: pixels and channels; a work item has `each` rows and one vector."""

    rows: int
    columns: int
    each: int

    def defines(self, block: int, vector: int) -> tuple[tuple[str, int], ...]:
        """Return the macros of a variant of a kernel."""
        return ("B", block), ("V", vector), ("R", self.each), ("N", 1), ("GP", self.rows), ("GC", self.columns)

    def local(self, vector: int) -> tuple[int, int]:
        """Return the work items of a group."""
        return self.columns // vector, self.rows // self.each


#: Columns of a group -> its tiles, the largest first: 128 or 256 work items. Measured on an H200 and slices of it.
GROUP_TILES: Final[Mapping[int, tuple[GroupTile, ...]]] = MappingProxyType(
    {
        64: (GroupTile(128, 64, 8), GroupTile(64, 64, 4)),
        32: (GroupTile(128, 32, 4), GroupTile(64, 32, 4)),
        16: (GroupTile(128, 16, 4),),
    }
)
#: Groups for each compute unit from which on larger tiles are faster than more of them.
GROUPS_OF_UNIT: Final = 2
#: Rows of a product up to which each is computed for itself, and slices of what is summed over.
FEW_ROWS: Final = 8
ROW_GROUP: Final = (64, 16)


def group_tile(rows: int, columns: int, numbers: DeviceNumbers) -> GroupTile | None:
    """Return the tile of the work groups for a product; None where a device has no such groups."""
    if not isinstance(numbers, GpuNumbers) or numbers.vector >= CPU_VECTOR:
        return None
    width = min(GROUP_TILES, key=lambda each: (ceil(columns, each) * each, -each))
    groups = {tile: ceil(rows, tile.rows) * ceil(columns, width) for tile in GROUP_TILES[width]}
    return next((tile for tile, count in groups.items() if count >= GROUPS_OF_UNIT * numbers.units), GROUP_TILES[width][-1])


def pointwise_tile(channels: int, vector: int) -> Tile:
    """Return the tile of a pointwise convolution: whichever pads the channels of a group less."""
    return min(TILES[vector], WIDE_TILES[vector], key=lambda tile: ceil(channels, tile[1] * vector) * tile[1])


def defines(block: int, vector: int, tile: Tile) -> tuple[tuple[str, int], ...]:
    """Return the macros of a variant of a kernel."""
    rows, vectors = tile
    return ("B", block), ("V", vector), ("R", rows), ("N", vectors)


def grouped(size: tuple[int, ...], numbers: DeviceNumbers) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return global and local size for at least so many work items of 2 or 3 dimensions; kernels let those behind them pass."""
    groups = numbers.vector < CPU_VECTOR and numbers.work_group >= math.prod(GROUP)
    local = (*(GROUP if groups else (1, 1)), 1)[: len(size)]
    return tuple(ceil(items, unit) * unit for items, unit in zip(size, local, strict=True)), local


def weighted(kernel: str, tile: Tile, size: tuple[int, ...], numbers: DeviceNumbers, arguments: tuple[Argument, ...]) -> Launch:
    """Return the launch of a kernel of one input, one output and weights, which its file is named after."""
    places = (Memory.arena, Memory.weights, ArenaOffset("input:0"), ArenaOffset("output"))
    macros = defines(numbers.block, numbers.vector, tile)
    return Launch(kernel, kernel, macros, *grouped(size, numbers), (*places, *arguments))


def ceil(count: int, unit: int) -> int:
    """Return how many whole units a count needs."""
    return -(-count // unit)


class LackingError(Exception):
    """Reports what no kernel does, in words that follow "the OpenCL kernels lack"."""


@dataclass(frozen=True, slots=True)
class DeviceTensor:
    """An activation, or what a step keeps between its launches, from a place in its memory on."""

    memory: Memory
    place: ArenaOffset | int
    shape: Shape
    layout: str

    def elements(self, block: int) -> int:
        """Return how many elements the tensor takes, padding included."""
        return size_bytes(self.shape, self.layout, block) // _FLOAT_BYTES


@dataclass(frozen=True, slots=True)
class Space:
    """The work items of a launch, in blocks of lanes, rows and pixels; of the lanes, the last block may have fewer.

    Lanes behind the last are written as zeros if they are `padded`.
    """

    blocks: int
    height: int
    width: int
    lanes: int
    padded: bool

    def launch(self, source: str, kernel: str, numbers: DeviceNumbers, arguments: Sequence[Argument]) -> Launch:
        """Return a kernel over this space."""
        wide = self.width >= self.blocks
        size = [self.width, self.height, self.blocks]
        longest = 0 if wide else 2
        size[longest] = ceil(size[longest], LANE_GROUP) * LANE_GROUP
        group = (LANE_GROUP, 1, 1) if wide else (1, 1, LANE_GROUP)
        return Launch(source, kernel, defines(numbers.block, numbers.vector, _ONE), tuple(size), group, tuple(arguments))

    def work(self, launch: Launch, block: int, multiplications: float) -> UsefulWork:
        """Tell how much of the space's work is of use."""
        width, height, blocks = launch.global_size
        return UsefulWork(self.height * self.width, self.lanes, width * height, blocks * block, multiplications)


def by_row(kernel: str, space: Space, rows: int, numbers: DeviceNumbers, arguments: Sequence[Argument]) -> Launch:
    """Return a kernel that computes a row of a space by a work item, or on a GPU by a work group."""
    if not isinstance(numbers, GpuNumbers) or numbers.work_group < ROW_ITEMS:
        return space.launch(kernel, kernel, numbers, arguments)
    macros = defines(numbers.block, numbers.vector, _ONE)
    return Launch("grouped_rows", f"{kernel}_group", macros, (rows * ROW_ITEMS, 1, 1), (ROW_ITEMS, 1, 1), tuple(arguments))


def tensor_of(step: Step, role: str) -> str:
    """Return the name of an activation of a step by its role (see `ArenaOffset`), an output by `output` or `output:1`."""
    kind, _, number = role.partition(":")
    index = int(number or 0)
    return step.post_ops[index].tensor if kind == "operand" else (step.inputs if kind == "input" else step.outputs)[index]


def is_blocked(tensor: DeviceTensor, block: int) -> bool:
    """Tell whether a tensor's bytes are those of blocks, and of no row-major tensor."""
    if same_bytes(tensor.shape, tensor.layout, NCHW, block):
        return False
    if tensor.shape[0] != 1:
        raise LackingError(f"a batch of {tensor.shape[0]}")
    return True


def walked(out: DeviceTensor, others: Sequence[tuple[Shape, str]], block: int) -> tuple[Space, list[Strides]]:
    """Return the space of an output, with the strides of it and of operands (shape, layout) that are broadcast to its shape."""
    tensors = [out, *(DeviceTensor(Memory.arena, 0, shape, layout) for shape, layout in others)]
    if any(is_blocked(one, block) for one in tensors):
        if any(len(one.shape) != _RANK or one.shape[0] != 1 for one in tensors):
            raise LackingError("operands of other ranks beside images in blocks, or a batch")
        return _image(out, [image_strides(one, out.shape, block) for one in tensors], block)
    return rows(out.shape, [plain_strides(one.shape, out.shape) for one in tensors], block)


def image_strides(tensor: DeviceTensor, out: Shape, block: int) -> Strides:
    """Return the strides of an image, in blocks or not, that is broadcast to a shape."""
    _, channels, height, width = tensor.shape
    if is_blocked(tensor, block):
        steps = (height * width * block, width * block, block, 1)
    else:
        steps = (height * width * block, width, 1, height * width)
    repeated = channels == 1 < out[1], height == 1 < out[2], width == 1 < out[3]
    return (
        0 if repeated[0] else steps[0],
        0 if repeated[1] else steps[1],
        0 if repeated[2] else steps[2],
        0 if repeated[0] else steps[3],
    )


def _image(out: DeviceTensor, strides: list[Strides], block: int) -> tuple[Space, list[Strides]]:
    _, channels, height, width = out.shape
    if all(row == width * pixel for _, row, pixel, _ in strides):
        height, width = 1, height * width
    return Space(-(-channels // block), height, width, channels, is_blocked(out, block)), strides


def plain_strides(shape: Shape, out: Shape) -> list[int]:
    """Return the strides of a row-major tensor that is broadcast to a shape."""
    raised = (1,) * (len(out) - len(shape)) + tuple(shape)
    if len(raised) != len(out):
        raise LackingError(f"an operand {shape} of an output {out}")
    return [0 if size == 1 else math.prod(raised[axis + 1 :]) for axis, size in enumerate(raised)]


def rows(out: Shape, strides: list[list[int]], block: int) -> tuple[Space, list[Strides]]:
    """Return the space of a row-major output, and the strides of operands in it; axes that follow each other are one."""
    axes = [(size, tuple(one[axis] for one in strides)) for axis, size in enumerate(out) if size > 1]
    merged: list[tuple[int, tuple[int, ...]]] = []
    for size, steps in axes:
        if merged and all(before == step * size for before, step in zip(merged[-1][1], steps, strict=True)):
            merged[-1] = (merged[-1][0] * size, steps)
        else:
            merged.append((size, steps))
    if len(merged) > 3:  # rows, pixels, lanes
        raise LackingError(f"an output {out} with operands that are broadcast along several axes")
    none = (0,) * len(strides)
    (height, lines), (width, pixels), (lanes, each) = [(1, none)] * (3 - len(merged)) + merged
    found = [(block * lane, row, pixel, lane) for row, pixel, lane in zip(lines, pixels, each, strict=True)]
    return Space(-(-lanes // block), height, width, lanes, padded=False), found


@dataclass(frozen=True, slots=True)
class Channels:
    """Maps each channel (or lane) c of the target to one of the source: `c % groups * each + c // groups + shift`.

    Below 0 the target stays as it is; from `limit` on it is 0, if it is padding.
    """

    limit: int
    shift: int = 0
    groups: int = 1
    each: int = 0


@dataclass(slots=True)
class LaunchChain:
    """A chain collects the launches of one step, with what lies between them."""

    step: Step
    shapes: Shapes
    layouts: Layouts
    numbers: DeviceNumbers
    launches: list[Launch] = field(default_factory=list)
    packing: Packing = field(default_factory=Packing)
    workspace: int = 0

    def tensor(self, role: str) -> DeviceTensor:
        """Return an activation of the step by its role (see `tensor_of`)."""
        name = tensor_of(self.step, role)
        if self.layouts[name] not in (BLOCKED, NCHW) and len(self.shapes[name]) == _RANK:
            raise LackingError(f"activations in the layout {self.layouts[name]}")
        return DeviceTensor(Memory.arena, ArenaOffset(role), self.shapes[name], self.layouts[name])

    def ends(self) -> tuple[DeviceTensor, DeviceTensor]:
        """Return the first activation that the step reads, and the one that it writes."""
        return self.tensor("input:0"), self.tensor("output")

    def temporary(self, shape: Shape, layout: str) -> DeviceTensor:
        """Add a tensor that lives between launches."""
        made = DeviceTensor(Memory.workspace, self.workspace, shape, layout)
        self.workspace += ceil(made.elements(self.numbers.block), _ALIGNED) * _ALIGNED
        return made

    def copied(self, source: DeviceTensor, target: DeviceTensor) -> None:
        """Launch a copy from one layout to another; the shape is the same."""
        space, (out, read) = walked(target, [(source.shape, source.layout)], self.numbers.block)
        self.moved((source, read), (target, out), space, Channels(space.lanes))

    def moved(
        self, source: tuple[DeviceTensor, Strides], target: tuple[DeviceTensor, Strides], space: Space, channels: Channels
    ) -> None:
        """Copy lanes from a tensor to another."""
        (read, steps), (written, places) = source, target
        arguments = [
            *(read.memory, read.place, *steps, written.memory, written.place, *places),
            *(space.width, space.height, space.blocks, space.lanes, int(space.padded)),
            *(channels.groups, channels.each, channels.shift, channels.limit),
        ]
        self.launches.append(space.launch("move", "move", self.numbers, arguments))

    def plain(self, tensor: DeviceTensor) -> DeviceTensor:
        """Return a tensor in row-major order, copied if it is in blocks."""
        if not is_blocked(tensor, self.numbers.block):
            return replace(tensor, layout=NCHW)
        made = self.temporary(tensor.shape, NCHW)
        self.copied(tensor, made)
        return made

    def blocked(self, tensor: DeviceTensor) -> DeviceTensor:
        """Return an image in blocks, copied if it is row-major."""
        if self.in_blocks(tensor):
            return replace(tensor, layout=BLOCKED)
        made = self.temporary(tensor.shape, BLOCKED)
        self.copied(tensor, made)
        return made

    def in_blocks(self, tensor: DeviceTensor) -> bool:
        """Tell whether an image has the bytes of one in blocks."""
        if len(tensor.shape) != _RANK or tensor.shape[0] != 1:
            raise LackingError(f"this of a tensor {tensor.shape}")
        return same_bytes(tensor.shape, tensor.layout, BLOCKED, self.numbers.block)

    def done(self, implementation: str, work: UsefulWork | None = None) -> Dispatch:
        """Return the dispatch of the step; without its own count of work it is one copy of all elements."""
        if work is None:
            width, height, blocks = self.launches[-1].global_size
            lanes = blocks * self.numbers.block
            work = UsefulWork(width * height, lanes, width * height, lanes, 1.0)
        tile, units = (1, self.numbers.block), self.numbers.units
        return Dispatch(implementation, tuple(self.launches), tile, work, units, self.packing, self.workspace)
