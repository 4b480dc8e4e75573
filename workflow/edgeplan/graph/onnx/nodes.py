"""Nodes and constants of a graph as preparation writes them anew."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from edgeplan.graph.onnx.constants import held_value
from edgeplan.graph.onnx.outside import MOST_SMALL, held_values

Array = npt.NDArray[Any]


def names_in(graph: onnx.GraphProto) -> set[str]:
    """Return the names of all tensors and nodes of a graph."""
    of_nodes = (name for node in graph.node for name in (node.name, *node.input, *node.output))
    return {*(value.name for values in (graph.input, graph.output, graph.initializer) for value in values), *of_nodes}


class Writer:
    """A writer puts together the nodes that replace those of a graph, each in the place of the one that it stands for.

    Attributes:
        name: of the node that is being replaced, which names of new nodes and tensors begin with.
        constants: the graph's initialisers and values of `Constant` nodes, and those that are new.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self._graph, self._nodes, self._new = graph, list[onnx.NodeProto](), list[TensorProto]()
        self._count = 0
        self._taken = names_in(graph)
        self.name = ""
        self.constants: dict[str, TensorProto] = {tensor.name: tensor for tensor in graph.initializer}
        for node in graph.node:
            if node.op_type == "Constant" and (value := held_value(node)) is not None:
                self.constants[node.output[0]] = value

    def keep(self, node: onnx.NodeProto) -> None:
        """Write a node as it is."""
        self._nodes.append(node)

    def new(self) -> str:
        """Return a name that nothing has."""
        while (found := f"{self.name}:{self._count}") in self._taken:
            self._count += 1
        self._taken.add(found)
        return found

    def node(self, op_type: str, reads: Sequence[str], written: str = "", **attributes: Any) -> str:
        """Write a node of ONNX's own domain; the name of what it writes."""
        while reads and not reads[-1]:
            reads = reads[:-1]
        name = self.new()
        written = written or name
        self._nodes.append(helper.make_node(op_type, list(reads), [written], name=name, **attributes))
        return written

    def nodes(self, op_type: str, reads: Sequence[str], written: Sequence[str], **attributes: Any) -> None:
        """Write a node of ONNX's own domain with several outputs, "" for those that nothing reads."""
        self._nodes.append(helper.make_node(op_type, list(reads), list(written), name=self.new(), **attributes))

    def constant(self, value: Array, name: str = "") -> str:
        """Write a constant; its name."""
        return self.tensor(numpy_helper.from_array(np.ascontiguousarray(value).reshape(value.shape)), name)

    def tensor(self, value: TensorProto, name: str = "") -> str:
        """Write a constant as it is stored, under another name; the name."""
        name = name or self.new()
        tensor = TensorProto()
        tensor.CopyFrom(value)
        tensor.name = name
        self.constants[name] = tensor
        self._new.append(tensor)
        return name

    def value(self, name: str) -> Array | None:
        """Return the values of a constant; None if it is none."""
        tensor = self.constants.get(name)
        return None if tensor is None else held_values(tensor)

    def kind(self, name: str) -> int:
        """Return the element type of a constant; 0 if it is none."""
        return self.constants[name].data_type if name in self.constants else 0

    def size(self, name: str) -> int:
        """Return the number of elements of a constant; 1 if it is none."""
        return math.prod(self.constants[name].dims) if name in self.constants else 1

    def finish(self) -> None:
        """Put the written nodes and constants into the graph."""
        del self._graph.node[:]
        self._graph.node.extend(self._nodes)
        self._graph.initializer.extend(self._new)


def light(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model whose larger constants are inputs: ONNX's own tools copy it, and need no weights."""
    body = onnx.GraphProto(name="model", node=model.graph.node, input=model.graph.input, output=model.graph.output)
    for tensor in model.graph.initializer:
        if math.prod(tensor.dims) <= MOST_SMALL:
            body.initializer.append(tensor)
        else:
            body.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims)))
    return helper.make_model(body, opset_imports=model.opset_import, ir_version=model.ir_version)


def known_tensors(model: onnx.ModelProto) -> dict[str, tuple[int, tuple[int, ...] | None]]:
    """Return element type and shape of what the nodes of a model read and write, as far as ONNX's inference knows them.

    Args:
        model: large constants take no part in the inference; sizes that are not known are -1, without a rank it is None.
    """
    bare = light(model)
    del bare.graph.output[:]
    found = shape_inference.infer_shapes(bare, data_prop=True).graph
    known: dict[str, tuple[int, tuple[int, ...] | None]] = {}
    for value in (*found.value_info, *found.input, *found.output):
        kind = value.type.tensor_type
        sizes = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim)
        known[value.name] = (kind.elem_type, sizes if kind.HasField("shape") else None)
    return known | {tensor.name: (tensor.data_type, tuple(tensor.dims)) for tensor in model.graph.initializer}
