"""Softmax as it was before opset 13: over an axis and all behind it together."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from dataclasses import replace
from types import MappingProxyType

from edgeplan.graph.ir import Operator, Tensor
from edgeplan.graph.names import free

#: From this opset on Softmax runs over one axis.
_OF_ONE_AXIS = 13


def over_one_axis(op: Operator, opset: int, tensors: MutableMapping[str, Tensor], taken: set[str]) -> tuple[Operator, ...]:
    """An operator as the graph knows it: an old Softmax over several axes has these joined before it and parted behind it.

    Args:
        op: the operator, of which the shapes are known.
        opset: of its model.
        tensors: tensors by name; those between the new operators are added.
        taken: names of all tensors and operators; the new ones are added.
    """
    if op.op_type not in ("Softmax", "LogSoftmax") or opset >= _OF_ONE_AXIS:
        return (op,)
    shape = tensors[op.inputs[0]].shape
    axis = op.integer("axis", 1)
    axis += len(shape) * (axis < 0)
    together = [i for i in range(axis, len(shape)) if shape[i] > 1]
    if len(together) < 2:  # the others make no difference
        return (replace(op, attributes=MappingProxyType({"axis": together[0] if together else axis})),)
    matrix = (math.prod(shape[:axis]), math.prod(shape[axis:]))
    joined, parted, before, behind = (
        free(f"{name}:{told}", taken) for name in (op.outputs[0], op.name) for told in ("joined", "parted")
    )
    for name in (joined, parted):
        tensors[name] = Tensor(name, matrix, tensors[op.inputs[0]].dtype)
    taken |= {joined, parted, before, behind}
    return (
        Operator(before, "Reshape", op.inputs, (joined,), attributes=MappingProxyType({"shape": matrix})),
        replace(op, inputs=(joined,), outputs=(parted,), attributes=MappingProxyType({"axis": 1})),
        Operator(behind, "Reshape", (parted,), op.outputs, attributes=MappingProxyType({"shape": shape})),
    )
