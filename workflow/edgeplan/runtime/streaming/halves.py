"""Weights in half their bytes: stored as bf16, the upper half of a float32, or as float16, and widened where they are read to.

A segment that is stored so is read to the upper half of its place, and its values are widened from the lowest on, which
takes no memory besides (`native/src/loops/widening.cpp`). `runtime.streaming.rounding` makes them. Nothing heavy is imported.
"""

from __future__ import annotations

import ctypes
from typing import Any, Literal

from edgeplan import native

#: How weights are stored: as kernels take them, or in half the bytes.
Stored = Literal["f32", "bf16", "f16"]
F32: Stored = "f32"
BF16: Stored = "bf16"
F16: Stored = "f16"
#: Outputs of a plan with such weights may differ from ONNX Runtime's by so much of the largest magnitude.
HALVES_TOLERANCE = 0.02
#: Bytes of a half, and of its value.
HALF_BYTES, VALUE_BYTES = 2, 4
BLOCK = 64  # values that are widened at once; it divides those of a page
_BLOCK_BYTES = HALF_BYTES * BLOCK


def _widen(kind: Stored) -> Any:
    return native.function(f"widen_{kind}", None, *(ctypes.c_int64,) * 3)


def load(kind: Stored = BF16) -> None:
    """Look up what `widen` calls."""
    _widen(kind)


def widen(halves: int, values: int, size: int, kind: Stored = BF16) -> None:
    """Widen halves that have been read, while other threads have the interpreter.

    Args:
        halves: their address; may be that of the upper half of where the values go.
        values: the address that their float32 values go to.
        size: bytes of the halves, a multiple of those of a block.
        kind: of the halves.
    """
    if size % _BLOCK_BYTES or size < 0:
        raise ValueError(f"{size} bytes are no whole blocks of {_BLOCK_BYTES}")
    _widen(kind)(halves, values, size // HALF_BYTES)
