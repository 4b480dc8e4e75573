"""Kernels between single and half precision: float16 and bfloat16 are moved as bits, and rounded half to even.

Numba knows neither type on processors, so numbers are put together of their signs, exponents and fractions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeplan.runtime.kernels.walking import float32_at, inlined, int32_at, uint16_at

# mypy: disable-error-code="no-any-return"

_INFINITY = 0x7F800000  # bits of float32 without the sign
_TOO_LARGE = 0x477FF000  # 65520, from where on float16 is infinite
_LEAST_NORMAL = 0x38800000  # 2^-14, of float16
_HALF_INFINITY, _HALF_NAN = 0x7C00, 0x7E00
_EXPONENTS_APART = 112  # of the biases of both
_SUBNORMAL = np.float32(2.0**-24)  # what the last bit of a subnormal float16 counts


@inlined
def _bits(address: Any, place: int) -> Any:
    """The sign, and all other bits, of a number of 32."""
    return np.int64(int32_at(address)[place]) & 0xFFFFFFFF


@inlined
def to_bfloat16(_like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    y = uint16_at(at[1])
    for i in range(count):
        bits = _bits(at[0], i * by[0])
        if bits & 0x7FFFFFFF > _INFINITY:
            y[i * by[1]] = (bits >> 16) | 0x40
        else:
            y[i * by[1]] = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return 0


@inlined
def to_float16(_like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    x, y = float32_at(at[0]), uint16_at(at[1])
    for i in range(count):
        bits = _bits(at[0], i * by[0])
        sign, size = bits >> 16 & 0x8000, bits & 0x7FFFFFFF
        if size > _INFINITY:
            half = _HALF_NAN
        elif size >= _TOO_LARGE:
            half = _HALF_INFINITY
        elif size < _LEAST_NORMAL:
            half = int(np.rint(np.abs(x[i * by[0]]) / _SUBNORMAL))
        else:
            half = (size - (_EXPONENTS_APART << 23) + 0xFFF + (size >> 13 & 1)) >> 13
        y[i * by[1]] = sign | half
    return 0


@inlined
def of_bfloat16(_like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    x, y = uint16_at(at[0]), int32_at(at[1])
    for i in range(count):
        y[i * by[1]] = np.int64(x[i * by[0]]) << 16
    return 0


@inlined
def of_float16(_like: Any, count: int, at: Any, by: Any, _reach: int, _function: Any) -> int:
    x, y, bits = uint16_at(at[0]), float32_at(at[1]), int32_at(at[1])
    for i in range(count):
        half = int(x[i * by[0]])
        sign, exponent, fraction = half >> 15, half >> 10 & 0x1F, half & 0x3FF
        if exponent == 0:
            y[i * by[1]] = (-_SUBNORMAL if sign else _SUBNORMAL) * np.float32(fraction)
        else:
            exponent = 0xFF if exponent == 0x1F else exponent + _EXPONENTS_APART
            bits[i * by[1]] = sign << 31 | exponent << 23 | fraction << 13
    return 0
