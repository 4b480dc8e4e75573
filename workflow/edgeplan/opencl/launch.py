"""Launches of a step are values only, the same for every OpenCL device of the same numbers; weights are packed for them.

Packing transforms weights as a step computes with them, after `runtime.transform.folded`, to the layouts that kernels read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class DeviceNumbers:
    """The numbers of a device are all that dispatch knows of it: compute units, the most work items of a group, memory.

    Vectors of kernels are of 4, 8 or 16 floats; a block of the layout `blocked16` is of 8 or 16 channels.
    """

    units: int
    vector: int
    block: int
    work_group: int
    local_bytes: int = 0
    constant_bytes: int = 0

    def __post_init__(self) -> None:
        """Refuse numbers that no kernel is for."""
        if self.vector not in (4, 8, 16) or self.block not in (8, 16) or self.vector > self.block:
            raise ValueError(f"no kernels of vectors of {self.vector} floats for blocks of {self.block} channels")
        if min(self.units, self.work_group) < 1:
            raise ValueError(f"{self.units} units with groups of {self.work_group} work items")


@dataclass(frozen=True, slots=True)
class GpuNumbers(DeviceNumbers):
    """The numbers of a GPU, for kernels in tiles of local memory; `tiled` grows when the rules that choose these change."""

    tiled: int = 2


def stored_numbers(numbers: Mapping[str, int]) -> DeviceNumbers:
    """Return the numbers of a device as they are stored."""
    return (GpuNumbers if "tiled" in numbers else DeviceNumbers)(**numbers)


#: Names of `Dispatch.features`, in their order.
FEATURES = (
    *("launches", "work_group", "work_groups", "waves", "last_wave", "tile_pixels", "tile_channels"),
    *("padded_pixels", "padded_channels", "useful", "padded_work", "weight_elements", "workspace_elements"),
)


class Memory(StrEnum):
    """A memory argument points to the first element of a buffer of f32."""

    #: All activations of the program.
    arena = "arena"
    #: The step's packed weights (`packed_buffer`).
    weights = "weights"
    #: At least `Dispatch.workspace_elements` that only this step's launches use while they run.
    workspace = "workspace"


@dataclass(frozen=True, slots=True)
class ArenaOffset:
    """Where in the arena an activation lies, in elements, some `extra` behind its begin: a 32-bit integer.

    The role is `input:0` (of `step.inputs`), `output`, or `operand:0` (the tensor of `step.post_ops[0]`).
    """

    role: str
    extra: int = 0


#: Integers are passed as 32-bit integers, other numbers as 32-bit floats.
Argument = Memory | ArenaOffset | int | float


@dataclass(frozen=True, slots=True)
class Launch:
    """A launch runs one kernel of a file of `sources`, `common.h` before it, compiled with macros.

    File and macros say which program this is. Global sizes are work items of each dimension, multiples of the local ones.
    """

    source: str
    kernel: str
    defines: tuple[tuple[str, int], ...]
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    arguments: tuple[Argument, ...]

    @property
    def groups(self) -> int:
        """Return the number of work groups."""
        return math.prod(whole // part for whole, part in zip(self.global_size, self.local_size, strict=True))


@dataclass(frozen=True, slots=True)
class Packing:
    """How the values of a step's weights are laid out for its kernels: a name in `TRANSFORMS`, "" for no weights."""

    transform: str = ""
    elements: int = 0
    sizes: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))

    @classmethod
    def of(cls, transform: str, elements: int, **sizes: int) -> Packing:
        """Return a packing with sizes by name."""
        return cls(transform, elements, MappingProxyType(sizes))


@dataclass(frozen=True, slots=True)
class UsefulWork:
    """Pixels and channels of an output, or rows and columns, also in whole tiles, and multiplications behind an element."""

    pixels: int
    channels: int
    padded_pixels: int
    padded_channels: int
    multiplications: float


@dataclass(frozen=True, slots=True)
class Dispatch:
    """The launches of a step, each after the one before it has finished, as an implementation such as `conv.winograd`.

    The tile is pixels (or rows) and channels (or columns) that a work item computes. The workspace is memory between the
    launches, in elements.
    """

    implementation: str
    launches: tuple[Launch, ...]
    tile: tuple[int, int]
    work: UsefulWork
    units: int
    packing: Packing = field(default_factory=Packing)
    workspace_elements: int = 0

    def features(self) -> dict[str, float]:
        """Return the features that a predictor of latency learns from, alike for all implementations (LiPG, section 3.2)."""
        work = self.work
        each = [launch.groups for launch in self.launches]
        groups, waves = sum(each), sum(-(-count // self.units) for count in each)
        padded = work.padded_pixels * work.padded_channels
        useful, group = work.pixels * work.channels / padded, math.prod(self.launches[-1].local_size)
        found = (
            *(len(self.launches), group, groups, waves, groups / (waves * self.units), *self.tile),
            *(work.padded_pixels, work.padded_channels, useful, padded * work.multiplications),
            *(self.packing.elements, self.workspace_elements),
        )
        return dict(zip(FEATURES, map(float, found), strict=True))


def packed_buffer(packing: Packing, values: Sequence[Array]) -> Array:
    """Return the buffer that a step's kernels read: `packing.elements` values."""
    weight, bias = values[0], values[1] if len(values) > 1 else None
    found = np.zeros(packing.elements, np.float32)
    TRANSFORMS[packing.transform](packing.sizes, weight, bias, found)
    return found


def _padded(values: Array, axis: int, unit: int) -> Array:
    """Pad values with zeros to a whole number of units along an axis."""
    more = -values.shape[axis] % unit
    return np.pad(values, [(0, more if place == axis else 0) for place in range(values.ndim)]) if more else values


def _whole(weight: Array, block: int, columns: int) -> Array:
    """Pad a weight with outputs of zeros that fill the last block, and the tile that it ends in."""
    return _padded(_padded(weight, 0, block), 0, columns)


def _conv_direct(sizes: Mapping[str, int], weight: Array, bias: Array | None, found: Array) -> None:
    """Pack a weight (O, I, window) as B zeros, bias [tiles][T] and [tiles][window][I][T]."""
    block, columns = sizes["block"], sizes["columns"]
    padded = _padded(_whole(weight, block, columns), 1, block)
    out, inner, height, width = padded.shape
    if bias is not None:
        found[block : block + len(bias)] = bias
    target = found[block + out :].reshape(out // columns, height * width, inner, columns)
    target[:] = padded.reshape(out // columns, columns, inner, height * width).transpose(0, 3, 2, 1)


def _by_channel(_sizes: Mapping[str, int], weight: Array, bias: Array | None, found: Array) -> None:
    """Pack a factor and a summand of each channel: (C,) both, each padded to whole blocks."""
    for start, values in ((0, weight), (len(found) // 2, bias)):
        if values is not None:
            found[start : start + values.size] = values.ravel()


#: G of F(4 x 4, 3 x 3) at the points 0, 1, -1, 2, -2 and infinity.
_WINOGRAD = np.array(
    [
        [1 / 4, 0, 0],
        [-1 / 6, -1 / 6, -1 / 6],
        [-1 / 6, 1 / 6, -1 / 6],
        [1 / 24, 1 / 12, 1 / 6],
        [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1],
    ]
)


def _conv_winograd(sizes: Mapping[str, int], weight: Array, bias: Array | None, found: Array) -> None:
    """Pack a weight (O, I, 3, 3) as bias [tiles][T] and, of G w G', [36][tiles][I][T]."""
    block, columns = sizes["block"], sizes["columns"]
    padded = _padded(_whole(weight, block, columns), 1, block)
    out, inner = padded.shape[:2]
    if bias is not None:
        found[: len(bias)] = bias
    both = np.kron(_WINOGRAD, _WINOGRAD).astype(np.float32)
    target = found[out:].reshape(len(both), out // columns, inner, columns)
    target[:] = (both @ padded.reshape(-1, 9).T).reshape(-1, out // columns, columns, inner).transpose(0, 1, 3, 2)


def _conv_first(sizes: Mapping[str, int], weight: Array, bias: Array | None, found: Array) -> None:
    """Pack a weight (O, I, window) as B zeros, bias [tiles][T] and [tiles][I][window][T].

    A depthwise convolution, whose I is 1, is packed as B zeros, bias [channels] and [blocks][window][B].
    """
    block, columns = sizes["block"], sizes["columns"]
    _tiled(columns, _whole(weight, block, columns).reshape(-1, math.prod(weight.shape[1:])), bias, found[block:])


def _tiled(columns: int, weight: Array, bias: Array | None, found: Array) -> None:
    """Pack a weight (O, K) as bias [tiles][columns] and [tiles][K][columns]."""
    padded = _padded(weight, 0, columns)
    if bias is not None:
        found[: len(bias)] = bias
    found[len(padded) :].reshape(-1, padded.shape[1], columns)[:] = padded.reshape(-1, columns, padded.shape[1]).swapaxes(1, 2)


def _linear(sizes: Mapping[str, int], weight: Array, bias: Array | None, found: Array) -> None:
    """Pack a weight (K, columns), or (columns, K) if transposed, as bias [tiles][T] and [tiles][K][T]."""
    width, channels, pixels, block = (sizes[key] for key in ("columns", "channels", "pixels", "block"))
    matrix = weight if sizes["transposed"] else weight.T
    columns = len(matrix)
    split = _padded(matrix.reshape(columns, channels, pixels), 1, block)
    ordered = split.reshape(columns, -1, block, pixels).swapaxes(2, 3).reshape(columns, -1)
    _tiled(width, ordered, bias, found)


def _in_a_row(_sizes: Mapping[str, int], weight: Array, bias: Array | None, found: Array) -> None:
    """Pack weight and bias of any shapes, row-major, one after the other."""
    found[: weight.size] = weight.ravel()
    if bias is not None:
        found[weight.size : weight.size + bias.size] = bias.ravel()


#: Transform -> (sizes, weight, bias, buffer of zeros to fill).
TRANSFORMS: Mapping[str, Callable[[Mapping[str, int], Array, Array | None, Array], None]] = MappingProxyType(
    {
        "conv_direct": _conv_direct,
        "conv_winograd": _conv_winograd,
        "conv_first": _conv_first,
        "linear": _linear,
        "as_it_is": _in_a_row,
        "by_channel": _by_channel,
        "in_a_row": _in_a_row,
    }
)
