"""Means, sums and extremes over axes."""

from __future__ import annotations

import math
from types import MappingProxyType

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import AGAIN, WINDOW, OperatorSpec, Problem
from edgeplan.graph.operators.pooling import whole_image
from edgeplan.graph.operators.singles import reduced
from edgeplan.graph.parts import Chain, Part
from edgeplan.graph.steps import Setting

_SPATIAL_RANKS = (3, 4)


def reduced_axes(graph: Graph, op: Operator) -> tuple[int, ...]:
    """The axes, in order, that a reduction runs over: all where none are given, unless that is said to mean none."""
    rank = len(graph.shape(op.inputs[0]))
    axes = op.integers("axes", ())
    if not axes and not op.integer("noop_with_empty_axes", 0):
        return tuple(range(rank))
    return tuple(sorted({axis % rank for axis in axes}))


def is_over_image(graph: Graph, op: Operator) -> bool:
    """Whether a reduction runs over all axes of the image and no other."""
    rank = len(graph.shape(op.inputs[0]))
    return rank in _SPATIAL_RANKS and reduced_axes(graph, op) == tuple(range(2, rank))


def _check(graph: Graph, op: Operator) -> Problem:
    rank, axes = len(graph.shape(op.inputs[0])), op.integers("axes", ())
    return None if all(-rank <= axis < rank for axis in axes) else (f"over axes {axes} of {rank}", AGAIN)


def _mean_kind(graph: Graph, op: Operator) -> str:
    return "gap" if is_over_image(graph, op) else "mean"


def _groups(graph: Graph, op: Operator) -> list[list[int]]:
    """Axes that lie side by side together."""
    groups: list[list[int]] = []
    for axis in reduced_axes(graph, op):
        if groups and groups[-1][-1] == axis - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _sums(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """A mean or sum over any axes: those that lie side by side in one go."""
    if op.op_type == "ReduceMean" and is_over_image(graph, op):
        return whole_image(graph, op, shapes)
    chain, tensor = Chain(op, shapes), op.inputs[0]
    form: dict[str, Setting] = {"form": "mean" if op.op_type == "ReduceMean" else "sum"}
    for axes in reversed(_groups(graph, op)):  # those before keep their places
        shape = shapes[tensor]
        first, behind = axes[0], shape[axes[-1] + 1 :]
        joined = chain.reshaped(tensor, (*shape[:first], math.prod(shape[first : axes[-1] + 1]), *behind))
        tensor = chain.mixed(joined, first, 1, form)
    return chain.finished(tensor)


def _extremes(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """A maximum is a pooling of one window over axes that lie side by side; a minimum that of the negated values."""
    chain, tensor = Chain(op, shapes), op.inputs[0]
    if op.op_type == "ReduceMin":
        tensor = chain.linear(tensor, -1.0)
    for axes in reversed(_groups(graph, op)):
        shape = shapes[tensor]
        before, size, after = shape[: axes[0]], math.prod(shape[axes[0] : axes[-1] + 1]), shape[axes[-1] + 1 :]
        flat = (1, math.prod(before), size, math.prod(after))
        window: dict[str, Setting] = {
            "algorithm": "max", "kernel": (size, 1), "strides": (size, 1),
            "dilations": (1, 1), "pads_before": (0, 0), "pads_after": (0, 0),
        }  # fmt: skip
        found = chain.step("pool", [chain.reshaped(tensor, flat)], (1, flat[1], 1, flat[3]), window)
        tensor = chain.reshaped(found, (*before, 1, *after))
    if op.op_type == "ReduceMin":
        tensor = chain.linear(tensor, -1.0)
    return chain.finished(tensor)


_CONSTANTS, _INTEGERS = ("", "axes"), frozenset({"axes"})
SPECS = (
    OperatorSpec(
        ("ReduceMean",), _mean_kind, _sums, ("gap", "mean"), WINDOW, MappingProxyType({"mean": ("gap", "avgpool")}),
        _CONSTANTS, _INTEGERS, 18, check=_check, bandwidth_bound=True, single=reduced,
    ),
    OperatorSpec(
        ("ReduceSum",), "reducesum", _sums, (), WINDOW, MappingProxyType({"reducesum": ("mean", "gap", "avgpool")}),
        _CONSTANTS, _INTEGERS, check=_check, bandwidth_bound=True, single=reduced,
    ),
    OperatorSpec(
        ("ReduceMax", "ReduceMin"), "reducemax", _extremes, (), WINDOW,
        MappingProxyType({"reducemax": ("mean", "gap", "maxpool")}), _CONSTANTS, _INTEGERS, 18, check=_check,
        bandwidth_bound=True, single=reduced,
    ),
)  # fmt: skip
