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
    settings: dict[str, Setting] = {"algorithm": found.algorithm, "alpha": found.alpha, "beta": found.beta}
    return (_part(op, "eltwise", (), settings),)


def _lrn(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    settings: dict[str, Setting] = {"size": op.integer("size", 1)}
    for key, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)):
        settings[key] = op.number(key, default)
    return (_part(op, "lrn", (), settings),)


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
    """Its primitive writes (time, batch, directions x hidden); ONNX wants (time, directions, batch, hidden)."""
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
