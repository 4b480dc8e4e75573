"""Normalisations and softmax; means, sums and extremes over axes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from types import MappingProxyType

from edgeplan.graph import blocks
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators import base
from edgeplan.graph.operators.base import AGAIN, Beside, Chain, Node, OperatorSpec, Part, Problem, part, refuse
from edgeplan.graph.operators.windows import whole_image
from edgeplan.graph.shapes import FLOAT32
from edgeplan.graph.steps import Setting

_MATRIX, _FOUR = 2, 4
_STATISTICS = ("scale", "B", "mean", "variance")


def _norm_form(node: Node, beside: Beside) -> Node:
    attributes = base.attributes_of(node)
    if attributes.get("training_mode", 0) or len(list(filter(None, node.output))) > 1:
        refuse(node, beside.source, "in training mode", "export the model for inference")
    if not attributes.get("spatial", 1):
        refuse(node, beside.source, "of each pixel for itself", "export with opset 13 or later")
    return base.require_weights(_STATISTICS)(node, beside)


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


def _lrn(_graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    settings: dict[str, Setting] = {"size": op.integer("size", 1)}
    for key, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)):
        settings[key] = op.number(key, default)
    return (part(op, "lrn", (), settings),)


def _softmax(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    settings: dict[str, Setting] = {"axis": base.axis_of(op, len(shapes[op.inputs[0]]), -1)}
    if op.op_type == "LogSoftmax":
        settings["algorithm"] = "log"
    return (part(op, "softmax", (), settings),)


def _layer_form(node: Node, beside: Beside) -> Node:
    """The mean and the inverse deviation are written where something reads either of them."""
    given = [name or f"{node.name}:{role}" for name, role in zip(node.output, ("Y", "Mean", "InvStdDev"), strict=False)]
    needed = max((place for place, name in enumerate(given) if name in beside.read), default=0)
    del node.output[:]
    node.output.extend(given[: needed + 1])
    return base.require_weights(("Scale", "B"))(node, beside)


def _check_layer(graph: Graph, op: Operator) -> Problem:
    shape = graph.shape(op.inputs[0])
    inner = shape[base.axis_of(op, len(shape), -1) :]
    odd = [graph.shape(name) for name in op.weights if math.prod(graph.shape(name)) != math.prod(inner)]
    return (f"with a weight {odd[0]} over axes of {inner}", AGAIN) if odd else None


def _layer(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    chain, shape = Chain(op, shapes), shapes[op.inputs[0]]
    axis = base.axis_of(op, len(shape), -1)
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
    axis = base.axis_of(op, len(shape), -1)
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


_IMAGE_RANKS = (3, 4)
#: Sums of what an operation makes of each element, and what another makes of the sum.
_AROUND: Mapping[str, tuple[str, str]] = MappingProxyType(
    {"ReduceL1": ("abs", ""), "ReduceL2": ("square", "sqrt"), "ReduceSumSquare": ("square", ""), "ReduceLogSum": ("", "log")}
)


def reduced_axes(graph: Graph, op: Operator) -> tuple[int, ...]:
    """Return the axes, in order, that a reduction runs over: all where none are given, unless that is said to mean none."""
    rank = len(graph.shape(op.inputs[0]))
    axes = op.integers("axes", ())
    if not axes and not op.integer("noop_with_empty_axes", 0):
        return tuple(range(rank))
    return tuple(sorted({axis % rank for axis in axes}))


def is_over_image(graph: Graph, op: Operator) -> bool:
    """Tell whether a reduction runs over all axes of the image and no other."""
    rank = len(graph.shape(op.inputs[0]))
    return rank in _IMAGE_RANKS and reduced_axes(graph, op) == tuple(range(2, rank))


def _check_axes(graph: Graph, op: Operator) -> Problem:
    rank, axes = len(graph.shape(op.inputs[0])), op.integers("axes", ())
    return None if all(-rank <= axis < rank for axis in axes) else (f"over axes {axes} of {rank}", AGAIN)


def _parted(graph: Graph, op: Operator) -> Iterator[tuple[Shape, int, Shape, Shape]]:
    """Yield axes that lie side by side in one go, the last first: what is before, their sizes as one, behind, and what is left.

    Those before keep their places.
    """
    groups: list[list[int]] = []
    for axis in reduced_axes(graph, op):
        if groups and groups[-1][-1] == axis - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    shape = graph.shape(op.inputs[0])
    for axes in reversed(groups):
        before, size, behind = shape[: axes[0]], math.prod(shape[axes[0] : axes[-1] + 1]), shape[axes[-1] + 1 :]
        shape = (*before, *[1] * len(axes), *behind)
        yield before, size, behind, shape


def _sums(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return a mean or sum over any axes, of what an operation makes of each element, and another of the sum."""
    if graph.tensors[op.outputs[0]].dtype != FLOAT32:
        return _reduced(graph, op, shapes, "total")
    if op.op_type == "ReduceMean" and is_over_image(graph, op):
        return whole_image(graph, op, shapes)
    chain, tensor = Chain(op, shapes), op.inputs[0]
    before, behind = _AROUND.get(op.op_type, ("", ""))
    tensor = chain.eltwise(tensor, before) if before else tensor
    tensor = _mixed(graph, op, chain, tensor, "mean" if op.op_type == "ReduceMean" else "sum")
    return chain.finished(chain.eltwise(tensor, behind) if behind else tensor)


def _mixed(graph: Graph, op: Operator, chain: Chain, tensor: str, form: str) -> str:
    for before, size, behind, left in _parted(graph, op):
        joined = chain.reshaped(tensor, (*before, size, *behind))
        tensor = chain.reshaped(chain.mixed(joined, len(before), 1, {"form": form}), left)
    return tensor


def _reduced(graph: Graph, op: Operator, shapes: dict[str, Shape], kernel: str) -> tuple[Part, ...]:
    chain, tensor, dtype = Chain(op, shapes), op.inputs[0], graph.tensors[op.outputs[0]].dtype
    for before, size, behind, left in _parted(graph, op):
        block = blocks.along((math.prod(before), size, math.prod(behind)), 1, (dtype, dtype), kept=False)
        tensor = chain.kernel(f"{kernel}_{'uint8' if dtype == 'bool' else dtype}", [tensor], left, block)
    return chain.finished(tensor)


def _largest(graph: Graph, op: Operator, chain: Chain, tensor: str) -> str:
    """Return a maximum: a pooling of one window over axes that lie side by side."""
    for before, size, behind, left in _parted(graph, op):
        rows, columns = math.prod(before), math.prod(behind)
        window: dict[str, Setting] = {
            "algorithm": "max", "kernel": (size, 1), "strides": (size, 1),
            "dilations": (1, 1), "pads_before": (0, 0), "pads_after": (0, 0),
        }  # fmt: skip
        found = chain.step("pool", [chain.reshaped(tensor, (1, rows, size, columns))], (1, rows, 1, columns), window)
        tensor = chain.reshaped(found, left)
    return tensor


def _extremes(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return a maximum; a minimum is that of the negated values."""
    if graph.tensors[op.outputs[0]].dtype != FLOAT32:
        return _reduced(graph, op, shapes, "most" if op.op_type == "ReduceMax" else "least")
    chain, tensor = Chain(op, shapes), op.inputs[0]
    if op.op_type == "ReduceMax":
        return chain.finished(_largest(graph, op, chain, tensor))
    return chain.finished(chain.linear(_largest(graph, op, chain, chain.linear(tensor, -1.0)), -1.0))


def _log_sum_exp(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Max(x) + log(sum(exp(x - max(x)))): no exponential overflows."""
    chain, tensor = Chain(op, shapes), op.inputs[0]
    largest = _largest(graph, op, chain, tensor)
    apart = chain.step("binary", [tensor, largest], shapes[tensor], {"algorithm": "sub"})
    logarithm = chain.eltwise(_mixed(graph, op, chain, chain.eltwise(apart, "exp"), "sum"), "log")
    return chain.finished(chain.step("binary", [logarithm, largest], shapes[largest], {"algorithm": "add"}))


_CONSTANTS = ("", "axes")

SPECS = (
    OperatorSpec(
        ("BatchNormalization",), "bn", _scale, (), base.PAIR, form=_norm_form, check=_check_channels, lacks=_lacks_norm
    ),
    OperatorSpec(
        ("LRN",), "lrn", _lrn, (), base.WINDOW,
        check=lambda _, op: None if op.integer("size", 0) > 0 else (f"over {op.integer('size', 0)} channels", AGAIN),
        lacks=lambda graph, op: "" if len(graph.shape(op.inputs[0])) == _FOUR else "only 4-D activations",
        inexact=lambda _, op: None if op.integer("size", 1) % 2 else ("over an even number of channels", base.ELSEWHERE),
    ),
    OperatorSpec(("Softmax",), "softmax", _softmax, (), base.WINDOW),
    OperatorSpec(("LogSoftmax",), "logsoftmax", _softmax, (), base.WINDOW),
    OperatorSpec(("LayerNormalization",), "layernorm", _layer, (), base.WINDOW, form=_layer_form, check=_check_layer),
    OperatorSpec(
        ("RMSNormalization",), "rmsnorm", _by_root_mean_square, (), base.WINDOW,
        form=base.require_weights(("scale",)), check=_check_layer,
    ),
    *(
        OperatorSpec(
            (name,), "groupnorm", _groups, (), base.WINDOW, form=base.require_weights(("scale", "B")), check=_check_groups
        )
        for name in ("InstanceNormalization", "GroupNormalization")
    ),
    OperatorSpec(
        ("ReduceMean",), lambda graph, op: "gap" if is_over_image(graph, op) else "mean", _sums, ("gap", "mean"), base.WINDOW,
        _CONSTANTS, 18, check=_check_axes,
    ),
    OperatorSpec(("ReduceSum",), "reducesum", _sums, (), base.WINDOW, _CONSTANTS, check=_check_axes, elements=base.NUMBERS),
    OperatorSpec(
        ("ReduceProd",), "reduceprod", partial(_reduced, kernel="product"), (), base.WINDOW,
        _CONSTANTS, 18, check=_check_axes, elements=base.NUMBERS,
    ),
    OperatorSpec(tuple(_AROUND), "reducesum", _sums, (), base.WINDOW, _CONSTANTS, 18, check=_check_axes),
    OperatorSpec(("ReduceLogSumExp",), "logsumexp", _log_sum_exp, (), base.WINDOW, _CONSTANTS, 18, check=_check_axes),
    OperatorSpec(
        ("ReduceMax", "ReduceMin"), "reducemax", _extremes, (), base.WINDOW,
        _CONSTANTS, 18, check=_check_axes, elements=base.ANY,
    ),
)  # fmt: skip
