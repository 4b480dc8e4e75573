"""A random model that is being drawn: its operators, inputs and constants, with the shapes that ONNX infers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from model_file_runs import made
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Shape = tuple[int, ...]
_OPSET = 21
_LARGEST = 6000  # elements of an activation
_MOST_AXES = 5


class Drawing:
    """A model being drawn.

    `rng` decides everything; `counts` says how often each operator, and each value of its attributes, was drawn so far.
    """

    def __init__(self, rng: np.random.Generator, counts: Counter[str]) -> None:
        self.rng, self.counts, self.op = rng, counts, ""
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: dict[str, Shape] = {}
        self.constants: dict[str, Array] = {}
        self.shapes: dict[str, Shape] = {}
        self.types: dict[str, int] = {}  # of activations that are not of float32, which one operator hands to the next

    def pick(self, label: str, *options: Any) -> Any:
        """One of some options, which is counted."""
        found = options[self.rng.integers(len(options))]
        self.counts[f"{self.op} {label} {found}"] += 1
        return found

    def one(self, *options: Any) -> Any:
        return options[self.rng.integers(len(options))]

    def sizes(self, count: int, least: int = 1, most: int = 6) -> Shape:
        return tuple(int(size) for size in self.rng.integers(least, most + 1, count))

    def given(self, shape: Shape) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.shapes[name] = shape
        return name

    def value(self, *ranks: int, least: int = 1) -> str:
        """An activation of one of these ranks, any without; at least so many places along the axes behind the second."""
        fits = [
            name
            for name, shape in self.shapes.items()
            if (len(shape) in ranks or not ranks)
            and name not in self.types
            and 0 < len(shape) <= _MOST_AXES
            and math.prod(shape) <= _LARGEST
            and all(size >= least for size in shape[2:])
        ]
        if fits and self.rng.random() < 0.9:
            return str(self.one(*fits[-4:]))
        rank = int(self.one(*(ranks or (1, 2, 3, 4, 4, 5))))
        channels = int(self.one(1, 2, 4, 6, 8, 16))
        return self.given(
            (*self.sizes(min(rank, 1), 1, 2), *[channels][: rank - 1], *self.sizes(max(0, rank - 2), max(least, 3), 7))
        )

    def positive(self, name: str) -> str:
        """An activation's magnitudes and a half."""
        return self.node("Add", [self.node("Abs", [name]), self.constant(0.5)])

    def constant(self, given: Shape | Array | Sequence[int] | float) -> str:
        """A constant: random of a shape (a tuple), or its values."""
        name = f"c{len(self.constants)}"
        values = self.rng.random(given) - 0.5 if isinstance(given, tuple) else np.asarray(given)
        self.constants[name] = values.astype(np.int64 if values.dtype.kind == "i" else np.float32)
        return name

    def node(self, op_type: str, reads: Sequence[str], outputs: int = 1, **attributes: Any) -> str:
        """An operator; the name of its first output. All outputs may be read by what is drawn later."""
        writes = [f"t{len(self.shapes)}_{place}" for place in range(outputs)]
        written = helper.make_node(op_type, list(reads), writes, name=f"n{len(self.nodes)}", **attributes)
        inner = written if op_type != "GroupNormalization" else helper.make_node("Relu", reads[:1], writes)
        held = {n: numpy_helper.from_array(self.constants[n], n) for n in inner.input if n in self.constants}
        given = {n: (tensor.data_type, tuple(tensor.dims)) for n, tensor in held.items()}
        given |= {n: (self.types.get(n, TensorProto.FLOAT), self.shapes[n]) for n in inner.input if n in self.shapes}
        types = {n: helper.make_tensor_type_proto(*told) for n, told in given.items()}
        schema, opsets = onnx.defs.get_schema(inner.op_type, _OPSET), [helper.make_opsetid("", _OPSET)]
        found = onnx.shape_inference.infer_node_outputs(schema, inner, types, held, opset_imports=opsets)
        for name in writes:
            kind = found[name].tensor_type
            self.shapes[name] = tuple(d.dim_value for d in kind.shape.dim)
            if kind.elem_type != TensorProto.FLOAT:
                self.types[name] = kind.elem_type
        self.nodes.append(written)
        return writes[0]

    def model(self) -> onnx.ModelProto:
        """What was drawn; its outputs are what nothing reads."""
        read = {name for node in self.nodes for name in node.input}
        last = [name for node in self.nodes for name in node.output if name in self.shapes and name not in read]
        inputs = {n: (TensorProto.FLOAT, s) for n, s in self.inputs.items() if n in read}
        return made(self.nodes, inputs, self.constants, output=" ".join(last), opset=_OPSET)
