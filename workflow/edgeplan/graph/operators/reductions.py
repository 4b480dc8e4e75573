"""Means, sums and extremes over axes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.graph import blocks
from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import AGAIN, ANY, NUMBERS, WINDOW, OperatorSpec, Problem
from edgeplan.graph.operators.pooling import whole_image
from edgeplan.graph.parts import Chain, Part
from edgeplan.graph.steps import Setting

_SPATIAL_RANKS = (3, 4)
#: Sums of what an operation makes of each element, and what another makes of the sum.
_AROUND: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ReduceL1": ("abs", ""),
        "ReduceL2": ("square", "sqrt"),
        "ReduceSumSquare": ("square", ""),
        "ReduceLogSum": ("", "log"),
    }
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
    return rank in _SPATIAL_RANKS and reduced_axes(graph, op) == tuple(range(2, rank))


def _check(graph: Graph, op: Operator) -> Problem:
    rank, axes = len(graph.shape(op.inputs[0])), op.integers("axes", ())
    return None if all(-rank <= axis < rank for axis in axes) else (f"over axes {axes} of {rank}", AGAIN)


def _mean_kind(graph: Graph, op: Operator) -> str:
    return "gap" if is_over_image(graph, op) else "mean"


def _groups(graph: Graph, op: Operator) -> list[list[int]]:
    """Return axes that lie side by side together."""
    groups: list[list[int]] = []
    for axis in reduced_axes(graph, op):
        if groups and groups[-1][-1] == axis - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _sums(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return a mean or sum over any axes, of what an operation makes of each element, and another of the sum."""
    if graph.tensors[op.outputs[0]].dtype != FLOAT32:
        return _reduced(graph, op, shapes, "total")
    if op.op_type == "ReduceMean" and is_over_image(graph, op):
        return whole_image(graph, op, shapes)
    chain, tensor = Chain(op, shapes), op.inputs[0]
    before, behind = _AROUND.get(op.op_type, ("", ""))
    tensor = chain.eltwise(tensor, before) if before else tensor
    tensor = _mixed(chain, tensor, shapes, _groups(graph, op), "mean" if op.op_type == "ReduceMean" else "sum")
    return chain.finished(chain.eltwise(tensor, behind) if behind else tensor)


def _mixed(chain: Chain, tensor: str, shapes: dict[str, Shape], groups: list[list[int]], form: str) -> str:
    """A mean or sum: over axes that lie side by side in one go, the last first, so that those before keep their places."""
    for axes in reversed(groups):
        shape = shapes[tensor]
        first, behind = axes[0], shape[axes[-1] + 1 :]
        joined = chain.reshaped(tensor, (*shape[:first], math.prod(shape[first : axes[-1] + 1]), *behind))
        mixed = chain.mixed(joined, first, 1, {"form": form})
        tensor = chain.reshaped(mixed, (*shape[:first], *[1] * len(axes), *behind))
    return tensor


def _reduced(graph: Graph, op: Operator, shapes: dict[str, Shape], kernel: str) -> tuple[Part, ...]:
    """By a compiled kernel, over axes that lie side by side in one go."""
    chain, tensor, dtype = Chain(op, shapes), op.inputs[0], graph.tensors[op.outputs[0]].dtype
    for axes in reversed(_groups(graph, op)):
        shape = shapes[tensor]
        before, size, after = shape[: axes[0]], math.prod(shape[axes[0] : axes[-1] + 1]), shape[axes[-1] + 1 :]
        block = blocks.along((math.prod(before), size, math.prod(after)), 1, (dtype, dtype), kept=False)
        element = "uint8" if dtype == "bool" else dtype
        tensor = chain.kernel(f"{kernel}_{element}", [tensor], (*before, *[1] * len(axes), *after), block)
    return chain.finished(tensor)


def _product(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    return _reduced(graph, op, shapes, "product")


def _largest(chain: Chain, tensor: str, shapes: dict[str, Shape], groups: list[list[int]]) -> str:
    """Return a maximum: a pooling of one window over axes that lie side by side."""
    for axes in reversed(groups):
        shape = shapes[tensor]
        before, size, after = shape[: axes[0]], math.prod(shape[axes[0] : axes[-1] + 1]), shape[axes[-1] + 1 :]
        flat = (1, math.prod(before), size, math.prod(after))
        window: dict[str, Setting] = {
            "algorithm": "max", "kernel": (size, 1), "strides": (size, 1),
            "dilations": (1, 1), "pads_before": (0, 0), "pads_after": (0, 0),
        }  # fmt: skip
        found = chain.step("pool", [chain.reshaped(tensor, flat)], (1, flat[1], 1, flat[3]), window)
        tensor = chain.reshaped(found, (*before, *[1] * len(axes), *after))
    return tensor


def _extremes(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return a maximum; a minimum is that of the negated values."""
    if graph.tensors[op.outputs[0]].dtype != FLOAT32:
        return _reduced(graph, op, shapes, "most" if op.op_type == "ReduceMax" else "least")
    chain, tensor, groups = Chain(op, shapes), op.inputs[0], _groups(graph, op)
    if op.op_type == "ReduceMax":
        return chain.finished(_largest(chain, tensor, shapes, groups))
    return chain.finished(chain.linear(_largest(chain, chain.linear(tensor, -1.0), shapes, groups), -1.0))


def _log_sum_exp(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Max(x) + log(sum(exp(x - max(x)))): no exponential overflows."""
    chain, tensor, groups = Chain(op, shapes), op.inputs[0], _groups(graph, op)
    largest = _largest(chain, tensor, shapes, groups)
    apart = chain.step("binary", [tensor, largest], shapes[tensor], {"algorithm": "sub"})
    logarithm = chain.eltwise(_mixed(chain, chain.eltwise(apart, "exp"), shapes, groups, "sum"), "log")
    return chain.finished(chain.step("binary", [logarithm, largest], shapes[largest], {"algorithm": "add"}))


_CONSTANTS, _INTEGERS = ("", "axes"), frozenset({"axes"})
SPECS = (
    OperatorSpec(
        ("ReduceMean",), _mean_kind, _sums, ("gap", "mean"), WINDOW,
        _CONSTANTS, _INTEGERS, 18, check=_check, bandwidth_bound=True,
    ),
    OperatorSpec(
        ("ReduceSum",), "reducesum", _sums, (), WINDOW,
        _CONSTANTS, _INTEGERS, check=_check, bandwidth_bound=True, elements=NUMBERS,
    ),
    OperatorSpec(
        ("ReduceProd",), "reduceprod", _product, (), WINDOW,
        _CONSTANTS, _INTEGERS, 18, check=_check, elements=NUMBERS,
    ),
    OperatorSpec(
        tuple(_AROUND), "reducesum", _sums, (), WINDOW, constants=_CONSTANTS, integers=_INTEGERS, inputs_since=18, check=_check,
    ),
    OperatorSpec(
        ("ReduceLogSumExp",), "logsumexp", _log_sum_exp, (), WINDOW, _CONSTANTS, _INTEGERS, 18, check=_check,
    ),
    OperatorSpec(
        ("ReduceMax", "ReduceMin"), "reducemax", _extremes, (), WINDOW,
        _CONSTANTS, _INTEGERS, 18, check=_check, bandwidth_bound=True, elements=ANY,
    ),
)  # fmt: skip
