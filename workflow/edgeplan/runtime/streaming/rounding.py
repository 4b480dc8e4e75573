"""Float32 values rounded to halves of their bytes (bf16, float16), and which of them can be."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.streaming.halves import BF16, F16, Stored

_SIGN, _INFINITE = 0x7FFFFFFF, 0x7F800000  # of the bits of a float32: all but the sign; above which there are no numbers
_TOO_LARGE = 0x7F7F8000  # from here on a finite number is nearer to infinity than to the largest half
_ROUNDED_AT_ONCE = 1 << 20
_LARGEST_FLOAT16 = 65520  # from here on a number is nearer to infinity than to the largest float16


def rounded(values: npt.NDArray[np.float32], kind: Stored = BF16) -> npt.NDArray[np.uint16]:
    """The nearest halves of some values, the even one of two as near; what is no number stays none.

    A finite value whose magnitude is above 3.396e38, as float16 above 65520, becomes infinite.
    """
    if kind == F16:
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    found = np.empty(flat.size, np.uint16)
    for at in range(0, flat.size, _ROUNDED_AT_ONCE):
        bits = flat[at : at + _ROUNDED_AT_ONCE]
        upper = bits >> 16
        nearest = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> 16
        found[at : at + bits.size] = np.where((bits & np.uint32(_SIGN)) > _INFINITE, upper | np.uint32(0x40), nearest)
    return found.reshape(values.shape)


def stay_finite(values: npt.NDArray[np.float32], kind: Stored = BF16) -> bool:
    """Tell whether no finite value becomes infinite when it is rounded."""
    flat = values.reshape(-1)
    for at in range(0, flat.size, _ROUNDED_AT_ONCE):
        if kind == F16:
            sizes = np.abs(flat[at : at + _ROUNDED_AT_ONCE])
            if ((sizes >= _LARGEST_FLOAT16) & np.isfinite(sizes)).any():
                return False
            continue
        bits = np.ascontiguousarray(flat[at : at + _ROUNDED_AT_ONCE]).view(np.uint32) & np.uint32(_SIGN)
        if ((bits >= _TOO_LARGE) & (bits < _INFINITE)).any():
            return False
    return True
