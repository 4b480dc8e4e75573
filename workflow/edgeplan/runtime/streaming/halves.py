"""Weights in half their bytes: stored as bf16, the upper half of a float32, or as float16, and widened where they are read to.

A segment that is stored so is read to the upper half of its place, and its values are widened from the lowest on, which
takes no memory besides. `runtime.streaming.rounding` makes them. Nothing heavy is imported.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, Literal

from edgeplan.runtime.native.widening import BLOCK
from edgeplan.support.machine_code import Images, addresses

#: How weights are stored: as kernels take them, or in half the bytes.
Stored = Literal["f32", "bf16", "f16"]
F32: Stored = "f32"
BF16: Stored = "bf16"
F16: Stored = "f16"
#: Outputs of a plan with such weights may differ from ONNX Runtime's by so much of the largest magnitude.
HALVES_TOLERANCE = 0.02
#: Bytes of a half, and of its value.
HALF_BYTES, VALUE_BYTES = 2, 4
_BLOCK_BYTES = HALF_BYTES * BLOCK
_IMAGES = Images("edgeplan.runtime.native.build", ("runtime/native/*.py",))
_WORD = ctypes.c_int64


@cache
def _widen(kind: Stored) -> Any:
    """The function's machine code, compiled if none is kept; other threads have the interpreter while it runs."""
    return ctypes.CFUNCTYPE(_WORD, _WORD, _WORD, _WORD)(addresses(_IMAGES, ["widening"])["widening"][f"widen_{kind}"])


def load(kind: Stored = BF16) -> None:
    """Load the machine code that `widen` calls."""
    _widen(kind)


def widen(halves: int, values: int, size: int, kind: Stored = BF16) -> None:
    """Widen halves that have been read; see `runtime.native.widening` for where they may lie.

    Args:
        halves: their address.
        values: the address that their float32 values go to.
        size: bytes of the halves, a multiple of those of a block.
        kind: of the halves.
    """
    if size % _BLOCK_BYTES or size < 0:
        raise ValueError(f"{size} bytes are no whole blocks of {_BLOCK_BYTES}")
    _widen(kind)(halves, values, size // HALF_BYTES)
