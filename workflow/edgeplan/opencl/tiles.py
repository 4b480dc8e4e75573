"""Tiles of kernels, and how work items are counted. Measured with PoCL on one core with AVX2 and vectors of 8."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from edgeplan.graph.ir import BYTES_PER_ELEMENT

Tile = tuple[int, int]

#: Vector -> rows (or pixels) and vectors of columns (or channels) of a work item: as many sums as registers hold beside the
#: factors, so 12 of 16 with AVX2.
TILES: Final[Mapping[int, Tile]] = MappingProxyType({4: (3, 4), 8: (6, 2), 16: (12, 2)})
#: Of the products of a Winograd convolution, whose rows are few.
WINOGRAD_TILES: Final[Mapping[int, Tile]] = MappingProxyType({4: (4, 4), 8: (4, 2), 16: (8, 2)})
#: Of a product of one row: enough sums that none waits for the one before it.
ROW_TILES: Final[Mapping[int, Tile]] = MappingProxyType({4: (1, 8), 8: (1, 4), 16: (1, 4)})
#: Of the input, from which all channels of the output are computed before the next such chunk is read: half a cache of level 1
#: is left to weights.
CHUNK_BYTES: Final = 1 << 15


def defines(block: int, vector: int, tile: Tile) -> tuple[tuple[str, int], ...]:
    """The macros of a variant of a kernel."""
    rows, vectors = tile
    return ("B", block), ("V", vector), ("R", rows), ("N", vectors)


def chunks(items: int, elements: int) -> tuple[int, int]:
    """Work items along pixels or rows, as so many in each of so many chunks.

    Args:
        items: in all, at least.
        elements: of the input that one reads.
    """
    count = ceil(items * elements * BYTES_PER_ELEMENT["float32"], CHUNK_BYTES)
    return ceil(items, count), count


def ceil(count: int, unit: int) -> int:
    """Whole units that hold a count."""
    return -(-count // unit)
