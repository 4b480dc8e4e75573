"""Graphs to ONNX models with seeded random weights.

A file is written piece by piece, weights as they are drawn: what is in memory meanwhile is a few MB, whatever the model's size.
The bytes are those that protobuf would write.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from google.protobuf.message import Message
from onnx import TensorProto, helper

from edgeplan.graph.index_limits import PICKING
from edgeplan.graph.ir import Attribute, Graph, Operator, Shape, Tensor
from edgeplan.graph.onnx.constants import point
from edgeplan.graph.operators.products import operands_in_place
from edgeplan.graph.operators.registry import SPECS
from edgeplan.graph.shapes import FLOAT32
from edgeplan.support.files import write_atomically

IR_VERSION = 9

#: protobuf refuses messages of 2 GiB; weights above this many bytes go to a file beside the model.
EXTERNAL_DATA_THRESHOLD_BYTES = 1_500_000_000

Array = npt.NDArray[np.float32]
#: Draws the values of a weight, one after the other, in arrays of a few MB.
Draw = Callable[[], Iterable[Array]]
#: Operators whose weights of integers are places, which any axis has, or zero points; those of others are ones.
_ZEROS = PICKING | {"QuantizeLinear", "DequantizeLinear"}
#: What an operator of the graph has meant since.
_LEAST_OPSET = {"GroupNormalization": 21}
#: Numpy's names of types that ONNX calls otherwise.
_TYPES = {"float": "float32", "double": "float64"}
_CHUNK_ELEMENTS = 1 << 20  # even, as two values of single precision are drawn from one number of the generator
_LEAST_EXTERNAL_BYTES = 1024
_LEAST_HOLLOW_BYTES = 1 << 16
_RAW_DATA, _GRAPH, _INITIALIZER = 9, 7, 5  # numbers of fields in onnx.proto
#: The opset that models are written in.
OPSET = 17
#: Operators whose constants are of the type of what they read.
_OF_ITS_TYPE = frozenset({"Clip", "Pad"})
#: What constants were called while they were attributes.
_FORMER = {"constant_value": "value"}


@dataclass(frozen=True, slots=True)
class Constant:
    """An operand that a graph keeps as an attribute, by its role: the attribute's name."""

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


@dataclass(frozen=True, slots=True)
class SeededModel:
    """A seeded model draws its weights when it is written.

    Initialisers that are drawn hold no values, but are drawn by their name; the others hold theirs as raw data.
    """

    model: onnx.ModelProto
    draws: Mapping[str, Draw] = field(default_factory=dict)

    def whole(self) -> onnx.ModelProto:
        """Return the model with its weights, which are filled in."""
        for tensor in self.model.graph.initializer:
            if tensor.name in self.draws:
                tensor.raw_data = b"".join(chunk.tobytes() for chunk in self.draws[tensor.name]())
        return self.model

    def save(self, path: Path, *, sync: bool = True) -> Path:
        """Write the model beside `path`, and rename it; weights near protobuf's limit go to `<path>.data` in the same way."""
        tensors = self.model.graph.initializer
        beside = path.with_name(f"{path.name}.data")
        if sum(map(self._bytes, tensors)) <= EXTERNAL_DATA_THRESHOLD_BYTES:
            _write(path, self._pieces([self._inside(tensor) for tensor in tensors]), sync=sync)
            beside.unlink(missing_ok=True)  # of the model that was there before
            return path
        outside = [tensor for tensor in tensors if self._bytes(tensor) >= _LEAST_EXTERNAL_BYTES]
        _write(beside, (chunk for tensor in outside for chunk in self._values(tensor)), sync=sync)
        offset, told = 0, []
        for tensor in tensors:
            size = self._bytes(tensor)
            if size < _LEAST_EXTERNAL_BYTES:
                told.append(self._inside(tensor))
                continue
            told.append(_Piece(_outside(tensor, beside.name, offset, size)))
            offset += size
        _write(path, self._pieces(told), sync=sync)
        return path

    def save_hollow(self, path: Path) -> Path:
        """Write the model with large drawn weights said to lie in a file that is not there: for who looks at shapes alone."""
        tensors = [
            _Piece(_outside(tensor, "nowhere", 0, self._bytes(tensor)))
            if tensor.name in self.draws and self._bytes(tensor) > _LEAST_HOLLOW_BYTES
            else self._inside(tensor)
            for tensor in self.model.graph.initializer
        ]
        _write(path, self._pieces(tensors), sync=False)
        return path

    def _bytes(self, tensor: TensorProto) -> int:
        return 4 * math.prod(tensor.dims) if tensor.name in self.draws else len(tensor.raw_data)

    def _values(self, tensor: TensorProto) -> Iterable[Array | bytes]:
        return self.draws[tensor.name]() if tensor.name in self.draws else [tensor.raw_data]

    def _inside(self, tensor: TensorProto) -> _Piece:
        if tensor.name not in self.draws:
            return _Piece(tensor.SerializeToString())
        header = _fields(tensor, 0, _RAW_DATA) + _start(_RAW_DATA, size := self._bytes(tensor))
        return _Piece(header, size, self.draws[tensor.name])

    def _pieces(self, tensors: list[_Piece]) -> Iterator[Array | bytes]:
        graph = self.model.graph
        before, after = _fields(graph, 0, _INITIALIZER), _fields(graph, _INITIALIZER + 1)
        starts = [_start(_INITIALIZER, tensor.size) for tensor in tensors]
        size = len(before) + len(after) + sum(map(len, starts)) + sum(tensor.size for tensor in tensors)
        yield _fields(self.model, 0, _GRAPH) + _start(_GRAPH, size) + before
        for start, tensor in zip(starts, tensors, strict=True):
            yield start + tensor.header
            yield from tensor.draw()
        yield after + _fields(self.model, _GRAPH + 1)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece is a tensor as the file holds it: a header, and so many bytes of values behind it."""

    header: bytes
    values_bytes: int = 0
    draw: Draw = tuple

    @property
    def size(self) -> int:
        return len(self.header) + self.values_bytes


def _write(path: Path, pieces: Iterable[Array | bytes], *, sync: bool) -> None:
    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            for piece in pieces:
                file.write(piece if isinstance(piece, bytes) else piece.data)

    write_atomically(path, write, sync=sync)


def _fields(message: Message, first: int, end: int = 1 << 29) -> bytes:
    """The fields of a message with numbers from `first` up to `end`, as bytes."""
    part = type(message)()
    for descriptor, value in message.ListFields():
        if not first <= descriptor.number < end:
            continue
        if hasattr(value, "extend"):
            getattr(part, descriptor.name).extend(value)
        else:
            setattr(part, descriptor.name, value)
    return part.SerializeToString()


def _outside(tensor: TensorProto, location: str, offset: int, size: int) -> bytes:
    told = TensorProto(data_location=TensorProto.EXTERNAL)
    point(told, location, offset, size)
    place: bytes = told.SerializeToString()
    return _fields(tensor, 0, _RAW_DATA) + place


def _start(number: int, size: int) -> bytes:
    return _varint(number << 3 | 2) + _varint(size)


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:  # seven bits a byte
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*found, value))


def uniform(rng: np.random.Generator, elements: int) -> Iterator[Array]:
    """Values uniform in [0, 1), chunk by chunk: the same as drawn at once."""
    for start in range(0, max(elements, 1), _CHUNK_ELEMENTS):
        yield rng.random(min(_CHUNK_ELEMENTS, elements - start), dtype=np.float32)


def weight_chunks(tensor: Tensor, role: str, seed: int) -> Iterator[Array]:
    """Seeded values of one weight: uniform, scaled so that activations neither vanish nor overflow; never zero or denormal.

    Each tensor of a model draws from a stream of its own. A role is `weight`, `bias`, `scale`, `mean` or `variance`; of an LSTM
    `input_weight`, `recurrence_weight` or `bias`.
    """
    rng = np.random.default_rng((seed, zlib.crc32(tensor.name.encode())))
    if role in ("scale", "variance"):
        yield from (chunk * np.float32(0.5) + np.float32(0.75) for chunk in uniform(rng, tensor.elements))
        return
    if role in ("input_weight", "recurrence_weight"):  # small: an LSTM's states shall not depend chaotically on rounding
        width = np.float32(2 / tensor.shape[-1] ** 0.5)
    else:
        width = 2 * np.float32((6.0 / (max(1, tensor.elements // tensor.shape[0]) if role == "weight" else 100)) ** 0.5)
    for chunk in uniform(rng, tensor.elements):
        values = (chunk - np.float32(0.5)) * width
        values[values == 0] = np.float32(1e-6)
        yield values


def _opset(graph: Graph) -> int:
    """The opset to write: `OPSET`, or the first newer one that has all operators in their forms."""
    newest = OPSET
    for op in graph.operators:
        opsets = range(max(OPSET, _LEAST_OPSET.get(op.op_type, 0)), onnx.defs.onnx_opset_version() + 1)
        newest = max(newest, next((opset for opset in opsets if _has(graph, op, opset)), OPSET))
    return newest


def _has(graph: Graph, op: Operator, opset: int) -> bool:
    attributes, types, most = _schema(op.op_type, opset)
    return (
        attributes >= set(plain_attributes(op, opset))
        and types >= {graph.tensors[name].dtype for name in op.inputs}
        and len(placed(graph, op, opset)) <= most
    )


@cache
def _schema(op_type: str, opset: int) -> tuple[frozenset[str], frozenset[str], int]:
    """Names of the attributes, the types and the most inputs of an operator; none of one that is not there yet."""
    if not onnx.defs.has(op_type, max_inclusive_version=opset):
        return frozenset(), frozenset(), -1
    schema = onnx.defs.get_schema(op_type, opset)
    types = {name[len("tensor(") : -1] for kind in schema.type_constraints for name in kind.allowed_type_strs}
    return frozenset(schema.attributes), frozenset(_TYPES.get(name, name) for name in types), schema.max_input


def seeded(graph: Graph, seed: int = 0) -> SeededModel:
    """Return a valid ONNX model of the graph, whose weights, `<operator>.<role>`, are drawn when it is written."""
    opset = _opset(graph)
    model = helper.make_model(
        helper.make_graph([], graph.name, [], []), opset_imports=[helper.make_opsetid("", opset)], producer_name="edgeplan"
    )
    model.ir_version = IR_VERSION
    body, draws, written = model.graph, dict[str, Draw](), set[str]()
    for op in graph.operators:
        operands = []
        for operand in placed(graph, op, opset):
            operands.append(operand if isinstance(operand, str) else f"{op.name}.{operand.role}")
            if not isinstance(operand, str):
                _add_initializer(body, operands[-1], np.array(operand.value, operand.dtype).reshape(operand.shape))
        for weight in (name for name in op.weights if name not in written):
            written.add(weight)
            tensor = graph.tensors[weight]
            if tensor.dtype != FLOAT32:
                _add_initializer(body, weight, np.full(tensor.shape, op.op_type not in _ZEROS, tensor.dtype))
                continue
            body.initializer.add(name=weight, data_type=TensorProto.FLOAT).dims.extend(tensor.shape)
            draws[weight] = partial(weight_chunks, tensor, weight.rsplit(".", 1)[-1], seed)
        attributes: dict[str, Any] = plain_attributes(op, opset)
        if isinstance(words := attributes.get("activations"), str):  # a graph has no lists of words
            attributes["activations"] = words.split()
        body.node.append(helper.make_node(op.op_type, operands, list(op.outputs), name=op.name, **attributes))
    for infos, tensors in ((body.input, graph.inputs), (body.output, graph.outputs)):
        kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(graph.tensors[name].dtype)) for name in tensors]
        infos.extend(map(helper.make_tensor_value_info, tensors, kinds, map(graph.shape, tensors)))
    return SeededModel(model, draws)


def to_onnx(graph: Graph, seed: int = 0) -> onnx.ModelProto:
    """Return a valid ONNX model of the graph, with seeded weights."""
    return seeded(graph, seed).whole()


def _add_initializer(body: onnx.GraphProto, name: str, values: npt.NDArray[Any]) -> None:
    """Write an initializer in place: `make_graph` and `make_model` would copy hundreds of megabytes, several times."""
    tensor = body.initializer.add(name=name, data_type=helper.np_dtype_to_tensor_dtype(values.dtype), raw_data=values.tobytes())
    tensor.dims.extend(values.shape)


def weight_bytes(graph: Graph) -> int:
    """Return bytes of all weights of the graph."""
    return sum(graph.tensors[w].size_bytes for op in graph.operators for w in op.weights)


def save_onnx(graph: Graph, path: Path, seed: int = 0, *, sync: bool = False) -> Path:
    """Write the graph as an ONNX file: see `SeededModel.save`."""
    return seeded(graph, seed).save(path, sync=sync)
