"""Weights as in the ONNX file to weights as a step computes with them: normalisation folded, gates in oneDNN's order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.graph.axis_matrices import axis_matrix
from edgeplan.graph.steps import Step

Array = npt.NDArray[np.float32]
Raw = Mapping[str, Array]

#: ONNX orders an LSTM's gates input, output, forget, cell; oneDNN input, forget, cell, output.
_GATES = (0, 2, 3, 1)


def values_of(data: npt.NDArray[np.uint8], stride: int, dtype: str = "float32") -> npt.NDArray[Any]:
    """Bytes as values of a type, `stride` bytes from one to the next; copied unless they are neighbours.

    Raises:
        ValueError: neighbours are not whole numbers.
    """
    if stride == np.dtype(dtype).itemsize:
        return data.view(dtype)
    return np.ndarray(-(-len(data) // stride), dtype, data, strides=(stride,)).copy()


def folded(step: Step, raw: Raw) -> tuple[Array, ...]:
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


def _lstm(step: Step, raw: Raw) -> tuple[Array, ...]:
    """From weight (D, 4H, I), recurrence (D, 4H, H), bias (D, 8H) to (D, gates, H, I), (D, gates, H, H), (D, gates, H)."""
    hidden = step.integer("hidden")

    def gates(values: Array) -> Array:
        split = values.reshape(values.shape[0], 4, hidden, *values.shape[2:])
        return np.ascontiguousarray(split[:, list(_GATES)])

    directions = raw["weight"].shape[0]
    bias = raw.get("bias", np.zeros((directions, 8 * hidden), np.float32))
    return gates(raw["weight"]), gates(raw["recurrence"]), gates(bias[:, : 4 * hidden] + bias[:, 4 * hidden :])


_FOLDED: Mapping[str, Callable[[Step, Raw], tuple[Array, ...]]] = MappingProxyType(
    {
        "conv": _conv,
        "deconv": _deconv,
        "scale": _scale,
        "fc": _fc,
        "lstm": _lstm,
        "mix": _mix,
        "binary": _binary,
        "concat": _concat,
    }
)
