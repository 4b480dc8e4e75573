"""These operators are normalisations and softmax."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import (
    AGAIN,
    ELSEWHERE,
    PAIR,
    WINDOW,
    OperatorSpec,
    Problem,
    attributes_of,
    axis_of,
    refuse,
    require_weights,
)
from edgeplan.graph.parts import Chain, Part, part
from edgeplan.graph.steps import Setting

if TYPE_CHECKING:
    import onnx

_MATRIX, _FOUR = 2, 4
_STATISTICS = ("scale", "B", "mean", "variance")


def _norm_form(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], read: AbstractSet[str], source: str
) -> onnx.NodeProto:
    attributes = attributes_of(node)
    if attributes.get("training_mode", 0) or len(list(filter(None, node.output))) > 1:
        refuse(node, source, "in training mode", "export the model for inference")
    if not attributes.get("spatial", 1):
        refuse(node, source, "of each pixel for itself", "export with opset 13 or later")
    return require_weights(_STATISTICS)(node, constants, read, source)


def _check_channels(graph: Graph, op: Operator) -> Problem:
    channels = graph.shape(op.inputs[0])[1:2]
    odd = [graph.shape(name) for name in op.weights if graph.shape(name) != channels]
    return (f"with a weight {odd[0]} for {channels} channels", AGAIN) if odd else None


def _lacks_norm(graph: Graph, op: Operator) -> str:
    if len(op.weights) != len(_STATISTICS):
        return "statistics computed by the model"
    return "" if len(graph.shape(op.inputs[0])) > 1 else "an activation without channels"


def _scale(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Scale examples of one pixel as a matrix: oneDNN 3.2 takes a value for each channel there for one for each example."""
    roles, settings = ("bn_scale", "bn_bias", "bn_mean", "bn_variance"), {"epsilon": op.number("epsilon", 1e-5)}
    shape = shapes[op.inputs[0]]
    if len(shape) == _MATRIX or shape[0] == 1 or math.prod(shape[2:]) > 1:
        return (part(op, "scale", roles, settings),)
    chain = Chain(op, shapes)
    weights = dict(zip(roles, op.weights, strict=True))
    return chain.finished(chain.step("scale", [chain.reshaped(op.inputs[0], shape[:2])], shape[:2], settings, weights))


def _check_lrn(_graph: Graph, op: Operator) -> Problem:
    return None if op.integer("size", 0) > 0 else (f"over {op.integer('size', 0)} channels", AGAIN)


def _lacks_lrn(graph: Graph, op: Operator) -> str:
    return "" if len(graph.shape(op.inputs[0])) == _FOUR else "only 4-D activations"


def _inexact_lrn(_graph: Graph, op: Operator) -> Problem:
    return None if op.integer("size", 1) % 2 else ("over an even number of channels", ELSEWHERE)


def _lrn(_graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    settings: dict[str, Setting] = {"size": op.integer("size", 1)}
    for key, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)):
        settings[key] = op.number(key, default)
    return (part(op, "lrn", (), settings),)


def _softmax(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    settings: dict[str, Setting] = {"axis": axis_of(op, len(shapes[op.inputs[0]]), -1)}
    if op.op_type == "LogSoftmax":
        settings["algorithm"] = "log"
    return (part(op, "softmax", (), settings),)


def _layer_form(
    node: onnx.NodeProto, constants: Mapping[str, onnx.TensorProto], read: AbstractSet[str], source: str
) -> onnx.NodeProto:
    """The mean and the inverse deviation are written where something reads either of them."""
    given = [name or f"{node.name}:{role}" for name, role in zip(node.output, ("Y", "Mean", "InvStdDev"), strict=False)]
    needed = max((place for place, name in enumerate(given) if name in read), default=0)
    del node.output[:]
    node.output.extend(given[: needed + 1])
    return require_weights(("Scale", "B"))(node, constants, read, source)


def _check_layer(graph: Graph, op: Operator) -> Problem:
    shape = graph.shape(op.inputs[0])
    inner = shape[axis_of(op, len(shape), -1) :]
    odd = [graph.shape(name) for name in op.weights if math.prod(graph.shape(name)) != math.prod(inner)]
    return (f"with a weight {odd[0]} over axes of {inner}", AGAIN) if odd else None


def _layer(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Over all axes from one on, as one."""
    chain, shape = Chain(op, shapes), shapes[op.inputs[0]]
    axis = axis_of(op, len(shape), -1)
    flat = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    weights = dict(zip(("scale", "shift"), op.weights, strict=False))
    settings: dict[str, Setting] = {"epsilon": op.number("epsilon", 1e-5)}
    parts = chain.finished(chain.step("layer_norm", [chain.reshaped(op.inputs[0], flat)], flat, settings, weights))
    for place in range(1, len(op.outputs)):
        statistic = Chain(op, shapes, place)
        rows = statistic.reshaped(op.inputs[0], flat)
        found = statistic.mixed(rows, 1, 1, {"form": "mean"})
        if place > 1:  # the inverse of the deviation from that mean
            apart = statistic.step("binary", [rows, found], flat, {"algorithm": "sub"})
            variance = statistic.mixed(statistic.eltwise(apart, "square"), 1, 1, {"form": "mean"})
            found = statistic.eltwise(statistic.linear(variance, 1.0, op.number("epsilon", 1e-5)), "pow", 1.0, -0.5)
        parts += statistic.finished(found)
    return parts


def _by_root_mean_square(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """X / sqrt(mean(x^2) + epsilon), over all axes from one on as one; then a scale."""
    chain, shape = Chain(op, shapes), shapes[op.inputs[0]]
    axis = axis_of(op, len(shape), -1)
    flat = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    rows = chain.reshaped(op.inputs[0], flat)
    mean = chain.mixed(chain.eltwise(rows, "square"), 1, 1, {"form": "mean"})
    inverse = chain.eltwise(chain.linear(mean, 1.0, op.number("epsilon", 1e-5)), "pow", 1.0, -0.5)
    found = chain.step("binary", [rows, inverse], flat, {"algorithm": "mul"})
    scale: dict[str, Setting] = {"algorithm": "mul", "shape": (1, flat[1])}
    return chain.finished(chain.step("binary", [found], flat, scale, {"operand": op.weights[0]}))


def _groups(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Every channel for itself, or groups of them: rows that are normalised, then a scale and a shift for each channel."""
    chain, shape = Chain(op, shapes), shapes[op.inputs[0]]
    channels = shape[1]
    groups = channels if op.op_type == "InstanceNormalization" else op.integer("num_groups", 1)
    flat = (shape[0] * groups, math.prod(shape) // (shape[0] * groups))
    epsilon: dict[str, Setting] = {"epsilon": op.number("epsilon", 1e-5)}
    found = chain.step("layer_norm", [chain.reshaped(op.inputs[0], flat)], flat, epsilon)
    found = chain.reshaped(found, shape)
    for algorithm, weight in zip(("mul", "add"), op.weights, strict=True):
        by_channel: dict[str, Setting] = {"algorithm": algorithm, "shape": (1, channels, *[1] * (len(shape) - 2))}
        found = chain.step("binary", [found], shape, by_channel, {"operand": weight})
    return chain.finished(found)


def _check_groups(graph: Graph, op: Operator) -> Problem:
    shape = graph.shape(op.inputs[0])
    if len(shape) < 3 or shape[1] % op.integer("num_groups", 1):  # batch, channels, at least one more
        return f"of an input {shape} in {op.integer('num_groups', 1)} groups", AGAIN
    return _check_channels(graph, op)


SPECS = (
    OperatorSpec(
        ("BatchNormalization",), "bn", _scale, (), PAIR,
        form=_norm_form, check=_check_channels, lacks=_lacks_norm, bandwidth_bound=True,
    ),
    OperatorSpec(
        ("LRN",), "lrn", _lrn, (), WINDOW, moves=True, check=_check_lrn, lacks=_lacks_lrn, inexact=_inexact_lrn
    ),
    OperatorSpec(("Softmax",), "softmax", _softmax, (), WINDOW),
    OperatorSpec(("LogSoftmax",), "logsoftmax", _softmax, (), WINDOW),
    OperatorSpec(
        ("LayerNormalization",), "layernorm", _layer, (), WINDOW, form=_layer_form, check=_check_layer,
    ),
    OperatorSpec(
        ("RMSNormalization",), "rmsnorm", _by_root_mean_square, (), WINDOW,
        form=require_weights(("scale",)), check=_check_layer,
    ),
    *(
        OperatorSpec(
            (name,), "groupnorm", _groups, (), WINDOW,
            form=require_weights(("scale", "B")), check=_check_groups,
        )
        for name in ("InstanceNormalization", "GroupNormalization")
    ),
)  # fmt: skip
