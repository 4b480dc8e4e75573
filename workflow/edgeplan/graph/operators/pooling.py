"""Pooling: windows, and the whole image."""

from __future__ import annotations

import math

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import AGAIN, WINDOW, OperatorSpec, Problem
from edgeplan.graph.operators.windows import (
    check_spatial,
    check_window,
    inexact_window,
    of_volumes,
    window_form,
    window_pads,
    window_settings,
)
from edgeplan.graph.parts import Chain, Part, inner, part
from edgeplan.graph.steps import Setting

_SQUARE = 2


def _lower(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    settings = window_settings(op, shapes, op.integers("kernel_shape", ()))
    counted = op.op_type == "AveragePool" and op.integer("count_include_pad", 0)
    if counted and op.integer("ceil_mode", 0):
        return _counted(op, shapes)
    settings["algorithm"] = "max" if op.op_type == "MaxPool" else f"avg_{'include' if counted else 'exclude'}_padding"
    return (part(op, "pool", (), settings),)


def _counted(op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Windows whose padding counts, but not what lies beyond it: oneDNN would count both. An axis at a time."""
    chain, tensor = Chain(op, shapes), op.inputs[0]
    kernel, out = op.integers("kernel_shape", ()), shapes[op.outputs[0]][2:]
    ones = (1,) * len(kernel)
    before, _ = window_pads(op, shapes[tensor][2:], out, kernel)
    after = op.integers("pads", (0,) * 2 * len(kernel))[len(kernel) :]
    sides = (kernel, op.integers("strides", ones), op.integers("dilations", ones), before, after)
    for axis, (size, *numbers) in enumerate(zip(out, *sides, strict=True), start=2):
        names = ("window", "stride", "dilation", "before", "after")
        tensor = chain.mixed(tensor, axis, size, {"form": "average", **dict(zip(names, numbers, strict=True))})
    return chain.finished(tensor)


def _power(op: Operator) -> float:
    return op.number("p", 2.0)


def _check_lp(graph: Graph, op: Operator) -> Problem:
    return check_window(graph, op) if _power(op) > 0 else (f"of power {_power(op)}", AGAIN)


def _lp(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Roots of sums of powers: means over whole windows, padding counted, times the places of a window."""
    chain, (tensor,) = Chain(op, shapes), op.inputs
    kernel = op.integers("kernel_shape", shapes[tensor][2:])
    whole = "kernel_shape" not in op.attributes
    settings = _whole(kernel) if whole else window_settings(op, shapes, kernel)
    power, places = _power(op), math.prod(kernel)
    tensor = chain.eltwise(tensor, "abs" if power != _SQUARE else "square")
    tensor = tensor if power in (1, _SQUARE) else chain.eltwise(tensor, "pow", 1.0, power)
    settings["algorithm"] = "avg_include_padding"
    tensor = chain.step("pool", [tensor], shapes[op.outputs[0]], settings)
    root = places ** (1 / power)
    return chain.finished(chain.linear(tensor, root) if power == 1 else chain.eltwise(tensor, "pow", root, 1 / power))


def _lacks(graph: Graph, op: Operator) -> str:
    if op.op_type == "MaxPool" and len(op.outputs) > 1:
        return "indices of the maxima"
    kernel = op.integers("kernel_shape", ())
    dilations = op.integers("dilations", (1,) * len(kernel))
    spans = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    before, after = window_pads(op, graph.shape(op.inputs[0])[2:], graph.shape(op.outputs[0])[2:], kernel)
    if any(pad >= span for pads in (before, after) for pad, span in zip(pads, spans, strict=True)):
        return "windows that see nothing but padding"
    return ""


def _whole(size: Shape) -> dict[str, Setting]:
    ones, none = (1,) * len(size), (0,) * len(size)
    return {"kernel": size, "strides": size, "dilations": ones, "pads_before": none, "pads_after": none}


def whole_image(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return one window over all axes of the image; without them where the operator drops them."""
    n, c, *size = shapes[op.inputs[0]]
    settings = _whole(tuple(size)) | {"algorithm": "max" if "Max" in op.op_type else "avg_exclude_padding"}
    pool = part(op, "pool", (), settings)
    if len(shapes[op.outputs[0]]) == len(size) + 2:
        return (pool,)
    pooled = inner(op.outputs[0], (n, c, *[1] * len(size)), shapes)
    return pool._replace(outputs=[pooled]), Part(f"{op.name}:squeeze", "reshape", [], [pooled], list(op.outputs), {}, {})


def _pool(name: str, kind: str) -> OperatorSpec:
    return OperatorSpec(
        (name,), of_volumes(kind), _lower, (kind, f"{kind}3d"), WINDOW,
        moves=True, form=window_form(), check=check_window, lacks=_lacks, inexact=inexact_window,
    )  # fmt: skip


SPECS = (
    _pool("MaxPool", "maxpool"),
    _pool("AveragePool", "avgpool"),
    OperatorSpec(("GlobalAveragePool",), "gap", whole_image, (), WINDOW, check=check_spatial, bandwidth_bound=True),
    OperatorSpec(("GlobalMaxPool",), "gmp", whole_image, (), WINDOW, check=check_spatial, bandwidth_bound=True),
    OperatorSpec(
        ("LpPool",),
        of_volumes("lppool"),
        _lp,
        ("lppool", "lppool3d"),
        WINDOW,
        moves=True,
        form=window_form(),
        check=_check_lp,
        lacks=_lacks,
        inexact=inexact_window,
    ),
    OperatorSpec(("GlobalLpPool",), "glp", _lp, (), WINDOW, check=_check_lp),
)
