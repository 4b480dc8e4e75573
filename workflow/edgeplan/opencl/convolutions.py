"""Chooses the kernels that run a convolution. Thresholds were measured with PoCL on one core with AVX2 and vectors of 8."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

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
    CHUNK_BYTES,
    CPU_VECTOR,
    DEPTHWISE_ROWS,
    GROUP_TILES,
    TILES,
    TRIED,
    WINOGRAD_TILES,
    GroupTile,
    LackingError,
    Layouts,
    Shapes,
    Tile,
    ceil,
    defines,
    group_tile,
    grouped,
    pointwise_tile,
    weighted,
)
from edgeplan.runtime.layouts import BLOCKED, NCHW, same_bytes

#: Pixels along a side of what F(4 x 4, 3 x 3) computes at once, from (4 + 2) squared places.
WINOGRAD_TILE: Final = 4
_WINOGRAD_PLACES: Final = (WINOGRAD_TILE + 2) ** 2
#: Channels of the input from which on it is faster than the direct kernel: by 1.0 to 1.3 times at 16, by 2 and more at 64.
WINOGRAD_CHANNELS: Final = 16
#: The least share of the computed pixels that the output has: 0.77 at 7 x 7, where it gains, 0.39 at 5 x 5, where it loses.
WINOGRAD_USEFUL: Final = 0.5
_IMAGE_RANK: Final = 4
_FLOAT_BYTES: Final = 4
_INDEX_END: Final = 1 << 31  # kernels count elements in 32 bits

Arguments = tuple[Argument, ...]


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution holds the numbers of a convolution step of one image."""

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
        """Return the number of output pixels."""
        return math.prod(self.size_out)

    @property
    def window(self) -> int:
        """Return the number of places of the window."""
        return math.prod(self.kernel)

    @property
    def depthwise(self) -> bool:
        """Tell whether each channel is its own group."""
        return self.groups == self.channels_in == self.channels_out > 1

    @property
    def moves(self) -> tuple[int, ...]:
        """Return strides, dilations and padding as kernels take them."""
        return (*self.strides, *self.dilations, *self.pads)


def convolution(step: Step, shapes: Shapes) -> Convolution:
    """Return the numbers of a step."""
    source, target = shapes[step.inputs[0]], shapes[step.outputs[0]]

    window, strides, dilations, pads = (
        (step.sizes(key)[0], step.sizes(key)[1]) for key in ("kernel", "strides", "dilations", "pads_before")
    )
    sizes = (source[2], source[3]), (target[2], target[3])
    return Convolution(source[1], target[1], step.integer("groups"), *sizes, window, strides, dilations, pads)


def conv_dispatch(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Return the kernels of a convolution."""
    _check(step, shapes, layouts, numbers)
    c, posts = convolution(step, shapes), post_ops.arguments(step, shapes, layouts, numbers.block)
    if not same_bytes(shapes[step.inputs[0]], layouts[step.inputs[0]], BLOCKED, numbers.block):
        return _first(c, numbers, posts)
    if c.depthwise:
        return _depthwise(c, numbers, posts)
    if _allows_winograd(c):
        found = _winograd(c, numbers, posts)
        fits = max(found.workspace_elements, found.packing.elements) < _INDEX_END
        if fits and found.work.pixels >= WINOGRAD_USEFUL * found.work.padded_pixels:
            return found
    return _tiled(c, numbers, posts) or _direct(c, numbers, posts)


def _check(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> None:
    """Raise what no kernel of a convolution does."""
    source, target = shapes[step.inputs[0]], shapes[step.outputs[0]]
    if len(source) != _IMAGE_RANK:
        raise LackingError(f"a convolution of {len(source) - 2} axes")
    if source[0] != 1:
        raise LackingError(f"a batch of {source[0]}")
    if not same_bytes(target, layouts[step.outputs[0]], BLOCKED, numbers.block):
        raise LackingError(f"an output in the layout {layouts[step.outputs[0]]}")
    c = convolution(step, shapes)
    plain = not same_bytes(source, layouts[step.inputs[0]], BLOCKED, numbers.block)
    if plain and (layouts[step.inputs[0]] != NCHW or c.groups > 1):
        raise LackingError(f"an input in the layout {layouts[step.inputs[0]]} with {c.groups} groups")
    each_in, each_out = c.channels_in // c.groups, c.channels_out // c.groups
    unit = math.lcm(numbers.block, TILES[numbers.vector][1] * numbers.vector)
    whole = each_in % numbers.block == 0 and each_out % unit == 0
    if c.groups > 1 and not c.depthwise and not whole:
        raise LackingError(f"a convolution of {c.groups} groups of {each_in} to {each_out} channels")


def others(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> dict[str, Dispatch]:
    """Return kernels that compute what those of `conv_dispatch` do: other tiles, and the other algorithm. For autotuning."""
    c, posts = convolution(step, shapes), post_ops.arguments(step, shapes, layouts, numbers.block)
    if c.depthwise or not same_bytes(shapes[step.inputs[0]], layouts[step.inputs[0]], BLOCKED, numbers.block):
        return {}
    found = {
        f"direct {rows} x {vectors}": _direct(c, numbers, posts, (rows, vectors)) for rows, vectors in TRIED[numbers.vector]
    }
    if _allows_winograd(c) and (winograd := _winograd(c, numbers, posts)).workspace_elements < _INDEX_END:
        found["winograd"] = winograd
    if isinstance(numbers, GpuNumbers):
        for tile in (tile for tiles in GROUP_TILES.values() for tile in tiles):
            if (made := _tiled(c, numbers, posts, tile)) is not None:
                found[f"tiled {tile.rows} x {tile.columns}"] = made
    return found


def _allows_winograd(c: Convolution) -> bool:
    plain = c.kernel == (3, 3) and c.strides == c.dilations == (1, 1) and c.groups == 1
    return plain and c.channels_in >= WINOGRAD_CHANNELS


def _pointwise(c: Convolution, numbers: DeviceNumbers) -> bool:
    alike = c.window == math.prod(c.strides) == 1 and c.pads == (0, 0) and c.size_in == c.size_out
    return alike and c.pixels >= TILES[numbers.vector][0]


def _direct(c: Convolution, numbers: DeviceNumbers, posts: Arguments, tile: Tile | None = None) -> Dispatch:
    """Also a pointwise convolution, in a kernel that knows where the next pixel lies."""
    block, pointwise = numbers.block, _pointwise(c, numbers)
    if tile is None:
        channels = ceil(c.channels_out // c.groups, block) * block
        tile = pointwise_tile(channels, numbers.vector) if pointwise else TILES[numbers.vector]
    rows, columns = tile[0], tile[1] * numbers.vector
    tiles, in_blocks = _tiles(c, block, columns), ceil(c.channels_in // c.groups, block)
    read_bytes = _FLOAT_BYTES * ceil(c.pixels, rows) * rows * math.prod(c.strides) * in_blocks * block
    chunks = ceil(read_bytes, CHUNK_BYTES)  # whose input stays in a cache
    each = ceil(ceil(c.pixels, rows), chunks)
    items, run = (1, each) if numbers.vector >= CPU_VECTOR else (each, 1)
    name = "pointwise" if pointwise else "direct"
    sizes = (c.pixels, run, c.channels_out, tiles, tiles // c.groups)
    before = (in_blocks,) if pointwise else (*c.size_in, in_blocks, c.size_out[1])
    window = () if pointwise else (*c.kernel, *c.moves)
    launch = weighted(f"conv_{name}", tile, (items, tiles, chunks), numbers, (*before, *sizes, *window, *posts))
    inner = c.window * in_blocks * block
    work = UsefulWork(c.pixels, c.channels_out, chunks * each * rows, tiles * columns, inner)
    packing = Packing.of("conv_direct", block + tiles * columns * (1 + inner), block=block, columns=columns)
    return Dispatch(f"conv.{name}", (launch,), (rows, columns), work, numbers.units, packing)


def _tiled(c: Convolution, numbers: DeviceNumbers, posts: Arguments, tile: GroupTile | None = None) -> Dispatch | None:
    """Return the kernel of work groups; None where the device has none, or the channels of a group do not fit their tiles."""
    block, each = numbers.block, ceil(c.channels_out // c.groups, numbers.block) * numbers.block
    tile = tile or group_tile(c.pixels, each, numbers)
    if tile is None or (c.groups > 1 and each % tile.columns):
        return None
    tiles, in_blocks = _tiles(c, block, tile.columns), ceil(c.channels_in // c.groups, block)
    down, local = ceil(c.pixels, tile.rows), tile.local(numbers.vector)
    sizes = (*c.size_in, in_blocks, c.size_out[1], c.pixels, c.channels_out, tiles, tiles // c.groups, *c.kernel, *c.moves)
    places = (Memory.arena, Memory.weights, ArenaOffset("input:0"), ArenaOffset("output"))
    macros, size = tile.defines(block, numbers.vector), (tiles * local[0], down * local[1])
    launch = Launch("conv_tiled", "conv_tiled", macros, size, local, (*places, *sizes, *posts))
    inner = c.window * in_blocks * block
    work = UsefulWork(c.pixels, c.channels_out, down * tile.rows, tiles * tile.columns, inner)
    packing = Packing.of("conv_direct", block + tiles * tile.columns * (1 + inner), block=block, columns=tile.columns)
    return Dispatch("conv.tiled", (launch,), (tile.rows, tile.columns), work, numbers.units, packing)


def _first(c: Convolution, numbers: DeviceNumbers, posts: Arguments) -> Dispatch:
    tile, block = TILES[numbers.vector], numbers.block
    rows, columns = tile[0], tile[1] * numbers.vector
    along, tiles = ceil(c.size_out[1], rows), _tiles(c, block, columns)
    items, run = (1, along) if numbers.vector >= CPU_VECTOR else (along, 1)
    sizes = (*c.size_in, c.channels_in, *c.size_out, run, c.channels_out, tiles, *c.kernel, *c.moves)
    launch = weighted("conv_first", tile, (items, tiles, c.size_out[0]), numbers, (*sizes, *posts))
    inner = c.window * c.channels_in
    work = UsefulWork(c.pixels, c.channels_out, c.size_out[0] * along * rows, tiles * columns, inner)
    packing = Packing.of("conv_first", block + tiles * columns * (1 + inner), block=block, columns=columns)
    return Dispatch("conv.first", (launch,), (rows, columns), work, numbers.units, packing)


def _depthwise(c: Convolution, numbers: DeviceNumbers, posts: Arguments) -> Dispatch:
    rows, block = DEPTHWISE_ROWS, numbers.block
    items, blocks = ceil(c.size_out[1], rows), ceil(c.channels_out, block)
    run = 1 if isinstance(numbers, GpuNumbers) else items
    size = (c.size_out[0], blocks * block // numbers.vector, ceil(items, run))
    sizes = (*c.size_in, *c.size_out, run, c.channels_out, blocks, *c.kernel, *c.moves)
    launch = weighted("conv_depthwise", (rows, 1), size, numbers, (*sizes, *posts))
    work = UsefulWork(c.pixels, c.channels_out, c.size_out[0] * items * rows, blocks * block, c.window)
    packing = Packing.of("conv_first", block + blocks * block * (1 + c.window), block=block, columns=block)
    return Dispatch("conv.depthwise", (launch,), (rows, numbers.vector), work, numbers.units, packing)


def _winograd(c: Convolution, numbers: DeviceNumbers, posts: Arguments) -> Dispatch:
    tile, block = WINOGRAD_TILES[numbers.vector], numbers.block
    rows, columns = tile[0], tile[1] * numbers.vector
    tiles, in_blocks, out_blocks = _tiles(c, block, columns), ceil(c.channels_in, block), ceil(c.channels_out, block)
    down, across = (ceil(size, WINOGRAD_TILE) for size in c.size_out)
    places, groups = down * across, ceil(down * across, rows)
    inputs = _WINOGRAD_PLACES * groups * rows * in_blocks * block  # elements before the products
    vectors = block // numbers.vector

    def launch(kernel: str, size: tuple[int, ...], *arguments: Argument) -> Launch:
        macros = defines(block, numbers.vector, tile)
        return Launch("conv_winograd", kernel, macros, *grouped(size, numbers), arguments)

    given = (in_blocks, across, places, groups, *c.pads)
    before = (Memory.arena, Memory.workspace, ArenaOffset("input:0"), *c.size_in, *given)
    between = (Memory.weights, Memory.workspace, in_blocks, tiles, groups, inputs)
    after = (Memory.arena, Memory.weights, Memory.workspace, ArenaOffset("output"), *c.size_out, c.channels_out)
    launches = (
        launch("winograd_input", (groups * rows, in_blocks * vectors), *before),
        launch("winograd_product", (groups, tiles, _WINOGRAD_PLACES), *between),
        launch("winograd_output", (places, out_blocks * vectors), *after, across, places, tiles, groups, inputs, *posts),
    )
    each = _WINOGRAD_PLACES / WINOGRAD_TILE**2 * in_blocks * block
    work = UsefulWork(c.pixels, c.channels_out, groups * rows * WINOGRAD_TILE**2, tiles * columns, each)
    elements = tiles * columns * (1 + _WINOGRAD_PLACES * in_blocks * block)
    packing = Packing.of("conv_winograd", elements, block=block, columns=columns)
    workspace = inputs + _WINOGRAD_PLACES * groups * rows * tiles * columns
    return Dispatch("conv.winograd", launches, (rows, columns), work, numbers.units, packing, workspace)


def _tiles(c: Convolution, block: int, columns: int) -> int:
    """Return tiles of channels, with those that fill the last block: they are to be zero."""
    return ceil(ceil(c.channels_out, block) * block, columns)
