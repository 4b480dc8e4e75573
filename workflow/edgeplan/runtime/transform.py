"""Weights as in the ONNX file to weights as a step computes with them: normalisation folded, gates in oneDNN's order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from edgeplan.graph.axis_matrices import axis_matrix, tables
from edgeplan.graph.shapes import FLOAT16, FLOAT32
from edgeplan.graph.steps import INT8_FC, INT8_KINDS, INT8_LINE, SIDES, Step
from edgeplan.runtime import constants

Array = npt.NDArray[np.float32]
Raw = Mapping[str, Array]

#: Where among ONNX's gates oneDNN's are: an LSTM's are input, output, forget, cell there and input, forget, cell, output here.
_GATES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"lstm": (0, 2, 3, 1), "gru": (0, 1, 2), "lbr_gru": (0, 1, 2), "rnn": (0,)}
)
#: Ends the role of scales, which are read with the bytes that they are of.
SCALE = ":scale"
_PEEPHOLES = (0, 2, 1)  # input, output, forget in ONNX; input, forget, output


def values_of(data: npt.NDArray[np.uint8], stride: int, dtype: str = "float32") -> npt.NDArray[Any]:
    """Bytes as values of a type, `stride` bytes from one to the next; copied unless they are neighbours."""
    if stride == np.dtype(dtype).itemsize:
        return data.view(dtype)
    return np.ndarray(-(-len(data) // stride), dtype, data, strides=(stride,)).copy()


def widened(found: Mapping[str, npt.NDArray[Any]], axes: Mapping[str, int]) -> dict[str, npt.NDArray[Any]]:
    """Return weights as numbers of float32, where they are stored in fewer bytes: halves, and bytes times their scales.

    Values are by role, as the file holds them, scales by the role of what they are of and `SCALE`; `axes` are those that
    several scales are along.
    """
    numbers: dict[str, npt.NDArray[Any]] = {}
    for role, values in found.items():
        if role.endswith(SCALE):
            continue
        scale = found.get(role + SCALE)
        if scale is not None:
            along = (-1 if place == axes[role] else 1 for place in range(values.ndim))
            numbers[role] = np.multiply(values, scale.reshape(tuple(along) if scale.size > 1 else ()), dtype=np.float32)
        else:
            numbers[role] = values.astype(FLOAT32) if values.dtype == FLOAT16 else values
    return numbers


def folded(step: Step, raw: Raw) -> tuple[npt.NDArray[Any], ...]:
    """The values of a step's weight slots, in order, row-major; those of `weight` may be overwritten."""
    return _FOLDED[step.kind](step, raw) if step.kind in _FOLDED else tuple(raw.values())


def _scale(step: Step, raw: Raw) -> tuple[Array, ...]:
    scale = raw["bn_scale"] / np.sqrt(raw["bn_variance"] + np.float32(step.number("epsilon")))
    return scale, raw["bn_bias"] - raw["bn_mean"] * scale


def _mix(step: Step, _raw: Raw) -> tuple[Array, ...]:
    matrix = axis_matrix(step)
    return (matrix if step.text("side") == "left" else np.ascontiguousarray(matrix.T),)


def _compiled(step: Step, raw: Raw) -> tuple[npt.NDArray[Any], ...]:
    given = (raw[role] for role in sorted(raw, key=lambda role: int(role.removeprefix("operand_"))))
    return (*given, *(tables(step) if "form" in step.settings else ()))


def _binary(step: Step, raw: Raw) -> tuple[Array, ...]:
    return (raw["operand"] * np.float32(step.number("beta")),) if "beta" in step.settings else (raw["operand"],)


def _concat(_step: Step, raw: Raw) -> tuple[Array, ...]:
    return tuple(raw[role] for role in sorted(raw, key=lambda role: int(role.removeprefix("part_"))))


def _conv(step: Step, raw: Raw) -> tuple[Array, ...]:
    weight, *bias = _normalised(step, raw)
    if "factor" in raw:
        factor = raw["factor"].ravel()
        np.multiply(weight, factor.reshape(-1, *[1] * (weight.ndim - 1)), out=weight)
        bias = [values * factor for values in bias]
    return _shifted(weight, bias, raw, weight.shape[0])


def _deconv(step: Step, raw: Raw) -> tuple[Array, ...]:
    weight = raw["weight"]
    return _shifted(weight, [raw["bias"]] if "bias" in raw else [], raw, weight.shape[1] * step.integer("groups"))


def _shifted(weight: Array, bias: list[Array], raw: Raw, channels: int) -> tuple[Array, ...]:
    """With a summand behind in the bias, which one value may stand for."""
    if "summand" in raw:
        given = bias[0] if bias else np.float32(0)
        bias = [np.ascontiguousarray(np.broadcast_to(given + raw["summand"].ravel(), (channels,)))]
    return (weight, *bias)


def _normalised(step: Step, raw: Raw) -> tuple[Array, ...]:
    weight = raw["weight"]
    if "bn_scale" not in raw:
        return (weight, raw["bias"]) if "bias" in raw else (weight,)
    scale = raw["bn_scale"] / np.sqrt(raw["bn_variance"] + np.float32(step.number("epsilon")))
    np.multiply(weight, scale.reshape(-1, *[1] * (weight.ndim - 1)), out=weight)
    bias = raw["bias"] - raw["bn_mean"] if "bias" in raw else -raw["bn_mean"]
    return weight, bias * scale + raw["bn_bias"]


def _fc(step: Step, raw: Raw) -> tuple[Array, ...]:
    weight, alpha, beta = raw["weight"], np.float32(step.number("alpha")), np.float32(step.number("beta"))
    if alpha != 1:
        np.multiply(weight, alpha, out=weight)
    if "bias" not in raw:
        return (weight,)
    columns = weight.shape[0 if step.integer("transposed") else 1]
    bias = np.ascontiguousarray(np.broadcast_to(raw["bias"].ravel(), (columns,)))  # one value may stand for all
    return weight, bias * beta if beta != 1 else bias


def _in_eight_bits(step: Step, raw: Raw) -> tuple[npt.NDArray[Any], ...]:
    """Return values in the order of a step's slots; the library takes zero points as integers of 32 bits."""
    weight = raw["weight"]
    channels = weight.shape[1 if step.kind == INT8_FC and not step.integer("transposed") else 0]
    bias = [np.ascontiguousarray(np.broadcast_to(raw["bias"].ravel(), (channels,)))] if "bias" in raw else []
    sides = [side for side in SIDES if f"{side}_scale" in raw]
    scales = [raw[f"{side}_scale"].ravel() for side in (*sides, "weight")]
    return (weight, *bias, *scales, *(raw[f"{side}_zero"].ravel().astype(np.int32) for side in sides))


def _recurrent(step: Step, raw: Raw) -> tuple[Array, ...]:
    """From weight (D, G H, I), recurrence (D, G H, H), bias (D, 2 G H) to (D, gates, H, I), (D, gates, H, H), (D, gates, H).

    Peepholes (D, 3 H) become (D, 3, H); states stay. A GRU that multiplies before it resets has a fourth bias, the product's.
    """
    hidden, order = step.integer("hidden"), _GATES[step.kind]

    def gates(values: Array, order: tuple[int, ...] = order) -> Array:
        split = values.reshape(values.shape[0], len(order), hidden, *values.shape[2:])
        return np.ascontiguousarray(split[:, list(order)])

    directions, rows = raw["weight"].shape[0], len(order) * hidden
    bias = raw.get("bias", np.zeros((directions, 2 * rows), np.float32))
    first, second = bias[:, :rows], bias[:, rows:]
    if step.kind == "lbr_gru":
        apart = 2 * hidden
        joined = np.concatenate([first[:, :apart] + second[:, :apart], first[:, apart:], second[:, apart:]], axis=1)
        summed = np.ascontiguousarray(joined.reshape(directions, 4, hidden))
    else:
        summed = gates(first + second)
    peepholes = (gates(raw["peepholes"], _PEEPHOLES),) if "peepholes" in raw else ()
    states = (raw[role] for role in ("state_h", "state_c") if role in raw)
    return (gates(raw["weight"]), gates(raw["recurrence"]), summed, *peepholes, *states)


def _in_order(*roles: str) -> Callable[[Step, Raw], tuple[Array, ...]]:
    """As they are; files hold them in any order."""
    return lambda _step, raw: tuple(raw[role] for role in roles if role in raw)


# Numbers of steps from bytes to bytes follow from scales and zero points: factors and shifts, or a table. Roles of their
# weights are `scale_0`, `zero_0` and so on, of what they read in order, and `scale_written`, `zero_written`.

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
    """Return the table or the numbers of a step from bytes to bytes."""
    return (_table(step, raw) if step.text("form") == "table" else _numbers(step, raw),)


def _numbers(step: Step, raw: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[np.float32]:
    form, written, count = step.text("form"), _side(raw, "written"), step.integer("sources")
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
    stack: list[npt.NDArray[Any]] = []
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


def _rounded(values: npt.NDArray[Any], side: _Side) -> npt.NDArray[np.int64]:
    """Return unsigned bytes of numbers, half-way cases rounded to even as in single precision; NaN becomes the lowest."""
    apart = np.rint((values.astype(np.float32) / np.float32(side.scale)).astype(np.float64)) + side.zero
    return np.nan_to_num(apart, nan=0.0).clip(0, _LAST).astype(np.int64)


#: Operations of two operands, by what ONNX calls them in lower case.
OF_TWO: Mapping[str, Callable[[npt.NDArray[Any], npt.NDArray[Any]], npt.NDArray[Any]]] = MappingProxyType(
    {"add": np.add, "mul": np.multiply, "sub": np.subtract}
)
#: oneDNN's element-wise operations (`graph.operators.elementwise`) of numbers and two parameters.
_ELTWISE: Mapping[str, Callable[..., npt.NDArray[Any]]] = MappingProxyType(
    {
        "relu": lambda x, a, _b: np.where(x > 0, x, x * a),
        "clip": lambda x, a, b: x.clip(a, b),
        "hardswish": lambda x, a, b: x * (x * a + b).clip(0, 1),
        "hardsigmoid": lambda x, a, b: (x * a + b).clip(0, 1),
        "logistic": lambda x, *_: 1 / (1 + np.exp(-x)),
        "tanh": lambda x, *_: np.tanh(x),
        "elu": lambda x, a, _b: np.where(x > 0, x, a * np.expm1(np.minimum(x, 0))),
        "soft_relu": lambda x, *_: np.logaddexp(0, x),
        "mish": lambda x, *_: x * np.tanh(np.logaddexp(0, x)),
        "gelu_erf": lambda x, *_: x * np.array([math.erf(value) for value in x / math.sqrt(2)]) / 2 + x / 2,
        "gelu_tanh": lambda x, *_: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        "abs": lambda x, *_: np.abs(x),
        "square": lambda x, *_: x * x,
        "linear": lambda x, a, b: a * x + b,
        "exp": lambda x, *_: np.exp(x),
    }
)
#: What a table can be made of.
TABLED = frozenset(_ELTWISE)


_FOLDED: Mapping[str, Callable[[Step, Raw], tuple[npt.NDArray[Any], ...]]] = MappingProxyType(
    {
        "conv": _conv,
        "scale": _scale,
        "fc": _fc,
        "mix": _mix,
        "compiled": _compiled,
        "binary": _binary,
        "concat": _concat,
        "deconv": _deconv,
        "layer_norm": _in_order("scale", "shift"),
        "constant": _in_order("value"),
        **dict.fromkeys(INT8_KINDS, _in_eight_bits),
        INT8_LINE: line_constants,
        **dict.fromkeys(_GATES, _recurrent),
    }
)
