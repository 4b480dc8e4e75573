"""Operators that only move numbers move the bytes that stand for them, where these have one scale before and behind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import NamedTuple

from edgeplan.graph.ir import Graph, Operator, Tensor
from edgeplan.graph.operators.base import BYTES
from edgeplan.graph.operators.compiled import lacks_kernel
from edgeplan.graph.operators.registry import SPECS

_MOVES = frozenset(
    {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Split", "Gather", "Expand", "Tile"}
)  # fmt: skip


class Moved(NamedTuple):
    """A graph whose bytes are moved.

    Attributes:
        graph: the graph.
        members: operators that others stand for, by the name of that one: before and behind it.
    """

    graph: Graph
    members: Mapping[str, tuple[str, ...]]


def is_by_one_scale(graph: Graph, op: Operator, op_type: str) -> bool:
    """Tell whether an operator is between numbers and bytes, by one constant scale and zero point."""
    if op.op_type != op_type or len(op.inputs) != 1 or len(op.weights) != 2:
        return False
    scale, zero = (graph.tensors[name] for name in op.weights)
    return scale.elements == 1 and zero.dtype in BYTES


def bytes_moved(graph: Graph) -> Moved:
    """Return a graph in which bytes are moved instead of numbers that are made of them and are rounded to them again."""
    tensors, producer = dict(graph.tensors), dict(graph.producer)
    known = replace(graph, tensors=tensors)
    members: dict[str, tuple[str, ...]] = {}
    operators: list[Operator] = []
    dropped = set[str]()
    for op in graph.operators:
        if op.name in dropped:
            continue
        rounded = _rounded(known, op, producer)
        if not rounded:
            operators.append(op)
            continue
        numbers = producer[op.inputs[0]]
        for one, output in zip(rounded, op.outputs, strict=True):
            tensors[one.outputs[0]] = Tensor(one.outputs[0], graph.shape(output), tensors[numbers.inputs[0]].dtype)
        moved = replace(op, inputs=(*numbers.inputs, *op.inputs[1:]), outputs=tuple(one.outputs[0] for one in rounded))
        if lacks_kernel(known, moved, SPECS[op.op_type].elements):
            operators.append(op)
            continue
        operators.append(moved)
        producer |= dict.fromkeys(moved.outputs, moved)
        dropped |= {one.name for one in rounded}
        members[op.name] = tuple(one.name for one in rounded)
    if not members:
        return Moved(graph, MappingProxyType({}))
    read = {name for op in operators for name in op.inputs} | set(graph.outputs)
    unread = {op.name: op for op in operators if op.op_type == "DequantizeLinear" and not read & set(op.outputs)}
    for op in graph.operators:
        if op.name in members and (before := unread.pop(graph.producer[op.inputs[0]].name, None)) is not None:
            members[op.name] = (before.name, *members[op.name])
            operators.remove(before)
    return Moved(replace(graph, operators=tuple(operators), tensors=MappingProxyType(tensors)), MappingProxyType(members))


def _rounded(graph: Graph, op: Operator, producer: Mapping[str, Operator]) -> list[Operator]:
    """Return the operators that alone read what a move writes and make bytes of it as those that it reads were; or none."""
    numbers = producer.get(op.inputs[0]) if op.op_type in _MOVES and len(op.inputs) == 1 else None
    if numbers is None or not is_by_one_scale(graph, numbers, "DequantizeLinear"):
        return []
    found = list[Operator]()
    for output in op.outputs:
        readers = graph.consumers.get(output, ())
        if len(readers) != 1 or output in graph.outputs or not is_by_one_scale(graph, readers[0], "QuantizeLinear"):
            return []
        found += readers
    return found if all(one.weights == numbers.weights for one in found) else []
