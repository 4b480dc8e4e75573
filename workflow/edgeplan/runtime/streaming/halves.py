"""Weights in half their bytes: stored as bf16, the upper half of a float32, or as float16, and widened where they are read to.

A segment that is stored so is read to the upper half of its place, and its values are widened from the lowest on, which
takes no memory besides (`native/src/loops/widening.cpp`). `runtime.streaming.rounding` makes them. Nothing heavy is imported.
"""

from __future__ import annotations

from typing import Literal

#: How weights are stored: as kernels take them, or in half the bytes.
Stored = Literal["f32", "bf16", "f16"]
F32: Stored = "f32"
BF16: Stored = "bf16"
F16: Stored = "f16"
#: Outputs of a plan with such weights may differ from ONNX Runtime's by so much of the largest magnitude.
HALVES_TOLERANCE = 0.02
#: Bytes of a half, and of its value.
HALF_BYTES, VALUE_BYTES = 2, 4
