"""Steps from bytes to bytes are told numbers that follow from scales and zero points: factors and shifts, or a table.

Roles of their weights are `scale_0`, `zero_0` and so on, of what they read in order, and `scale_written`, `zero_written`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgeplan.graph.steps import Step
from edgeplan.runtime import constants

_Values = npt.NDArray[Any]
_HIGHEST_BIT = 128
_LAST = constants.BYTE_VALUES - 1


class _Side(NamedTuple):
    """A side is read or written: bytes less a zero point, times a scale; signed ones are made unsigned by a flipped bit."""

    scale: float
    zero: float
    flip: int


def _side(raw: Mapping[str, npt.NDArray[Any]], name: str) -> _Side:
    zero = raw[f"zero_{name}"]
    flip = _HIGHEST_BIT if zero.dtype == np.int8 else 0
    return _Side(float(raw[f"scale_{name}"].ravel()[0]), int(zero.ravel()[0]) + flip, flip)


def line_constants(step: Step, raw: Mapping[str, npt.NDArray[Any]]) -> tuple[npt.NDArray[Any], ...]:
    """Return the table or the numbers of a step from bytes to bytes.

    Args:
        step: the step.
        raw: role -> values.
    """
    form = step.text("form")
    return (_table(step, raw) if form == "table" else _numbers(step, form, raw),)


def _numbers(step: Step, form: str, raw: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    written, count = _side(raw, "written"), step.integer("sources")
    sides = [_side(raw, str(place)) for place in range(count)]
    bounds = [_bounded(value, written) for value in (step.number("low"), step.number("high"))]
    if form == "add":
        (a, b), sign = sides, step.integer("sign")
        first, second = a.scale / written.scale, sign * b.scale / written.scale
        found = [[first, second, 0, written.zero - a.zero * first - b.zero * second, *bounds, a.flip, b.flip, written.flip]]
    elif form == "mul":
        a, b = sides
        product = a.scale * b.scale / written.scale
        found = [[-a.zero, -b.zero, product, written.zero, *bounds, a.flip, b.flip, written.flip]]
    else:
        factors = [side.scale / written.scale for side in sides]
        share = step.integer("size") if form == "mean" else 1
        found = [
            [factor / share, 0, 0, written.zero - side.zero * factor, *bounds, side.flip, 0, written.flip]
            for side, factor in zip(sides, factors, strict=True)
        ]
    return np.array(found, np.float32)


def _bounded(value: float, side: _Side) -> float:
    """Return the byte of a number, as an unsigned one."""
    return float(np.clip(np.rint(np.clip(value / side.scale, -1e9, 1e9)) + side.zero, 0, _LAST))


# Tables


def _table(step: Step, raw: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.uint8]:
    """Return the byte that is written for each byte: what the `terms` of a step, in reverse Polish notation, make of it."""
    read, written = _side(raw, "0"), _side(raw, "written")
    given = np.arange(constants.BYTE_VALUES) ^ read.flip
    stack: list[_Values] = []
    numbers = (given - read.zero) * read.scale
    with np.errstate(all="ignore"):
        for term in step.text("terms").split():
            name, *values = term.split(",")
            if name == "x":
                stack.append(numbers)
            elif name == "round":
                side = _side(raw, values[0])
                stack.append((_rounded(stack.pop(), side) - side.zero) * side.scale)
            elif name in OF_TWO:
                b, a = stack.pop(), stack.pop()
                stack.append(OF_TWO[name](a, b))
            else:
                stack.append(_ELTWISE[name](stack.pop(), *map(float, values)))
        return (_rounded(stack.pop(), written) ^ written.flip).astype(np.uint8)


def _rounded(values: _Values, side: _Side) -> npt.NDArray[np.int64]:
    """Return unsigned bytes of numbers, half-way cases rounded to even as in single precision; NaN becomes the lowest."""
    apart = np.rint((values.astype(np.float32) / np.float32(side.scale)).astype(np.float64)) + side.zero
    return np.nan_to_num(apart, nan=0.0).clip(0, _LAST).astype(np.int64)


def _each(function: Callable[[float], float]) -> Callable[..., _Values]:
    return lambda x, *_: np.array([function(value) for value in x])


def _logistic(x: _Values, *_: float) -> _Values:
    return np.asarray(1 / (1 + np.exp(-x)))


def _softplus(x: _Values) -> _Values:
    return np.logaddexp(0, x)


#: Operations of two operands, by what ONNX calls them in lower case.
OF_TWO: Mapping[str, Callable[[_Values, _Values], _Values]] = MappingProxyType(
    {"add": np.add, "mul": np.multiply, "sub": np.subtract}
)
#: oneDNN's element-wise operations (`graph.operators.elementwise`) of numbers and two parameters.
_ELTWISE: Mapping[str, Callable[..., _Values]] = MappingProxyType(
    {
        "relu": lambda x, a, _b: np.where(x > 0, x, x * a),
        "clip": lambda x, a, b: x.clip(a, b),
        "hardswish": lambda x, a, b: x * (x * a + b).clip(0, 1),
        "hardsigmoid": lambda x, a, b: (x * a + b).clip(0, 1),
        "logistic": _logistic,
        "tanh": lambda x, *_: np.tanh(x),
        "elu": lambda x, a, _b: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
        "soft_relu": lambda x, *_: _softplus(x),
        "mish": lambda x, *_: x * np.tanh(_softplus(x)),
        "gelu_erf": lambda x, *_: x * _each(math.erf)(x / math.sqrt(2)) / 2 + x / 2,
        "gelu_tanh": lambda x, *_: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "abs": lambda x, *_: np.abs(x),
        "square": lambda x, *_: x * x,
        "linear": lambda x, a, b: a * x + b,
        "exp": lambda x, *_: np.exp(x),
    }
)
#: What a table can be made of.
TABLED = frozenset(_ELTWISE)
