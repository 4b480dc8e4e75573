"""How each ONNX operator becomes a step: what is supported of it, and the settings of the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.kinds import is_over_image
from edgeplan.runtime.parts import INNER, Chain, Part, part
from edgeplan.runtime.products import binary, mean, product
from edgeplan.runtime.resizing import resize
from edgeplan.runtime.steps import PostOp, Setting

_FLOAT_MAX = 3.4028234663852886e38


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


def window_pads(op: Operator, size: Shape, out: Shape, kernel: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Padding before and after each spatial axis such that the window gives exactly `out` (negative after: unread rest)."""
    ones = (1,) * len(size)
    strides, dilations = op.integers("strides", ones), op.integers("dilations", ones)
    spans = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zip(out, strides, dilations, kernel, strict=True)]
    total = [span - i for span, i in zip(spans, size, strict=True)]
    auto = str(op.attributes.get("auto_pad", "NOTSET"))
    if auto == "SAME_UPPER":
        before = tuple(max(0, t) // 2 for t in total)
    elif auto == "SAME_LOWER":
        before = tuple(-(-max(0, t) // 2) for t in total)
    elif auto == "VALID":
        before = (0,) * len(size)
    else:
        before = op.integers("pads", (0,) * 2 * len(size))[: len(size)]
    return before, tuple(t - b for t, b in zip(total, before, strict=True))


def _window(op: Operator, shapes: Mapping[str, Shape], kernel: tuple[int, ...]) -> dict[str, Setting]:
    before, after = window_pads(op, shapes[op.inputs[0]][2:], shapes[op.outputs[0]][2:], kernel)
    ones = (1,) * len(kernel)
    return {
        "kernel": kernel,
        "strides": op.integers("strides", ones),
        "dilations": op.integers("dilations", ones),
        "pads_before": before,
        "pads_after": after,
    }


def _conv(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    settings = {"groups": op.integer("group", 1), **_window(op, shapes, shapes[op.weights[0]][2:])}
    return (part(op, "conv", ("weight", "bias"), settings),)


def _pool(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    settings = _window(op, shapes, op.integers("kernel_shape", ()))
    counted = op.op_type == "AveragePool" and op.integer("count_include_pad", 0)
    if counted and op.integer("ceil_mode", 0):
        return _counted_pool(op, shapes)
    settings["algorithm"] = "max" if op.op_type == "MaxPool" else f"avg_{'include' if counted else 'exclude'}_padding"
    return (part(op, "pool", (), settings),)


def _counted_pool(op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Windows whose padding counts, but not what lies beyond it: oneDNN would count both. An axis at a time."""
    chain, tensor = Chain(op, shapes), op.inputs[0]
    kernel, out = op.integers("kernel_shape", ()), shapes[op.outputs[0]][2:]
    ones = (1,) * len(kernel)
    before, _ = window_pads(op, shapes[tensor][2:], out, kernel)
    after = op.integers("pads", (0,) * 2 * len(kernel))[len(kernel) :]
    sides = (kernel, op.integers("strides", ones), op.integers("dilations", ones), before, after)
    for axis, (size, *numbers) in enumerate(zip(out, *sides, strict=True), start=2):
        names = ("kernel", "stride", "dilation", "before", "after")
        tensor = chain.mixed(tensor, axis, size, {"form": "average", **dict(zip(names, numbers, strict=True))})
    return chain.finished(tensor)


def _global_pool(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    n, c, *size = shapes[op.inputs[0]]
    ones, none = (1,) * len(size), (0,) * len(size)
    settings: dict[str, Setting] = {
        "algorithm": "avg_exclude_padding",
        "kernel": tuple(size),
        "strides": tuple(size),
        "dilations": ones,
        "pads_before": none,
        "pads_after": none,
    }
    pool = part(op, "pool", (), settings)
    if len(shapes[op.outputs[0]]) == len(size) + 2:
        return (pool,)
    inner = f"{op.outputs[0]}{INNER}"
    shapes[inner] = (n, c, *ones)
    return pool._replace(outputs=[inner]), Part(f"{op.name}:squeeze", "reshape", [], [inner], list(op.outputs), {}, {})


def _scale(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    roles = ("bn_scale", "bn_bias", "bn_mean", "bn_variance")
    return (part(op, "scale", roles, {"epsilon": op.number("epsilon", 1e-5)}),)


def _axis(op: Operator, shapes: Mapping[str, Shape], default: int) -> int:
    return op.integer("axis", default) % len(shapes[op.inputs[0]])


def _concat(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    roles = [f"part_{place}" for place, name in enumerate(op.operands) if name in op.weights]
    return (part(op, "concat", roles, {"axis": _axis(op, shapes, 1)}),)


def _split(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    return (part(op, "split", (), {"axis": _axis(op, shapes, 0)}),)


def _eltwise(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    found = activation(op)
    assert found is not None, op  # noqa: S101  the table below names activations only
    settings: dict[str, Setting] = {"algorithm": found.algorithm, "alpha": found.alpha, "beta": found.beta}
    return (part(op, "eltwise", (), settings),)


def _lrn(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    settings: dict[str, Setting] = {"size": op.integer("size", 1)}
    for key, default in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0)):
        settings[key] = op.number(key, default)
    return (part(op, "lrn", (), settings),)


def _softmax(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    return (part(op, "softmax", (), {"axis": _axis(op, shapes, -1)}),)


def _transpose(_graph: Graph, op: Operator, shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    axes = tuple(reversed(range(len(shapes[op.inputs[0]]))))
    return (part(op, "transpose", (), {"permutation": op.integers("perm", axes)}),)


def _reshape(_graph: Graph, op: Operator, _shapes: Mapping[str, Shape]) -> tuple[Part, ...]:
    return (part(op, "reshape", (), {}),)


def _lstm(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Its primitive writes (time, batch, directions x hidden); ONNX wants (time, directions, batch, hidden).

    The last states, where they are read, lie alike in both: (directions, batch, hidden).
    """
    settings: dict[str, Setting] = {
        "hidden": op.integer("hidden_size", 1),
        "direction": str(op.attributes.get("direction", "forward")),
    }
    time, directions, batch, hidden = shapes[op.outputs[0]]
    joined, parted = f"{op.outputs[0]}{INNER}", f"{op.outputs[0]}{INNER}{INNER}"
    shapes[joined] = (time, batch, directions * hidden)
    whole = part(op, "lstm", ("weight", "recurrence", "bias"), settings)._replace(outputs=[joined, *op.outputs[1:]])
    if directions == 1 or batch == 1:
        return whole, Part(f"{op.name}:parted", "reshape", [], [joined], list(op.outputs[:1]), {}, {})
    shapes[parted] = (time, batch, directions, hidden)
    swap: dict[str, Setting] = {"permutation": (0, 2, 1, 3)}
    return (
        whole,
        Part(f"{op.name}:parted", "reshape", [], [joined], [parted], {}, {}),
        Part(f"{op.name}:swapped", "transpose", [], [parted], list(op.outputs[:1]), {}, swap),
    )


Lowerer = Callable[[Graph, Operator, Any], tuple[Part, ...]]

LOWERERS: Mapping[str, Lowerer] = MappingProxyType(
    {
        "Conv": _conv,
        "Gemm": product,
        "MatMul": product,
        "MaxPool": _pool,
        "AveragePool": _pool,
        "GlobalAveragePool": _global_pool,
        "ReduceMean": lambda graph, op, shapes: (_global_pool if is_over_image(graph, op) else mean)(graph, op, shapes),
        "Add": binary,
        "Mul": binary,
        "BatchNormalization": _scale,
        "Concat": _concat,
        "Split": _split,
        "LRN": _lrn,
        "Softmax": _softmax,
        "Resize": resize,
        "Transpose": _transpose,
        "Reshape": _reshape,
        "Flatten": _reshape,
        "Squeeze": _reshape,
        "Unsqueeze": _reshape,
        "LSTM": _lstm,
        **dict.fromkeys(("Relu", "LeakyRelu", "Clip", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh"), _eltwise),
    }
)
