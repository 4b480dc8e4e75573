"""Builds models as exporters write them: nodes named after modules, constants as in frameworks, any element types.

A `Graph` knows weights by their shapes, and only operators that the package runs; here ONNX itself is
the form, so that models come as they come from elsewhere. Weights are drawn when the file is written.
"""

from __future__ import annotations

import math
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeplan.graph.onnx.rewriting import light
from edgeplan.graph.onnx.write import IR_VERSION, OPSET, SeededModel, uniform


@dataclass(frozen=True, slots=True)
class Uniform:
    """Uniform values of a weight are seeded, within centre ± spread."""

    spread: float
    centre: float = 0.0

    def draw(self, name: str, elements: int, seed: int) -> Iterator[npt.NDArray[np.float32]]:
        """Yield float32 values of a weight of this name, chunk by chunk; each weight draws from a stream of its own."""
        for chunk in uniform(np.random.default_rng((seed, zlib.crc32(name.encode()))), elements):
            yield (chunk - np.float32(0.5)) * np.float32(2 * self.spread) + np.float32(self.centre)


@dataclass(frozen=True, slots=True)
class Exported:
    """Holds an exported model, whose weights are initialisers without values yet, and the distribution of each by name."""

    model: onnx.ModelProto
    weights: dict[str, Uniform]

    @property
    def parameters(self) -> int:
        """Count the elements of all weights; one that several nodes read counts once."""
        shapes = {tensor.name: tensor.dims for tensor in self.model.graph.initializer}
        return sum(math.prod(shapes[name]) for name in self.weights)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of every tensor, weights included."""
        body = onnx.shape_inference.infer_shapes(light(self.model), check_type=True, strict_mode=True).graph
        found = {tensor.name: tuple(tensor.dims) for tensor in self.model.graph.initializer}
        for value in (*body.input, *body.value_info, *body.output):
            found[value.name] = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        return found

    def seeded(self, seed: int = 0) -> SeededModel:
        """Return the model with the weights of a seed, which are drawn when it is written."""
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        sizes = {tensor.name: math.prod(tensor.dims) for tensor in model.graph.initializer}
        return SeededModel(model, {name: partial(how.draw, name, sizes[name], seed) for name, how in self.weights.items()})


class ExportBuilder:
    """A builder makes a model node by node.

    Nodes are named `<scope>/<type>` as torch.onnx names them, numbered where names repeat; each output
    carries its node's name.
    """

    def __init__(self, name: str, opset: int = OPSET) -> None:
        self.opset = opset
        self._graph = onnx.GraphProto(name=name)
        self._weights: dict[str, Uniform] = {}
        self._used = Counter[str]()

    def input(self, name: str, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> str:
        """Declare an input of an ONNX element type."""
        self._graph.input.append(helper.make_tensor_value_info(name, kind, list(shape)))
        return name

    def weight(self, name: str, shape: Sequence[int], spread: float, centre: float = 0.0) -> str:
        """Declare a float32 weight whose values are uniform in centre ± spread."""
        self._weights[name] = Uniform(spread, centre)
        self._graph.initializer.add(name=name, data_type=TensorProto.FLOAT).dims.extend(shape)
        return name

    def matrix(self, name: str, inputs: int, outputs: int, gain: float = 1.0) -> str:
        """Declare weights (inputs, outputs) that keep an input's variance, times gain squared (LeCun et al., 1998)."""
        return self.weight(name, (inputs, outputs), gain * math.sqrt(3 / inputs))

    def constant(self, name: str, values: Any, kind: type[np.generic] = np.float32) -> str:
        """Add a constant of given values, which is no weight; one of the same name is the same."""
        if name not in (tensor.name for tensor in self._graph.initializer):
            self._graph.initializer.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def nodes(self, op_type: str, inputs: Sequence[str], outputs: int, scope: str = "", **attributes: Any) -> tuple[str, ...]:
        """Add a node; return the names of its outputs."""
        plain = f"{scope}/{op_type}"
        name = f"{plain}_{self._used[plain]}" if self._used[plain] else plain
        self._used[plain] += 1
        made = tuple(f"{name}_output_{place}" for place in range(outputs))
        self._graph.node.append(helper.make_node(op_type, list(inputs), list(made), name=name, **attributes))
        return made

    def node(self, op_type: str, inputs: Sequence[str], scope: str = "", **attributes: Any) -> str:
        """Add a node with one output; return its name."""
        return self.nodes(op_type, inputs, 1, scope, **attributes)[0]

    def reshape(self, x: str, shape: Sequence[int], scope: str = "") -> str:
        """Return the reshape to a static shape."""
        return self.node("Reshape", [x, self.integers(shape)], scope)

    def integers(self, values: Sequence[int]) -> str:
        """Return a constant list of 64-bit integers, shared among the nodes that read the same."""
        return self.constant(f"ints_{'_'.join(map(str, values))}", list(values), np.int64)

    def scalar(self, op_type: str, x: str, value: float, scope: str = "", *, first: bool = False) -> str:
        """Return a node of an activation and a number, the number first where asked."""
        number = self.constant(f"number_{value!r}", value)
        return self.node(op_type, [number, x] if first else [x, number], scope)

    def linear(self, x: str, inputs: int, outputs: int, scope: str, *, gain: float = 1.0) -> str:
        """Return a fully connected layer of three axes as torch.onnx writes it: MatMul, then Add with the bias first."""
        product = self.node("MatMul", [x, self.matrix(f"{scope}.weight", inputs, outputs, gain)], scope)
        return self.node("Add", [self.bias(scope, outputs), product], scope)

    def bias(self, scope: str, size: int) -> str:
        """Declare the bias of a layer."""
        return self.weight(f"{scope}.bias", (size,), 0.1)

    def layer_norm(self, x: str, width: int, scope: str, epsilon: float) -> str:
        """Add a layer normalisation of the last axis."""
        scale = self.weight(f"{scope}.weight", (width,), 0.25, 1.0)
        return self.node("LayerNormalization", [x, scale, self.bias(scope, width)], scope, axis=-1, epsilon=epsilon)

    def build(self, outputs: dict[str, str]) -> Exported:
        """Build the finished model with tensors as outputs, by name; nodes and their other readers take the new name."""
        names = {tensor: name for name, tensor in outputs.items()}
        for node in self._graph.node:
            for values in (node.input, node.output):
                values[:] = [names.get(value, value) for value in values]
        self._graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        model = helper.make_model(
            self._graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=IR_VERSION, producer_name="edgeplan"
        )
        inferred = onnx.shape_inference.infer_shapes(light(model), check_type=True, strict_mode=True).graph
        del model.graph.output[:]
        model.graph.output.extend(inferred.output)
        return Exported(model, self._weights)
