"""Nodes of opsets 1 to 6 as opset 7 writes them, and sums of many as additions.

Before opset 7 operands were broadcast by attributes, operators said whether they trained, and a Reshape had its shape as an
attribute; the nodes of models for inference mean the same as today. What does not is refused by name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import NoReturn

import onnx
from onnx import TensorProto, helper

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Tensor
from edgeplan.graph.names import free
from edgeplan.graph.onnx.constants import constant_tensor
from edgeplan.graph.onnx.contents import Contents

#: Shapes of the tensors that nodes write, from the nodes so far.
Shapes = Callable[[Contents, Sequence[onnx.NodeProto]], Mapping[str, Tensor]]

_OPSET = 7
_SHAPE_AS_INPUT = 5
_OPERANDS = 2
_DROPPED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow"), ("broadcast", "axis")),
        "Gemm": ("broadcast",),
        "BatchNormalization": ("is_test",),
        "Dropout": ("is_test",),
        **dict.fromkeys(("LSTM", "GRU", "RNN"), ("output_sequence",)),
    }
)
#: Operators of any number of operands -> what joins two of them.
_JOINED: Mapping[str, str] = MappingProxyType({"Sum": "Add", "Max": "Max", "Min": "Min"})
_INFERENCE = "export the model for inference"
_LATER = "export it with opset 7 or later"  # onnx.version_converter aligns some operands wrongly


def modern(contents: Contents, shapes: Shapes, source: str) -> Contents:
    """Return a model whose nodes are of opset 7 at least, without `Sum`.

    Args:
        contents: the model; its nodes fit the schemas of its opset.
        shapes: infers the shapes of what some nodes write.
        source: where the model comes from, for messages.

    Raises:
        ModelError: a node means another thing than any of today, or is broadcast in a way that no node of today is.
    """
    if contents.opset >= _OPSET:
        taken = contents.names
        nodes = [plain for node in contents.nodes for plain in _additions(node, contents.constants, taken)]
        return replace(contents, nodes=tuple(nodes))
    return _Rewriting(contents, shapes, source).run()


class _Rewriting:
    """A rewriting walks over the nodes of one model."""

    def __init__(self, contents: Contents, shapes: Shapes, source: str) -> None:
        self.opset, self.source, self.infer = contents.opset, source, shapes
        self.old, self.nodes = contents, list[onnx.NodeProto]()
        self.constants, self.tensors = dict(contents.constants), dict(contents.tensors)
        self.known: dict[str, Tensor] = {}
        self.taken = contents.names
        self.readers = Counter(name for node in contents.nodes for name in node.input)
        self.aligned: dict[str, tuple[int, ...]] = {}  # constants of another shape than in the file

    @property
    def contents(self) -> Contents:
        constants, tensors = MappingProxyType(self.constants), MappingProxyType(self.tensors)
        return replace(self.old, opset=_OPSET, nodes=tuple(self.nodes), constants=constants, tensors=tensors)

    def run(self) -> Contents:
        for node in self.old.nodes:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            self._require_inference(node, attributes)
            plain = onnx.NodeProto()
            plain.CopyFrom(node)
            del plain.attribute[:]
            dropped = (*_DROPPED.get(node.op_type, ()), "consumed_inputs")
            plain.attribute.extend(a for a in node.attribute if a.name not in dropped)
            if attributes.get("broadcast") and "axis" in attributes and node.op_type != "Gemm":
                self._align(plain, int(attributes["axis"]))
            if node.op_type == "PRelu" and len(self._shape(node.input[0], node)) > _OPERANDS:
                self._align(plain, 1)  # one slope for each channel
            if node.op_type == "Reshape" and self.opset < _SHAPE_AS_INPUT:
                self._shape_as_input(plain)
            if node.op_type == "Concat" and "axis" not in attributes:
                plain.attribute.append(helper.make_attribute("axis", 1))  # so it was before opset 4
            if node.op_type == "Split" and len(node.input) > 1:
                self._refuse(node, "with its sizes as an input", _LATER)
            self.nodes += _additions(plain, self.constants, self.taken)
        return self.contents

    def _require_inference(self, node: onnx.NodeProto, attributes: Mapping[str, object]) -> None:
        # without the attribute exporters meant inference, whatever its default: onnx.version_converter takes it so, too
        if node.op_type in ("BatchNormalization", "Dropout") and not attributes.get("is_test", 1):
            self._refuse(node, "in training mode", _INFERENCE)
        if node.op_type in ("LSTM", "GRU", "RNN") and node.output[0] and not attributes.get("output_sequence", 0):
            self._refuse(node, "that does not hand out its sequence", "export it with output_sequence=1, or a later opset")

    def _align(self, node: onnx.NodeProto, axis: int) -> None:
        """The second operand with axes of size 1 behind its own, which begin at `axis` of the first."""
        first, second = node.input[0], node.input[1]
        rank, shape = len(self._shape(first, node)), self._shape(second, node)
        axis += rank if axis < 0 else 0
        behind = rank - axis - len(shape)
        if behind < 0 or axis < 0:
            self._refuse(node, f"of {len(shape)} axes to {rank}, from axis {axis} on", "export the model again")
        if behind == 0:
            return
        if second in self.constants:
            self._reshape_constant(node, second, (*shape, *[1] * behind))
        else:
            name = free(f"{node.name}:aligned", self.taken)
            axes = list(range(len(shape), len(shape) + behind))
            self.nodes.append(helper.make_node("Unsqueeze", [second], [name], name=name, axes=axes))
            node.input[1] = name

    def _reshape_constant(self, node: onnx.NodeProto, name: str, shape: tuple[int, ...]) -> None:
        """A weight is known by its name, so all that read it must see it in one shape."""
        if self.aligned.setdefault(name, shape) != shape or self.readers[name] != self._aligning(name):
            self._refuse(
                node,
                f"of the constant {name!r} from an axis on, which others read in another shape",
                f"store the constant again under another name, or {_LATER}",
            )
        constant = TensorProto()
        constant.CopyFrom(self.old.constants[name])
        del constant.dims[:]
        constant.dims.extend(shape)
        self.constants[name] = constant
        self.tensors[name] = constant_tensor(name, constant, self.source)

    def _aligning(self, name: str) -> int:
        """Count the nodes that broadcast a constant from an axis on."""
        found = 0
        for node in self.old.nodes:
            given = {a.name for a in node.attribute if a.name == "axis" or a.i}
            aligned = node.op_type == "PRelu" or {"axis", "broadcast"} <= given
            found += list(node.input[1:_OPERANDS]) == [name] and aligned
        return found

    def _shape(self, name: str, node: onnx.NodeProto) -> tuple[int, ...]:
        if name in self.old.tensors:
            return self.old.tensors[name].shape
        if name not in self.known:
            self.known |= self.infer(self.contents, self.nodes)
        if name not in self.known:
            self._refuse(node, f"of {name!r}, whose shape is not known", _LATER)
        return self.known[name].shape

    def _shape_as_input(self, node: onnx.NodeProto) -> None:
        name = free(f"{node.name}:shape", self.taken)
        shape = next((list(a.ints) for a in node.attribute if a.name == "shape"), [])
        del node.attribute[:]
        node.input.append(name)
        self.constants[name] = helper.make_tensor(name, TensorProto.INT64, [len(shape)], shape)
        self.tensors[name] = Tensor(name, (len(shape),), "int64")

    def _refuse(self, node: onnx.NodeProto, what: str, next_step: str) -> NoReturn:
        where = f"{self.source}, node {node.name!r}"
        raise ModelError(f"{node.op_type} of opset {self.opset} {what}", where=where, next_step=next_step)


def _additions(node: onnx.NodeProto, constants: Collection[str], taken: set[str]) -> list[onnx.NodeProto]:
    """Return a sum, maximum or minimum of many as a chain of those of two, constants last; of one input it is that input."""
    joined = _JOINED.get(node.op_type)
    if joined is None or (node.op_type == joined and len(node.input) == _OPERANDS):
        return [node]
    if len(node.input) == 1:
        return [helper.make_node("Identity", node.input, node.output, name=node.name)]
    total, *others = sorted(node.input, key=lambda name: name in constants)
    found = []
    for place, name in enumerate(others, start=1):
        last = place == len(others)
        wanted = f"{node.name}:{place}:sum", f"{node.name}:{place}"
        written, called = (node.output[0], node.name) if last else (free(name, taken) for name in wanted)
        taken |= {written, called}
        found.append(helper.make_node(joined, [total, name], [written], name=called))
        total = written
    return found
