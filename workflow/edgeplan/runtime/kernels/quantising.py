"""Kernels between numbers and bytes that stand for them: a number is (byte - zero point) x scale.

Operands are what is read, scales, zero points and what is written; scales and zero points are broadcast.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeplan.runtime.kernels.walking import elements_at, float32_at, inlined

# mypy: disable-error-code="no-any-return"


@inlined
def _quantised(at: Any, by: Any, count: int, bytes_at: Any, lowest: int, highest: int) -> int:
    """Half-way cases are rounded to even, as ONNX says; NaN gets the lowest byte."""
    x, scale, zero, y = float32_at(at[0]), float32_at(at[1]), bytes_at(at[2]), bytes_at(at[3])
    if by[0] == 1 and by[1] == 0 and by[2] == 0 and by[3] == 1:  # one scale for the row: compilers make vectors of this
        one, shift = scale[0], np.float32(zero[0])
        for i in range(count):
            value = np.rint(x[i] / one) + shift
            value = min(value, np.float32(highest)) if value > lowest else np.float32(lowest)
            y[i] = np.int32(value)
        return 0
    for i in range(count):
        value = np.rint(x[i * by[0]] / scale[i * by[1]]) + np.float32(zero[i * by[2]])
        value = min(value, np.float32(highest)) if value > lowest else np.float32(lowest)
        y[i * by[3]] = np.int32(value)
    return 0


@inlined
def quantised_signed(_like: Any, count: int, at: Any, by: Any, _reach: int, bytes_at: Any) -> int:
    return _quantised(at, by, count, bytes_at, -128, 127)


@inlined
def quantised_unsigned(_like: Any, count: int, at: Any, by: Any, _reach: int, bytes_at: Any) -> int:
    return _quantised(at, by, count, bytes_at, 0, 255)


@inlined
def dequantised(like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    x, scale, zero, y = elements_at(at[0], like), float32_at(at[1]), elements_at(at[2], like), float32_at(at[3])
    if by[0] == 1 and by[1] == 0 and by[2] == 0 and by[3] == 1:
        one, shift = scale[0], np.int64(zero[0])
        for i in range(count):
            y[i] = np.float32(np.int64(x[i]) - shift) * one
        return 0
    for i in range(count):
        y[i * by[3]] = np.float32(np.int64(x[i * by[0]]) - np.int64(zero[i * by[2]])) * scale[i * by[1]]
    return 0
