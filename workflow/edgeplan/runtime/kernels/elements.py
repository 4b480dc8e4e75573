"""Kernels that compute a value from elements at one place, with ONNX's semantics of NaN, infinity and signs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from edgeplan.runtime.kernels.walking import (
    elements_at,
    inlined,
)

# mypy: disable-error-code="no-any-return"

# Of one element


@inlined
def rounded(x: Any) -> Any:
    return np.rint(x)


@inlined
def floor(x: Any) -> Any:
    return np.floor(x)


@inlined
def ceil(x: Any) -> Any:
    return np.ceil(x)


@inlined
def sign(x: Any) -> Any:
    return 1 if x > 0 else -1 if x < 0 else x if x != x else 0  # noqa: PLR0124  NaN is its own


@inlined
def absolute(x: Any) -> Any:
    return -x if x < 0 else x


@inlined
def negative(x: Any) -> Any:
    return -x


@inlined
def erf(x: Any) -> Any:
    return math.erf(x)


@inlined
def is_nan(x: Any) -> Any:
    return x != x  # noqa: PLR0124  that is what it means


@inlined
def is_positive_infinity(x: Any) -> Any:
    return x == math.inf


@inlined
def is_negative_infinity(x: Any) -> Any:
    return x == -math.inf


@inlined
def is_infinity(x: Any) -> Any:
    return abs(x) == math.inf


@inlined
def invert(x: Any) -> Any:
    return x == 0


@inlined
def bitwise_not(x: Any) -> Any:
    return ~x


def _of(function: Any) -> Callable[[Any], Any]:
    @inlined
    def element(x: Any) -> Any:
        return function(x)

    return element


#: Functions of the C library, by their names there.
FUNCTIONS = {
    name: _of(function)
    for name, function in {
        "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan,
        "sinh": np.sinh, "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    }.items()
}  # fmt: skip


# Of two elements. Integers divide as in C; by 0 they would end the process, and so would the lowest one by -1.


@inlined
def add(a: Any, b: Any) -> Any:
    return a + b


@inlined
def sub(a: Any, b: Any) -> Any:
    return a - b


@inlined
def mul(a: Any, b: Any) -> Any:
    return a * b


@inlined
def quotient(a: Any, b: Any) -> Any:
    if b == 0:
        return 0
    if b == -1:
        return -a
    whole = a // b
    return whole + 1 if whole < 0 and whole * b != a else whole


@inlined
def modulo(a: Any, b: Any) -> Any:
    """The sign is the divisor's."""
    return 0 if b in (0, -1) else a % b


@inlined
def remainder(a: Any, b: Any) -> Any:
    """The sign is the dividend's."""
    return 0 if b in (0, -1) else a - quotient(a, b) * b


@inlined
def float_remainder(a: Any, b: Any) -> Any:
    return np.fmod(a, b)


@inlined
def float_modulo(a: Any, b: Any) -> Any:
    return np.mod(a, b)


@inlined
def minimum(a: Any, b: Any) -> Any:
    return min(b, a)


@inlined
def maximum(a: Any, b: Any) -> Any:
    return max(b, a)


@inlined
def float_power(a: Any, b: Any) -> Any:
    return math.pow(a, b)


@inlined
def power(a: Any, b: Any) -> Any:
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
def bitwise_and(a: Any, b: Any) -> Any:
    return a & b


@inlined
def bitwise_or(a: Any, b: Any) -> Any:
    return a | b


@inlined
def bitwise_xor(a: Any, b: Any) -> Any:
    return a ^ b


@inlined
def both(a: Any, b: Any) -> Any:
    return a != 0 and b != 0


@inlined
def either(a: Any, b: Any) -> Any:
    return a != 0 or b != 0


@inlined
def one_alone(a: Any, b: Any) -> Any:
    return a != b


@inlined
def equal(a: Any, b: Any) -> Any:
    return a == b


@inlined
def greater(a: Any, b: Any) -> Any:
    return a > b


@inlined
def less(a: Any, b: Any) -> Any:
    return a < b


@inlined
def greater_or_equal(a: Any, b: Any) -> Any:
    return a >= b


@inlined
def less_or_equal(a: Any, b: Any) -> Any:
    return a <= b


# By an exponent of another type


@inlined
def raised(like: Any, count: int, at: Any, by: Any, _reach: int, exponents_at: Any) -> int:
    a, b, y = elements_at(at[0], like), exponents_at(at[1]), elements_at(at[2], like)
    for i in range(count):
        y[i * by[2]] = math.pow(float(a[i * by[0]]), float(b[i * by[1]]))
    return 0


# To another type: `like` is of what is read


@inlined
def cast(like: Any, count: int, at: Any, by: Any, _reach: int, written_at: Any) -> int:
    x, y = elements_at(at[0], like), written_at(at[1])
    for i in range(count):
        y[i * by[1]] = x[i * by[0]]
    return 0


@inlined
def cast_to_bool(like: Any, count: int, at: Any, by: Any, _reach: int, written_at: Any) -> int:
    x, y = elements_at(at[0], like), written_at(at[1])
    for i in range(count):
        y[i * by[1]] = x[i * by[0]] != 0
    return 0


@inlined
def cast_to_byte(like: Any, count: int, at: Any, by: Any, _reach: int, written_at: Any) -> int:
    """Numbers that no byte holds lose their higher bits, as in ONNX Runtime."""
    x, y = elements_at(at[0], like), written_at(at[1])
    for i in range(count):
        y[i * by[1]] = np.int64(x[i * by[0]])
    return 0
