"""How each ONNX operator becomes a step: what is supported of it, and the settings of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.runtime.steps import PostOp, Setting

_FLOAT_MAX = 3.4028234663852886e38
_FOUR = 4

#: Ends the names of activations between the steps of one operator.
INNER = ":inner"


class Part(NamedTuple):
    """The start of a step; the fields of `lowering.Draft`."""

    name: str
    kind: str
    members: list[str]
    inputs: list[str]
    outputs: list[str]
    weights: dict[str, str]
    settings: dict[str, Setting]


def activation(op: Operator) -> PostOp | None:
    """An activation as oneDNN's eltwise operation; None for other operators."""
    if op.op_type == "Clip":
        low, high = op.number("min", -math.inf), op.number("max", math.inf)
        return PostOp("eltwise", "clip", max(low, -_FLOAT_MAX), min(high, _FLOAT_MAX))
    if op.op_type == "HardSigmoid":
        return PostOp("eltwise", "hardsigmoid", op.number("alpha", 0.2), op.number("beta", 0.5))
    if op.op_type == "LeakyRelu":
        return PostOp("eltwise", "relu", op.number("alpha", 0.01))
    return _FIXED.get(op.op_type)


_FIXED: Mapping[str, PostOp] = MappingProxyType(
    {
        "Relu": PostOp("eltwise", "relu"),
        "HardSwish": PostOp("eltwise", "hardswish", 1 / 6, 0.5),
        "Sigmoid": PostOp("eltwise", "logistic"),
        "Tanh": PostOp("eltwise", "tanh"),
    }
)


def _part(op: Operator, kind: str, roles: tuple[str, ...], settings: Mapping[str, Setting]) -> Part:
    weights = dict(zip(roles, op.weights, strict=False))
    return Part(op.name, kind, [op.name], list(op.inputs), list(op.outputs), weights, dict(settings))


def window_pads(op: Operator, size: Shape, out: Shape, kernel: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after each spatial axis such that the window gives exactly `out` (negative after: unread rest)."""
    strides, dilations = op.integers("strides", (1, 1)), op.integers("dilations", (1, 1))
    spans = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zip(out, strides, dilations, kernel, strict=True)]
    total = [span - i for span, i in zip(spans, size, strict=True)]
    auto = str(op.attributes.get("auto_pad", "NOTSET"))
    if auto == "SAME_UPPER":
        before = tuple(max(0, t) // 2 for t in total)
    elif auto == "SAME_LOWER":
        before = tuple(-(-max(0, t) // 2) for t in total)
    elif auto == "VALID":
        before = (0, 0)
    else:
        before = op.integers("pads", (0, 0, 0, 0))[:2]
    return before, tuple(t - b for t, b in zip(total, before, strict=True))


def _window(op: Operator, shapes: Mapping[str, Shape], kernel: tuple[int, ...]) -> dict[str, Setting]:
    before, after = window_pads(op, shapes[op.inputs[0]][2:], shapes[op.outputs[0]][2:], kernel)
    return {
        "kernel": kernel,
        "strides": op.integers("strides", (1, 1)),
        "dilations": op.integers("dilations", (1, 1)),
        "pads_before": before,
        "pads_after": after,
    }


def _conv(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    settings = {"groups": op.integer("group", 1), **_window(op, shapes, shapes[op.weights[0]][2:])}
    return (_part(op, "conv", ("weight", "bias"), settings),)


def _fc(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    gemm = op.op_type == "Gemm"
    settings: dict[str, Setting] = {
        "transposed": int(gemm and op.integer("transB", 0)),
        "alpha": op.number("alpha", 1.0) if gemm else 1.0,
        "beta": op.number("beta", 1.0) if gemm else 1.0,
    }
    return (_part(op, "fc", ("weight", "bias"), settings),)


def _pool(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    settings = _window(op, shapes, op.integers("kernel_shape", ()))
    counted = op.integer("count_include_pad", 0)
    settings["algorithm"] = "max" if op.op_type == "MaxPool" else f"avg_{'include' if counted else 'exclude'}_padding"
    return (_part(op, "pool", (), settings),)


def _global_pool(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    n, c, *size = shapes[op.inputs[0]]
    settings: dict[str, Setting] = {
        "algorithm": "avg_exclude_padding",
        "kernel": tuple(size),
        "strides": tuple(size),
        "dilations": (1, 1),
        "pads_before": (0, 0),
        "pads_after": (0, 0),
    }
    pool = _part(op, "pool", (), settings)
    if len(shapes[op.outputs[0]]) == _FOUR:
        return (pool,)
    inner = f"{op.outputs[0]}{INNER}"
    shapes[inner] = (n, c, 1, 1)
    return pool._replace(outputs=[inner]), Part(f"{op.name}:squeeze", "reshape", [], [inner], list(op.outputs), {}, {})


def _binary(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    part = _part(op, "binary", ("operand",), {"algorithm": op.op_type.lower()})
    if len(part.inputs) > 1 and shapes[part.inputs[0]] != shapes[op.outputs[0]]:
        part.inputs.reverse()  # the first operand is the one that is not broadcast
    return (part,)


def _scale(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    roles = ("bn_scale", "bn_bias", "bn_mean", "bn_variance")
    return (_part(op, "scale", roles, {"epsilon": op.number("epsilon", 1e-5)}),)


def _axis(op: Operator, shapes: Mapping[str, Shape], default: int) -> int:
    return op.integer("axis", default) % len(shapes[op.inputs[0]])


def _concat(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    return (_part(op, "concat", (), {"axis": _axis(op, shapes, 1)}),)


def _split(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    return (_part(op, "split", (), {"axis": _axis(op, shapes, 0)}),)


def _eltwise(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    found = activation(op)
    assert found is not None, op  # noqa: S101  the table below names activations only
    settings = {"algorithm": found.algorithm, "alpha": found.alpha, "beta": found.beta}
    return (_part(op, "eltwise", (), settings),)


def _lrn(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    given = {key: op.number(key, default) for key, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))}
    return (_part(op, "lrn", (), {"size": op.integer("size", 1), **given}),)


def _softmax(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    return (_part(op, "softmax", (), {"axis": _axis(op, shapes, -1)}),)


def _resize(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    return (_part(op, "resize", (), {"algorithm": str(op.attributes.get("mode", "nearest"))}),)


def _transpose(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    axes = tuple(reversed(range(len(shapes[op.inputs[0]]))))
    return (_part(op, "transpose", (), {"permutation": op.integers("perm", axes)}),)


def _reshape(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    return (_part(op, "reshape", (), {}),)


def _lstm(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """oneDNN writes (time, batch, directions x hidden); ONNX wants (time, directions, batch, hidden)."""
    settings: dict[str, Setting] = {
        "hidden": op.integer("hidden_size", 1),
        "direction": str(op.attributes.get("direction", "forward")),
    }
    time, directions, batch, hidden = shapes[op.outputs[0]]
    joined, parted = f"{op.outputs[0]}{INNER}", f"{op.outputs[0]}{INNER}{INNER}"
    shapes[joined] = (time, batch, directions * hidden)
    part = _part(op, "lstm", ("weight", "recurrence", "bias"), settings)._replace(outputs=[joined])
    if directions == 1 or batch == 1:
        return part, Part(f"{op.name}:parted", "reshape", [], [joined], list(op.outputs[:1]), {}, {})
    shapes[parted] = (time, batch, directions, hidden)
    swap: dict[str, Setting] = {"permutation": (0, 2, 1, 3)}
    return (
        part,
        Part(f"{op.name}:parted", "reshape", [], [joined], [parted], {}, {}),
        Part(f"{op.name}:swapped", "transpose", [], [parted], list(op.outputs[:1]), {}, swap),
    )


Lowerer = Callable[[Graph, Operator, Any], tuple[Part, ...]]

LOWERERS: Mapping[str, Lowerer] = MappingProxyType(
    {
        "Conv": _conv,
        "Gemm": _fc,
        "MatMul": _fc,
        "MaxPool": _pool,
        "AveragePool": _pool,
        "GlobalAveragePool": _global_pool,
        "ReduceMean": _global_pool,
        "Add": _binary,
        "Mul": _binary,
        "BatchNormalization": _scale,
        "Concat": _concat,
        "Split": _split,
        "LRN": _lrn,
        "Softmax": _softmax,
        "Resize": _resize,
        "Transpose": _transpose,
        "Reshape": _reshape,
        "Flatten": _reshape,
        "Squeeze": _reshape,
        "Unsqueeze": _reshape,
        "LSTM": _lstm,
        **dict.fromkeys(("Relu", "LeakyRelu", "Clip", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh"), _eltwise),
    }
)


def problem(graph: Graph, op: Operator) -> str:
    """What the runtime lacks for an operator, or ""."""
    if op.op_type not in LOWERERS:
        return "no such operator"
    if any(graph.tensors[t].dtype != "float32" for t in (*op.inputs, *op.outputs, *op.weights)):
        return "not float32"
    checked = _CHECKS.get(op.op_type)
    return checked(graph, op) if checked else ""


def _check_spatial(graph: Graph, op: Operator) -> str:
    if len(graph.shape(op.inputs[0])) != _FOUR:
        return "only 2-D windows"
    if op.op_type == "Conv" and len(op.inputs) != 1:
        return "weights computed by the model"
    if op.op_type == "MaxPool" and len(op.outputs) > 1:
        return "indices of the maxima"
    included = op.integer("count_include_pad", 0) and op.integer("ceil_mode", 0)
    return "ceil_mode together with count_include_pad" if included else ""


def _check_global(graph: Graph, op: Operator) -> str:
    rank = len(graph.shape(op.inputs[0]))
    axes = {a % rank for a in op.integers("axes", (2, 3))}
    return "" if rank == _FOUR and axes == {2, 3} else "only a mean over the height and width of a 4-D activation"


def _check_fc(graph: Graph, op: Operator) -> str:
    if len(op.inputs) != 1 or not op.weights or len(graph.shape(op.weights[0])) != 2:  # noqa: PLR2004
        return "only one activation times a 2-D weight"
    if op.op_type == "Gemm" and op.integer("transA", 0):
        return "transA"
    columns = graph.shape(op.outputs[0])[-1]
    biased = len(op.weights) > 1 and math.prod(graph.shape(op.weights[1])) != columns
    return "a bias that is not one value for each column" if biased else ""


def _check_binary(graph: Graph, op: Operator) -> str:
    out = graph.shape(op.outputs[0])
    shapes = [graph.shape(t) for t in (*op.inputs, *op.weights)]
    return "" if len(shapes) == 2 and out in shapes else "both operands broadcast"  # noqa: PLR2004


def _check_norm(graph: Graph, op: Operator) -> str:
    if len(op.weights) != 4:  # noqa: PLR2004
        return "statistics computed by the model"
    return "" if len(graph.shape(op.inputs[0])) in (2, _FOUR) else "only 2-D and 4-D activations"


def _check_lrn(graph: Graph, op: Operator) -> str:
    return "" if len(graph.shape(op.inputs[0])) == _FOUR else "only 4-D activations"


def _check_transpose(graph: Graph, op: Operator) -> str:
    return "" if len(graph.shape(op.inputs[0])) <= 5 else "more than 5 axes"  # noqa: PLR2004


def _check_resize(graph: Graph, op: Operator) -> str:
    before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
    mode, coordinates = (
        str(op.attributes.get("mode", "nearest")),
        op.attributes.get("coordinate_transformation_mode", "half_pixel"),
    )
    if len(before) != _FOUR or before[:2] != after[:2]:
        return "only height and width of a 4-D activation"
    whole = all(b % a == 0 for a, b in zip(before[2:], after[2:], strict=True))
    if mode == "nearest":
        return "" if whole and coordinates in ("asymmetric", "half_pixel", "pytorch_half_pixel") else "nearest by a fraction"
    half = coordinates in ("half_pixel", "pytorch_half_pixel")
    return "" if mode == "linear" and half else f"mode {mode!r} with {coordinates} coordinates"


def _check_lstm(graph: Graph, op: Operator) -> str:
    read = [o for o in op.outputs[1:] if o in graph.outputs or graph.consumers.get(o)]
    if read:
        return "final states that are read"
    default = {"activations", "activation_alpha", "activation_beta", "clip", "input_forget", "layout"} & set(op.attributes)
    plain = len(op.inputs) == 1 and len(op.weights) in (2, 3)
    return "" if plain and not default else "initial states, peepholes, lengths, or activations other than the default"


_CHECKS: Mapping[str, Callable[[Graph, Operator], str]] = MappingProxyType(
    {
        **dict.fromkeys(("Conv", "MaxPool", "AveragePool"), _check_spatial),
        **dict.fromkeys(("GlobalAveragePool", "ReduceMean"), _check_global),
        **dict.fromkeys(("Gemm", "MatMul"), _check_fc),
        **dict.fromkeys(("Add", "Mul"), _check_binary),
        "BatchNormalization": _check_norm,
        "LRN": _check_lrn,
        "Transpose": _check_transpose,
        "Resize": _check_resize,
        "LSTM": _check_lstm,
    }
)
