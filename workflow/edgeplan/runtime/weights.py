"""Where the weights of a model lie in its files, and reading them from there without parsing the model again.

An ONNX file is a protobuf message; a walk over its wire format finds each initialiser's bytes (protobuf encoding: a tag
`field << 3 | wire type`, then a varint, 8 bytes, a length and that many bytes, or 4 bytes).
"""

from __future__ import annotations

import math
import mmap
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from edgeplan.errors import ModelError
from edgeplan.graph.ir import BYTES_PER_ELEMENT, Tensor
from edgeplan.graph.model_file import cannot_read, external_file, external_place
from edgeplan.graph.shapes import FLOAT16, FLOAT32
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.transform import SCALE

_FLOAT = 1
_FLOAT_BYTES = 4
_EXTERNAL = 1
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# Field numbers of onnx.proto.
_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_INITIALIZER = 7, 1, 5
_NODE_OUTPUT, _NODE_TYPE, _NODE_ATTRIBUTE = 2, 4, 5
_ATTRIBUTE_NAME, _ATTRIBUTE_FLOAT, _ATTRIBUTE_TENSOR, _ATTRIBUTE_FLOATS = 1, 2, 5, 7
_TENSOR_TYPE, _TENSOR_FLOATS, _TENSOR_NAME, _TENSOR_RAW, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 2, 4, 8, 9, 13, 14
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
#: From one value to the next where each is a field of its own: a tag of one byte stands before each.
_APART_BYTES = 1 + _FLOAT_BYTES
_IN_PIECES = 0
_COPY_AGAIN = "the file may be damaged: copy or export it again"
#: Element types of TensorProto whose raw bytes are found here.
_TYPES = MappingProxyType({_FLOAT: FLOAT32, 2: "uint8", 3: "int8", 6: "int32", 7: "int64", 9: "bool", 10: FLOAT16})
_AS_BYTES = (
    "import onnx; from onnx import numpy_helper as h; m = onnx.load({!r}); "
    "[t.CopyFrom(h.from_array(h.to_array(t), t.name)) for t in m.graph.initializer]; onnx.save(m, 'stored.onnx')"
)


@dataclass(frozen=True, slots=True)
class WeightLocation:
    """Bytes of one weight: little-endian, row-major, in a file whose path is relative to the model's folder.

    Offset and size go from the first byte of the first value to the last one of the last; from one value to the next there are
    `stride` bytes. Of bytes that are read as numbers the scales lie elsewhere, along an axis if there are several.
    """

    file: str
    offset: int
    size: int
    stride: int = _FLOAT_BYTES
    dtype: str = FLOAT32
    scale: WeightLocation | None = None
    axis: int = 0

    @property
    def count(self) -> int:
        """Return the number of values."""
        return -(-self.size // self.stride)

    @property
    def parts(self) -> Iterator[tuple[str, WeightLocation]]:
        """Yield what is read of the weight: the end of its role's name there, and where it lies."""
        yield "", self
        if self.scale is not None:
            yield SCALE, self.scale


class _Field(NamedTuple):
    """A field of a message: number, and where its payload starts and stops (a varint's payload is its value: start).

    Neighbouring fields of 4 bytes and one number are one of these, whose values lie `stride` bytes apart.
    """

    number: int
    start: int
    stop: int
    stride: int = _FLOAT_BYTES


def locate_weights(model: Path, lowered: Lowered) -> Mapping[str, WeightLocation]:
    """The bytes of every weight that the steps read."""
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found, size = dict(_initialisers(data, model.name)), len(data)
    except OSError as error:
        raise cannot_read(model, error) from error
    except (ValueError, IndexError) as error:
        raise ModelError(f"cannot find the weights: {error}", where=str(model), next_step=_COPY_AGAIN) from error

    def checked(tensor: Tensor) -> WeightLocation:
        return _checked(model, tensor, found.get(tensor.name), size)

    def located(tensor: Tensor) -> WeightLocation:
        if (stored := lowered.stored.get(tensor.name)) is None:
            return checked(tensor)
        scale = None if stored.scale is None else checked(stored.scale)
        return replace(checked(stored.values), scale=scale, axis=stored.axis)

    wanted = {name: lowered.shapes[name] for step in lowered.steps for name in step.weights.values()}
    return {name: located(Tensor(name, shape, lowered.types.get(name, FLOAT32))) for name, shape in wanted.items()}


def _checked(model: Path, tensor: Tensor, found: WeightLocation | None, model_bytes: int) -> WeightLocation:
    name, shape, dtype = tensor.name, tensor.shape, tensor.dtype

    def wrong(what: str, next_step: str = _COPY_AGAIN) -> ModelError:
        return ModelError(what, where=str(model), next_step=next_step)

    each = BYTES_PER_ELEMENT[dtype]
    needed = each * math.prod(shape)
    if found is not None and found.dtype != dtype:
        found = None
    if dtype != FLOAT32 and found is None:
        command = shlex.quote(_AS_BYTES.format(str(model)))
        raise wrong(
            f"the values of {name!r}, of {dtype}, do not stand as bytes in the file", f"store them so: python -c {command}"
        )
    if found is not None and found.stride == _IN_PIECES:
        command = shlex.quote(f"import onnx; onnx.save(onnx.load({str(model)!r}), 'packed.onnx')")
        raise wrong(f"the values of weight {name!r} stand in several pieces in the file", f"join them: python -c {command}")
    if found is not None and found.size < 0:  # external data that do not say how long they are
        found = replace(found, size=needed)
    held = None if found is None else each * -(-found.size // found.stride)
    if found is None or held != needed:
        says = "no f32 values" if held is None else f"{held} bytes"
        raise wrong(f"weight {name!r} has {says}; its shape {shape} needs {needed} bytes")
    if found.file != model.name:
        external_file(model, found.file, found.offset + found.size, f"weight {name!r}")
    elif found.offset + found.size > model_bytes:
        raise wrong(f"weight {name!r} lies beyond the end of {found.file}")
    return found


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # the last byte of a varint
            return value, at
        shift += 7


def _fields(data: mmap.mmap, start: int, stop: int) -> Iterator[_Field]:
    """Yield the fields of one message."""
    at = start
    while at < stop:
        tag_at = at
        key, at = _varint(data, at)
        wire, size, stride = key & 7, 0, _FLOAT_BYTES
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield _Field(key >> 3, value, -1)
            continue
        if wire == _LENGTH:
            size, at = _varint(data, at)
        elif wire == _FIXED64:
            size = 8
        elif wire == _FIXED32:
            count = _neighbours(data, tag_at, stop) if at == tag_at + 1 else 1
            if count > 1:
                size, stride = _APART_BYTES * count - 1, _APART_BYTES
            else:
                size = _FLOAT_BYTES
        else:
            raise ValueError(f"not a protobuf message at byte {at}")
        if at + size > stop:
            raise ValueError(f"the message at byte {at} runs beyond its end")
        yield _Field(key >> 3, at, at + size, stride)
        at += size


def _neighbours(data: mmap.mmap, at: int, stop: int) -> int:
    """Count the fields of 4 bytes with the tag at `at` that follow each other: there may be millions, or one."""
    most, count, look = (stop - at) // _APART_BYTES, 1, 1
    while count < most:
        look = min(2 * look, most - count)  # no further than twice what was found, so that short runs cost little
        tags = np.frombuffer(data, np.uint8, _APART_BYTES * look, at + _APART_BYTES * count)[::_APART_BYTES]
        others = np.flatnonzero(tags != data[at])
        if len(others):
            return count + int(others[0])
        count += look
    return count


def _initialisers(data: mmap.mmap, file: str) -> Iterator[tuple[str, WeightLocation]]:
    for graph in _fields(data, 0, len(data)):
        if graph.number == _MODEL_GRAPH:
            for part in _fields(data, graph.start, graph.stop):
                if part.number == _GRAPH_INITIALIZER:
                    yield from _tensor(data, part, file)
                elif part.number == _GRAPH_NODE:
                    yield from _constant(data, part, file)


def _constant(data: mmap.mmap, node: _Field, file: str) -> Iterator[tuple[str, WeightLocation]]:
    """The values of a Constant node, under the node's output."""
    output, kind, attributes = "", b"", []
    for field in _fields(data, node.start, node.stop):
        if field.number == _NODE_OUTPUT:
            output = data[field.start : field.stop].decode()
        elif field.number == _NODE_TYPE:
            kind = data[field.start : field.stop]
        elif field.number == _NODE_ATTRIBUTE:
            attributes.append(field)
    for attribute in attributes if kind == b"Constant" else ():
        parts = list(_fields(data, attribute.start, attribute.stop))
        name = next((data[p.start : p.stop] for p in parts if p.number == _ATTRIBUTE_NAME), b"")
        if name == b"value":
            for part in parts:
                if part.number == _ATTRIBUTE_TENSOR:
                    yield from ((output, location) for _, location in _tensor(data, part, file))
        elif name in _FLOAT_FIELDS and (found := _joined([p for p in parts if p.number == _FLOAT_FIELDS[name]], file)):
            yield output, found


_FLOAT_FIELDS = {b"value_float": _ATTRIBUTE_FLOAT, b"value_floats": _ATTRIBUTE_FLOATS}


def _joined(fields: list[_Field], file: str) -> WeightLocation | None:
    """Where values lie that one repeated field holds."""
    held = [field for field in fields if field.stop > field.start]
    if not held:
        return None
    first, last = held[0], held[-1]
    return WeightLocation(file, first.start, last.stop - first.start, first.stride if len(held) == 1 else _IN_PIECES)


def _tensor(data: mmap.mmap, tensor: _Field, file: str) -> Iterator[tuple[str, WeightLocation]]:
    held: dict[int, list[_Field]] = {}
    for field in _fields(data, tensor.start, tensor.stop):
        held.setdefault(field.number, []).append(field)
    dtype = _TYPES.get(next((field.start for field in held.get(_TENSOR_TYPE, ())[-1:]), 0))
    if dtype is None:
        return
    name = "".join(data[field.start : field.stop].decode() for field in held.get(_TENSOR_NAME, ())[-1:])
    if any(field.start == _EXTERNAL for field in held.get(_TENSOR_LOCATION, ())[-1:]):
        place = external_place(dict(_entry(data, field) for field in held.get(_TENSOR_EXTERNAL, ())))
        if place is not None:
            size = -1 if place.length is None else place.length
            yield name, WeightLocation(place.location, place.offset, size, BYTES_PER_ELEMENT[dtype], dtype)
    elif found := _joined(held.get(_TENSOR_RAW, [])[-1:], file):
        yield name, replace(found, stride=BYTES_PER_ELEMENT[dtype], dtype=dtype)
    # packed or not, floats have the same bytes as raw data; other numbers are shortened
    elif dtype == FLOAT32 and (found := _joined(held.get(_TENSOR_FLOATS, []), file)):
        yield name, found


def _entry(data: mmap.mmap, field: _Field) -> tuple[str, str]:
    found = {f.number: data[f.start : f.stop].decode() for f in _fields(data, field.start, field.stop)}
    return found.get(_ENTRY_KEY, ""), found.get(_ENTRY_VALUE, "")
