"""Weights as a step computes with them to the layouts that kernels read (`runtime.transform.folded` comes before)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from edgeplan.opencl.launch import Packing

Array = npt.NDArray[np.float32]


def packed(packing: Packing, values: Sequence[Array]) -> Array:
    """The buffer that a step's kernels read.

    Args:
        packing: of the step's dispatch.
        values: from `folded`: the weight, and a bias if there is one.

    Returns:
        `packing.elements` values.
    """
    weight, bias = values[0], values[1] if len(values) > 1 else None
    found = np.zeros(packing.elements, np.float32)
    TRANSFORMS[packing.transform](packing.sizes, weight, bias, found)
    return found


def _padded(values: Array, axis: int, unit: int) -> Array:
    """With zeros to a whole number of units along an axis."""
    more = -values.shape[axis] % unit
    return np.pad(values, [(0, more if place == axis else 0) for place in range(values.ndim)]) if more else values


def _conv_direct(sizes: Mapping[str, int], weight: Array, bias: Array | None, found: Array) -> None:
    """From (O, I, window) to B zeros, bias [tiles][T] and [tiles][window][I][T]."""
    block, columns = sizes["block"], sizes["columns"]
    padded = _padded(_padded(weight, 1, block), 0, columns)
    out, inner, height, width = padded.shape
    if bias is not None:
        found[block : block + len(bias)] = bias
    target = found[block + out :].reshape(out // columns, height * width, inner, columns)
    target[:] = padded.reshape(out // columns, columns, inner, height * width).transpose(0, 3, 2, 1)


#: Transform -> (sizes, weight, bias, buffer of zeros to fill).
TRANSFORMS: Mapping[str, Callable[[Mapping[str, int], Array, Array | None, Array], None]] = MappingProxyType(
    {"conv_direct": _conv_direct}
)
