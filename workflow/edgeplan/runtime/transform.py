"""Weights as in the ONNX file to weights as a step computes with them: normalisation folded, gates in oneDNN's order."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.steps import Step

Array = npt.NDArray[np.float32]
Raw = Mapping[str, Array]

#: ONNX orders an LSTM's gates input, output, forget, cell; oneDNN input, forget, cell, output.
_GATES = (0, 2, 3, 1)


def folded(step: Step, raw: Raw) -> tuple[Array, ...]:
    """The values of a step's weight slots, in order, row-major.

    Args:
        step: the step.
        raw: role -> values; those of `weight` may be overwritten.
    """
    if step.kind == "conv":
        return _conv(step, raw)
    if step.kind == "scale":
        scale = raw["bn_scale"] / np.sqrt(raw["bn_variance"] + np.float32(step.number("epsilon")))
        return scale, raw["bn_bias"] - raw["bn_mean"] * scale
    if step.kind == "fc":
        return _fc(step, raw)
    if step.kind == "lstm":
        return _lstm(step, raw)
    return tuple(raw.values())


def _conv(step: Step, raw: Raw) -> tuple[Array, ...]:
    weight = raw["weight"]
    if "bn_scale" not in raw:
        return (weight, raw["bias"]) if "bias" in raw else (weight,)
    scale = raw["bn_scale"] / np.sqrt(raw["bn_variance"] + np.float32(step.number("epsilon")))
    np.multiply(weight, scale[:, None, None, None], out=weight)
    bias = raw["bias"] - raw["bn_mean"] if "bias" in raw else -raw["bn_mean"]
    return weight, bias * scale + raw["bn_bias"]


def _fc(step: Step, raw: Raw) -> tuple[Array, ...]:
    weight, alpha, beta = raw["weight"], np.float32(step.number("alpha")), np.float32(step.number("beta"))
    if alpha != 1:
        np.multiply(weight, alpha, out=weight)
    if "bias" not in raw:
        return (weight,)
    return weight, raw["bias"].ravel() * beta if beta != 1 else raw["bias"].ravel()


def _lstm(step: Step, raw: Raw) -> tuple[Array, ...]:
    """From weight (D, 4H, I), recurrence (D, 4H, H), bias (D, 8H) to (D, gates, H, I), (D, gates, H, H), (D, gates, H)."""
    hidden = step.integer("hidden")

    def gates(values: Array) -> Array:
        split = values.reshape(values.shape[0], 4, hidden, *values.shape[2:])
        return np.ascontiguousarray(split[:, list(_GATES)])

    directions = raw["weight"].shape[0]
    bias = raw.get("bias", np.zeros((directions, 8 * hidden), np.float32))
    return gates(raw["weight"]), gates(raw["recurrence"]), gates(bias[:, : 4 * hidden] + bias[:, 4 * hidden :])
