"""Weights in half their bytes: stored as bf16, the upper half of a float32, and widened where they are read to.

A segment that is stored so is read to the upper half of its place, and its values are widened from the lowest on, which
takes no memory besides. Nothing heavy is imported but by who rounds.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from edgeplan.runtime.native.widening import BLOCK
from edgeplan.support.machine_code import Images, addresses

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: How weights are stored: as kernels take them, or in half the bytes.
Stored = Literal["f32", "bf16"]
F32: Stored = "f32"
BF16: Stored = "bf16"
#: Outputs of a plan with such weights may differ from ONNX Runtime's by so much of the largest magnitude.
HALVES_TOLERANCE = 0.02
#: Bytes of a half, and of its value.
HALF_BYTES, VALUE_BYTES = 2, 4
_BLOCK_BYTES = HALF_BYTES * BLOCK
_IMAGES = Images("edgeplan.runtime.native.build", ("runtime/native/*.py",))
_WORD = ctypes.c_int64
_SIGN, _INFINITE = 0x7FFFFFFF, 0x7F800000  # of the bits of a float32: all but the sign; above which there are no numbers
_TOO_LARGE = 0x7F7F8000  # from here on a finite number is nearer to infinity than to the largest half
_ROUNDED_AT_ONCE = 1 << 20


@cache
def _widen() -> Any:
    """The function's machine code, compiled if none is kept; other threads have the interpreter while it runs."""
    return ctypes.CFUNCTYPE(_WORD, _WORD, _WORD, _WORD)(addresses(_IMAGES, ["widening"])["widening"]["widen"])


def load() -> None:
    """Load what `widen` calls."""
    _widen()


def widen(halves: int, values: int, size: int) -> None:
    """Widen halves that have been read; see `runtime.native.widening` for where they may lie.

    Args:
        halves: their address.
        values: the address that their float32 values go to.
        size: bytes of the halves, a multiple of those of a block.

    Raises:
        ValueError: it is none.
    """
    if size % _BLOCK_BYTES or size < 0:
        raise ValueError(f"{size} bytes are no whole blocks of {_BLOCK_BYTES}")
    _widen()(halves, values, size // HALF_BYTES)


def rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """The nearest halves of some values, the even one of two as near; what is no number stays none.

    A finite value whose magnitude is above 3.396e38 becomes infinite.
    """
    import numpy as np  # noqa: PLC0415  see above

    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    found = np.empty(flat.size, np.uint16)
    for at in range(0, flat.size, _ROUNDED_AT_ONCE):
        bits = flat[at : at + _ROUNDED_AT_ONCE]
        upper = bits >> 16
        nearest = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> 16
        found[at : at + bits.size] = np.where((bits & np.uint32(_SIGN)) > _INFINITE, upper | np.uint32(0x40), nearest)
    return found.reshape(values.shape)


def stay_finite(values: npt.NDArray[np.float32]) -> bool:
    """Tell whether no finite value becomes infinite when it is rounded."""
    import numpy as np  # noqa: PLC0415  see above

    flat = values.reshape(-1)
    for at in range(0, flat.size, _ROUNDED_AT_ONCE):
        bits = np.ascontiguousarray(flat[at : at + _ROUNDED_AT_ONCE]).view(np.uint32) & np.uint32(_SIGN)
        if ((bits >= _TOO_LARGE) & (bits < _INFINITE)).any():
            return False
    return True
