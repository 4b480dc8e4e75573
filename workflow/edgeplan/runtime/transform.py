"""Weights as in the ONNX file to weights as a step computes with them: normalisation folded, gates in oneDNN's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.graph.axis_matrices import axis_matrix, tables
from edgeplan.graph.shapes import FLOAT16, FLOAT32
from edgeplan.graph.steps import INT8_FC, INT8_KINDS, INT8_LINE, SIDES, Step
from edgeplan.runtime.byte_numbers import line_constants

Array = npt.NDArray[np.float32]
Raw = Mapping[str, Array]

#: Where among ONNX's gates oneDNN's are: an LSTM's are input, output, forget, cell there and input, forget, cell, output here.
_GATES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {"lstm": (0, 2, 3, 1), "gru": (0, 1, 2), "lbr_gru": (0, 1, 2), "rnn": (0,)}
)
#: Ends the role of scales, which are read with the bytes that they are of.
SCALE = ":scale"
_PEEPHOLES = (0, 2, 1)  # input, output, forget in ONNX; input, forget, output


def values_of(data: npt.NDArray[np.uint8], stride: int, dtype: str = "float32", rows: tuple[int, ...] = ()) -> npt.NDArray[Any]:
    """Bytes as values of a type, `stride` bytes from one to the next; copied unless they are neighbours.

    Args:
        data: the bytes, from the first value to the last.
        stride: from one value to the next.
        dtype: of the values.
        rows: of values in pieces: how many a piece has, and how many lie between the beginnings of two.
    """
    if rows:
        row, apart = rows
        count = (len(data) - 1) // (stride * apart) + 1
        return np.ndarray((count, row), dtype, data, strides=(stride * apart, stride)).reshape(-1)
    if stride == np.dtype(dtype).itemsize:
        return data.view(dtype)
    return np.ndarray(-(-len(data) // stride), dtype, data, strides=(stride,)).copy()


def widened(found: Mapping[str, npt.NDArray[Any]], axes: Mapping[str, int]) -> dict[str, npt.NDArray[Any]]:
    """Return weights as numbers of float32, where they are stored in fewer bytes: halves, and bytes times their scales.

    Args:
        found: role -> values as the file holds them; of scales the role of what they are of, and `SCALE`.
        axes: role -> the axis that several scales are along.
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
    """The values of a step's weight slots, in order, row-major.

    Args:
        step: the step.
        raw: role -> values; those of `weight` may be overwritten.
    """
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
