"""Operands at the places where ONNX has them: a graph keeps small constants as attributes, and nothing of what is left out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import Attribute, Graph, Operator, Shape
from edgeplan.graph.operators.recurrent import operands_in_place
from edgeplan.graph.operators.registry import SPECS

#: The opset that models are written in.
OPSET = 17
#: Operators whose constants are of the type of what they read.
_OF_ITS_TYPE = frozenset({"Clip", "Pad"})
#: What constants were called while they were attributes.
_FORMER = {"constant_value": "value"}


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant is an operand that a graph keeps as an attribute.

    Attributes:
        role: name of the attribute.
        value: of the attribute.
        dtype: type of its elements, by numpy's name.
        shape: extent of each axis.
    """

    role: str
    value: Attribute
    dtype: str
    shape: Shape


def placed(graph: Graph, op: Operator, opset: int = OPSET) -> tuple[str | Constant, ...]:
    """Return the operands of an operator in ONNX's order: names of tensors, "" for those left out, and constants."""
    found: list[str | Constant] = [*operands_in_place(graph, op)]
    for place, constant in _constants(graph, op, opset):
        found += [""] * (place + 1 - len(found))
        found[place] = constant
    return tuple(found)


def plain_attributes(op: Operator, opset: int = OPSET) -> dict[str, Attribute]:
    """Return the attributes that are attributes in ONNX, too."""
    spec = SPECS[op.op_type]
    constants = {"constants", *(spec.constants if spec.inputs_since <= opset else ())}
    constants |= {old for new, old in _FORMER.items() if new in constants}
    return {key: value for key, value in op.attributes.items() if key not in constants}


def _constants(graph: Graph, op: Operator, opset: int) -> Iterator[tuple[int, Constant]]:
    spec = SPECS[op.op_type]
    if op.op_type == "LayerNormalization" and not op.weights:  # written as arithmetic by who exported it
        (axis,), inner = op.integers("axis", (-1,)), graph.shape(op.inputs[0])
        yield 1, Constant("scale", (1.0,) * math.prod(inner[axis:]), FLOAT32, inner[axis:])
    for place, role in enumerate(spec.constants if spec.inputs_since <= opset else ()):
        value = op.attributes.get(role, op.attributes.get(_FORMER.get(role, role)))
        if role and value is not None:
            floats = graph.tensors[op.inputs[0]].dtype if op.op_type in _OF_ITS_TYPE else FLOAT32
            dtype = "int32" if role == "sequence_lens" else "int64" if role in spec.integers else floats
            yield place, Constant(role, value, dtype, _shape(graph, op, value))


def _shape(graph: Graph, op: Operator, value: Attribute) -> Shape:
    """Return the shape of a constant, whose attribute is flat: that of indices shows in what is picked by them."""
    if op.op_type == "Gather":
        rank, out = len(graph.shape(op.inputs[0])), graph.shape(op.outputs[0])
        axis = op.integer("axis", 0) % rank
        return out[axis : axis + len(out) - rank + 1]
    return (len(value),) if isinstance(value, tuple) else ()
