"""These operators are convolutions and transposed convolutions."""

from __future__ import annotations

import math

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import AGAIN, HEAVY, OperatorSpec, Problem
from edgeplan.graph.operators.windows import check_window, inexact_window, of_volumes, window_form, window_settings
from edgeplan.graph.parts import Part, part
from edgeplan.graph.steps import Setting

_ROLES = ("W", "B")


def _kind(graph: Graph, op: Operator) -> str:
    groups = op.integer("group", 1)
    channels = graph.shape(op.inputs[0])[1]
    flat = "dwconv" if groups > 1 and groups == channels == graph.shape(op.outputs[0])[1] else "conv"
    return of_volumes(flat)(graph, op)


def _check(graph: Graph, op: Operator) -> Problem:
    if problem := check_window(graph, op):
        return problem
    channels, groups = graph.shape(op.inputs[0])[1], op.integer("group", 1)
    weight = graph.shape(op.weights[0])
    if len(weight) != len(graph.shape(op.inputs[0])) or weight[1] * groups != channels or weight[0] % groups:
        return f"with a weight {weight} for {channels} channels in {groups} group{'s' * (groups > 1)}", AGAIN
    return _weights(graph, op, weight[0])


def _check_transposed(graph: Graph, op: Operator) -> Problem:
    if problem := check_window(graph, op):
        return problem
    channels, groups = graph.shape(op.inputs[0])[1], op.integer("group", 1)
    weight = graph.shape(op.weights[0])
    if len(weight) != len(graph.shape(op.inputs[0])) or weight[0] != channels or channels % groups:
        return f"with a weight {weight} for {channels} channels in {groups} group{'s' * (groups > 1)}", AGAIN
    if len(graph.shape(op.outputs[0])) != len(weight):  # ONNX's inference leaves off axes that shrink
        return f"whose output_shape {op.integers('output_shape', ())} is smaller than its input", "export it with pads"
    return _weights(graph, op, weight[1] * groups)


def _weights(graph: Graph, op: Operator, channels: int) -> Problem:
    weight = graph.shape(op.weights[0])
    if weight[2:] != op.integers("kernel_shape", weight[2:]):
        return f"with a weight {weight} for a window {op.integers('kernel_shape', ())}", AGAIN
    if len(op.weights) > 1 and graph.shape(op.weights[1]) != (channels,):
        return f"with a bias {graph.shape(op.weights[1])} for {channels} channels", AGAIN
    return None


def _macs(graph: Graph, op: Operator) -> int:
    """(in / groups) x window for each output element."""
    return math.prod(graph.shape(op.weights[0])[1:]) * graph.tensors[op.outputs[0]].elements


def _macs_transposed(graph: Graph, op: Operator) -> int:
    """(out / groups) x window for each input element."""
    return math.prod(graph.shape(op.weights[0])[1:]) * graph.tensors[op.inputs[0]].elements


def _lower(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    settings = {"groups": op.integer("group", 1), **window_settings(op, shapes, shapes[op.weights[0]][2:])}
    return (part(op, "conv", ("weight", "bias"), settings),)


def _lower_transposed(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return the window of the convolution that it is the transpose of: from its output to its input."""
    kernel, out, size = shapes[op.weights[0]][2:], shapes[op.outputs[0]][2:], shapes[op.inputs[0]][2:]
    ones = (1,) * len(kernel)
    strides, dilations = op.integers("strides", ones), op.integers("dilations", ones)
    total = [(i - 1) * s + d * (k - 1) + 1 - o for i, s, d, k, o in zip(size, strides, dilations, kernel, out, strict=True)]
    before = op.integers("pads", (0,) * 2 * len(kernel))[: len(kernel)]
    padding = str(op.attributes.get("auto_pad", "NOTSET"))
    if "output_shape" in op.attributes or padding.startswith("SAME"):  # the padding follows from the output's size
        more = op.integers("output_padding", (0,) * len(kernel))
        pads = [max(0, t + a) for t, a in zip(total, more, strict=True)]
        before = tuple(pad // 2 if padding == "SAME_UPPER" else -(-pad // 2) for pad in pads)
    after = tuple(t - b for t, b in zip(total, before, strict=True))
    groups = op.integer("group", 1)
    settings: dict[str, Setting] = {"groups": groups, "kernel": kernel, "strides": strides, "dilations": dilations}
    return (part(op, "deconv", ("weight", "bias"), {**settings, "pads_before": before, "pads_after": after}),)


def _one_input(_graph: Graph, op: Operator) -> str:
    return "weights computed by the model" if len(op.inputs) != 1 else ""


SPECS = (
    OperatorSpec(
        ("Conv",), _kind, _lower, ("conv", "dwconv", "conv3d", "dwconv3d"), HEAVY,
        moves=True, form=window_form(_ROLES), check=_check, macs=_macs, lacks=_one_input, inexact=inexact_window,
    ),
    OperatorSpec(
        ("ConvTranspose",), of_volumes("deconv"), _lower_transposed, ("deconv", "deconv3d"), HEAVY,
        moves=True, form=window_form(_ROLES), check=_check_transposed, macs=_macs_transposed, lacks=_one_input,
    ),
)  # fmt: skip
