"""The graph every chapter works on: operators with static shapes, in topological order.

Shapes are in ONNX order: activations NCHW, convolution weights (out, in / groups, kernel_h, kernel_w), fully connected weights
(out, in). Weights are known by name and shape only; their values exist in ONNX files alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

from edgeplan.graph.shapes import BYTES_PER_ELEMENT, Shape

__all__ = ["BYTES_PER_ELEMENT", "Attribute", "Graph", "Operator", "Shape", "StoredWeight", "Tensor"]

Attribute = int | float | str | tuple[int | float, ...]


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor has a static shape and an element type."""

    name: str
    shape: Shape
    dtype: str = "float32"

    @property
    def elements(self) -> int:
        """Return the number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Return the size in bytes when stored densely."""
        return self.elements * BYTES_PER_ELEMENT[self.dtype]


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator is one ONNX node of a graph.

    Attributes:
        name: unique within its graph.
        op_type: ONNX operator type, e.g. `Conv`.
        inputs: names of the activations read, in order.
        weights: names of the initialisers read, in order (weight, bias; BatchNormalization: scale, bias, mean, variance; LSTM:
            input weights W, recurrence weights R, bias B).
        outputs: names of the tensors written.
        attributes: ONNX attributes; `constants` holds the places of the weights among `operands` where they do not come last
            (a product of a constant, a concatenation with one). Constant inputs that ONNX passes as tensors are attributes:
            `shape` (Reshape), `min`/`max` (Clip), `split` (Split), `axes` (ReduceMean, Squeeze, Unsqueeze), `scales` or `sizes`
            (Resize).
    """

    name: str
    op_type: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def operands(self) -> tuple[str, ...]:
        """Return the operands, activations and weights, in ONNX's order."""
        places = self.attributes.get("constants")
        if not isinstance(places, tuple):
            return (*self.inputs, *self.weights)
        inputs, weights = iter(self.inputs), iter(self.weights)
        count = len(self.inputs) + len(self.weights)
        return tuple(next(weights) if place in places else next(inputs) for place in range(count))

    def integers(self, key: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """Return an attribute that is a list of integers."""
        value = self.attributes.get(key, default)
        return tuple(int(v) for v in value) if isinstance(value, tuple) else (int(value),)

    def integer(self, key: str, default: int) -> int:
        """Return an attribute that is one integer."""
        return int(self.attributes.get(key, default))  # type: ignore[arg-type]

    def number(self, key: str, default: float) -> float:
        """Return an attribute that is one number."""
        return float(self.attributes.get(key, default))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """A weight that lies in the file as halves (float16), or as bytes (int8) that stand for themselves times a scale.

    There is one scale for all bytes, or one for each place along an axis; none of halves.
    """

    values: Tensor
    scale: Tensor | None = None
    axis: int = 0


@dataclass(frozen=True)
class Graph:
    """A graph holds operators in topological order over named tensors (activations and weights).

    Attributes:
        name, operators, inputs, outputs, tensors: what is given, and what operators compute for the caller.
        constants: outputs that nothing computes, each with the initialiser that it hands out.
        stored: weights that the file holds in fewer bytes, by the name that operators call their numbers by.
    """

    name: str
    operators: tuple[Operator, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    stored: Mapping[str, StoredWeight] = field(default_factory=lambda: MappingProxyType({}))

    @cached_property
    def producer(self) -> Mapping[str, Operator]:
        """Return the operator that writes each activation (graph inputs have none)."""
        return {output: op for op in self.operators for output in op.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Operator, ...]]:
        """Return the operators that read each activation, in topological order, one entry per operator."""
        found: dict[str, list[Operator]] = {}
        for op in self.operators:
            for name in dict.fromkeys(op.inputs):
                found.setdefault(name, []).append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    @cached_property
    def by_name(self) -> Mapping[str, Operator]:
        """Return the operators by name."""
        return {op.name: op for op in self.operators}

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor."""
        return self.tensors[tensor].shape

    def value_key(self, op: Operator, inputs: tuple[str, ...]) -> object:
        """Return a key of the value that an operator without weights computes from `inputs`: equal keys mean equal values.

        The shapes of what it writes are part of it, so that operators stay apart even where a constant that tells them apart
        is no attribute.
        """
        written = tuple((self.tensors[o].shape, self.tensors[o].dtype) for o in op.outputs)
        return op.op_type, inputs, tuple(sorted(op.attributes.items())), written

    def predecessors(self, op: Operator) -> tuple[Operator, ...]:
        """Return operators that feed `op`, in input order, without repeats."""
        return tuple({p.name: p for i in op.inputs if (p := self.producer.get(i))}.values())

    def successors(self, op: Operator) -> tuple[Operator, ...]:
        """Operators fed by `op`, in topological order, without repeats."""
        return tuple({c.name: c for o in op.outputs for c in self.consumers.get(o, ())}.values())
