"""Sizes tiles of kernels and counts work items. The sizes were measured with PoCL on one core with AVX2 and vectors of 8."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from edgeplan.graph.ir import BYTES_PER_ELEMENT
from edgeplan.opencl.launch import ArenaOffset, Argument, DeviceNumbers, GpuNumbers, Launch, Memory

Tile = tuple[int, int]

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
    """A group's tile is what a work group of a GPU computes from local memory.

    Attributes:
        rows, columns: pixels (or rows) and channels (or columns) of the group.
        each: rows of a work item, which has one vector of columns.
    """

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


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks are tiles of pixels as work items.

    Attributes:
        count: chunks.
        items: work items of a chunk.
        run: tiles of an item, one after the other.
    """

    count: int
    items: int
    run: int

    @property
    def tiles(self) -> int:
        """Return the number of tiles, those behind the last pixel among them."""
        return self.count * self.items * self.run


def chunks(tiles: int, elements: int, vector: int) -> Chunks:
    """Return tiles of pixels in chunks whose input stays in a cache."""
    count = ceil(tiles * elements * BYTES_PER_ELEMENT["float32"], CHUNK_BYTES)
    each = ceil(tiles, count)
    return Chunks(count, 1, each) if vector >= CPU_VECTOR else Chunks(count, each, 1)


def grouped(size: tuple[int, ...], numbers: DeviceNumbers) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return global and local size for at least so many work items of two or three dimensions.

    Kernels let those behind them pass.
    """
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
