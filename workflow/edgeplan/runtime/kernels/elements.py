"""Kernels that compute a value from elements at one place, with ONNX's semantics of NaN, infinity and signs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from edgeplan.runtime.kernels.walking import (
    bool_at,
    elements_at,
    float32_at,
    inlined,
    int8_at,
    int32_at,
    int64_at,
    pair,
    probe,
    single,
    test,
    uint8_at,
    walk,
)

# mypy: disable-error-code="no-any-return"

# Of one element


@inlined
def _rounded(x: Any) -> Any:
    return np.rint(x)


@inlined
def _floor(x: Any) -> Any:
    return np.floor(x)


@inlined
def _ceil(x: Any) -> Any:
    return np.ceil(x)


@inlined
def _sign(x: Any) -> Any:
    return 1 if x > 0 else -1 if x < 0 else x if x != x else 0  # noqa: PLR0124  NaN is its own


@inlined
def _absolute(x: Any) -> Any:
    return -x if x < 0 else x


@inlined
def _negative(x: Any) -> Any:
    return -x


@inlined
def _erf(x: Any) -> Any:
    return math.erf(x)


@inlined
def _is_nan(x: Any) -> Any:
    return x != x  # noqa: PLR0124  that is what it means


@inlined
def _is_positive_infinity(x: Any) -> Any:
    return x == math.inf


@inlined
def _is_negative_infinity(x: Any) -> Any:
    return x == -math.inf


@inlined
def _is_infinity(x: Any) -> Any:
    return abs(x) == math.inf


@inlined
def _invert(x: Any) -> Any:
    return x == 0


def rounded(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, single, _rounded)


def floor(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, single, _floor)


def ceil(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, single, _ceil)


def sign(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, single, _sign)


def absolute(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, single, _absolute)


def negative(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, single, _negative)


def erf(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, single, _erf)


def is_nan(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, probe, _is_nan)


def is_infinity(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, probe, _is_infinity)


def is_positive_infinity(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, probe, _is_positive_infinity)


def is_negative_infinity(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, probe, _is_negative_infinity)


def invert(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, single, _invert)


# Of two elements. Integers divide as in C; by 0 they would end the process, and so would the lowest one by -1.


@inlined
def _add(a: Any, b: Any) -> Any:
    return a + b


@inlined
def _sub(a: Any, b: Any) -> Any:
    return a - b


@inlined
def _mul(a: Any, b: Any) -> Any:
    return a * b


@inlined
def _quotient(a: Any, b: Any) -> Any:
    if b == 0:
        return 0
    if b == -1:
        return -a
    whole = a // b
    return whole + 1 if whole < 0 and whole * b != a else whole


@inlined
def _modulo(a: Any, b: Any) -> Any:
    """The sign is the divisor's."""
    return 0 if b in (0, -1) else a % b


@inlined
def _remainder(a: Any, b: Any) -> Any:
    """The sign is the dividend's."""
    return 0 if b in (0, -1) else a - _quotient(a, b) * b


@inlined
def _float_remainder(a: Any, b: Any) -> Any:
    return np.fmod(a, b)


@inlined
def _float_modulo(a: Any, b: Any) -> Any:
    return np.mod(a, b)


@inlined
def _minimum(a: Any, b: Any) -> Any:
    return min(b, a)


@inlined
def _maximum(a: Any, b: Any) -> Any:
    return max(b, a)


@inlined
def _float_power(a: Any, b: Any) -> Any:
    return math.pow(a, b)


@inlined
def _power(a: Any, b: Any) -> Any:
    if b < 0:
        return a if a == 1 or (a == -1 and b % 2 == 1) else 1 if a == -1 else 0
    found, factor, left = np.int64(1), np.int64(a), b
    while left > 0:
        if left % 2 == 1:
            found *= factor
        factor *= factor
        left //= 2
    return found


@inlined
def _both(a: Any, b: Any) -> Any:
    return a != 0 and b != 0


@inlined
def _either(a: Any, b: Any) -> Any:
    return a != 0 or b != 0


@inlined
def _one_alone(a: Any, b: Any) -> Any:
    return a != b


@inlined
def _equal(a: Any, b: Any) -> Any:
    return a == b


@inlined
def _greater(a: Any, b: Any) -> Any:
    return a > b


@inlined
def _less(a: Any, b: Any) -> Any:
    return a < b


@inlined
def _greater_or_equal(a: Any, b: Any) -> Any:
    return a >= b


@inlined
def _less_or_equal(a: Any, b: Any) -> Any:
    return a <= b


def add(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _add)


def sub(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _sub)


def mul(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _mul)


def quotient(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _quotient)


def modulo(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _modulo)


def remainder(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _remainder)


def float_remainder(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _float_remainder)


def float_modulo(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _float_modulo)


def minimum(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _minimum)


def maximum(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _maximum)


def float_power(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _float_power)


def power(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _power)


def both(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _both)


def either(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _either)


def one_alone(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, pair, _one_alone)


def equal(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, test, _equal)


def greater(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, test, _greater)


def less(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, test, _less)


def greater_or_equal(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, test, _greater_or_equal)


def less_or_equal(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, test, _less_or_equal)


# By an exponent of another type


@inlined
def _raised(like: Any, count: int, at: Any, by: Any, _reach: int, exponents_at: Any) -> int:
    a, b, y = elements_at(at[0], like), exponents_at(at[1]), elements_at(at[2], like)
    for i in range(count):
        y[i * by[2]] = math.pow(float(a[i * by[0]]), float(b[i * by[1]]))
    return 0


def power_by_float32(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _raised, float32_at)


def power_by_int32(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _raised, int32_at)


def power_by_int64(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _raised, int64_at)


# To another type: `like` is of what is read


@inlined
def _cast(like: Any, count: int, at: Any, by: Any, _reach: int, written_at: Any) -> int:
    x, y = elements_at(at[0], like), written_at(at[1])
    for i in range(count):
        y[i * by[1]] = x[i * by[0]]
    return 0


@inlined
def _cast_to_bool(like: Any, count: int, at: Any, by: Any, _reach: int, written_at: Any) -> int:
    x, y = elements_at(at[0], like), written_at(at[1])
    for i in range(count):
        y[i * by[1]] = x[i * by[0]] != 0
    return 0


def to_float32(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _cast, float32_at)


def to_int32(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _cast, int32_at)


def to_int64(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _cast, int64_at)


@inlined
def _cast_to_byte(like: Any, count: int, at: Any, by: Any, _reach: int, written_at: Any) -> int:
    """Numbers that no byte holds lose their higher bits, as in ONNX Runtime."""
    x, y = elements_at(at[0], like), written_at(at[1])
    for i in range(count):
        y[i * by[1]] = np.int64(x[i * by[0]])
    return 0


def to_int8(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _cast_to_byte, int8_at)


def to_uint8(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _cast_to_byte, uint8_at)


def to_bool(block: Any, like: Any, _count: int, at: Any) -> int:
    return walk(block, like, at, _cast_to_bool, bool_at)
