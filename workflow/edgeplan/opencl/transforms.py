"""Transforms weights as a step computes with them to the layouts that kernels read, after `runtime.transform.folded`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from edgeplan.opencl.launch import Packing

Array = npt.NDArray[np.float32]


def packed(packing: Packing, values: Sequence[Array]) -> Array:
    """Return the buffer that a step's kernels read.

    Returns:
        `packing.elements` values.
    """
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


def _as_it_is(_sizes: Mapping[str, int], weight: Array, _bias: Array | None, found: Array) -> None:
    """Copy a weight of any shape, row-major."""
    found[: weight.size] = weight.ravel()


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
        "as_it_is": _as_it_is,
        "by_channel": _by_channel,
        "in_a_row": _in_a_row,
    }
)
