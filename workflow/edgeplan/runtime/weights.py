"""Where the weights of a model lie in its files, and reading them from there without parsing the model again.

An ONNX file is a protobuf message; a walk over its wire format finds each initialiser's bytes (protobuf encoding: a tag
`field << 3 | wire type`, then a varint, 8 bytes, a length and that many bytes, or 4 bytes).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Shape
from edgeplan.runtime.steps import Lowered

_FLOAT = 1
_FLOAT_BYTES = 4
_EXTERNAL = 1
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
# Field numbers of onnx.proto.
_MODEL_GRAPH, _GRAPH_NODE, _GRAPH_INITIALIZER = 7, 1, 5
_NODE_OUTPUT, _NODE_ATTRIBUTE, _ATTRIBUTE_TENSOR = 2, 5, 5
_TENSOR_TYPE, _TENSOR_FLOATS, _TENSOR_NAME, _TENSOR_RAW, _TENSOR_EXTERNAL, _TENSOR_LOCATION = 2, 4, 8, 9, 13, 14
_ENTRY_KEY, _ENTRY_VALUE = 1, 2


@dataclass(frozen=True, slots=True)
class WeightLocation:
    """Bytes of one weight: little-endian f32, row-major.

    Attributes:
        file: path of the file that holds them, relative to the model's folder.
        offset, size: in bytes.
    """

    file: str
    offset: int
    size: int


def locate_weights(model: Path, lowered: Lowered) -> Mapping[str, WeightLocation]:
    """The bytes of every weight that the steps read.

    Raises:
        ModelError: the file is damaged, or a weight is missing, not f32, of another size, or outside its file.
    """
    try:
        with model.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            found = dict(_initialisers(data, model.name))
    except (OSError, ValueError, IndexError) as error:
        raise ModelError(
            f"cannot find the weights: {error}", where=str(model), next_step="the file may be damaged: copy or export it again"
        ) from error
    wanted = {name: lowered.shapes[name] for step in lowered.steps for name in step.weights.values()}
    sizes = {file: (model.parent / file).stat().st_size for file in _files(model, found, wanted)}
    return {name: _checked(model, name, shape, found, sizes) for name, shape in wanted.items()}


def _files(model: Path, found: Mapping[str, WeightLocation], wanted: Mapping[str, Shape]) -> Iterator[str]:
    folder = model.parent.resolve()
    for file in {found[name].file for name in wanted if name in found}:
        path = (folder / file).resolve()
        if not path.is_file() or not path.is_relative_to(folder):  # a model must not read files elsewhere
            raise ModelError(
                f"the weights file {file!r} is missing or outside the model's folder",
                where=str(model),
                next_step="keep the external data beside the model",
            )
        yield file


def _checked(
    model: Path, name: str, shape: Shape, found: Mapping[str, WeightLocation], sizes: Mapping[str, int]
) -> WeightLocation:
    elements = 1
    for size in shape:
        elements *= size
    location = found.get(name)
    if location is None or location.size != _FLOAT_BYTES * elements:
        held = "no f32 values" if location is None else f"{location.size} bytes"
        problem = f"weight {name!r} has {held}; its shape {shape} needs {_FLOAT_BYTES * elements} bytes"
    elif location.offset + location.size > sizes[location.file]:
        problem = f"weight {name!r} lies beyond the end of {location.file}"
    else:
        return location
    raise ModelError(problem, where=str(model), next_step="the file may be damaged: copy or export it again")


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:  # noqa: PLR2004  the last byte of a varint
            return value, at
        shift += 7


def _fields(data: mmap.mmap, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """Fields of one message: number, and where its payload starts and stops (a varint's payload is its value: start)."""
    at = start
    while at < stop:
        key, at = _varint(data, at)
        wire = key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value, -1
            continue
        if wire == _LENGTH:
            size, at = _varint(data, at)
        elif wire in (_FIXED64, _FIXED32):
            size = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(f"not a protobuf message at byte {at}")
        if at + size > stop:
            raise ValueError(f"the message at byte {at} runs beyond its end")
        yield key >> 3, at, at + size
        at += size


def _initialisers(data: mmap.mmap, file: str) -> Iterator[tuple[str, WeightLocation]]:
    for field, start, stop in _fields(data, 0, len(data)):
        if field == _MODEL_GRAPH:
            for part, first, last in _fields(data, start, stop):
                if part == _GRAPH_INITIALIZER:
                    yield from _tensor(data, first, last, file)
                elif part == _GRAPH_NODE:
                    yield from _constant(data, first, last, file)


def _constant(data: mmap.mmap, start: int, stop: int, file: str) -> Iterator[tuple[str, WeightLocation]]:
    """The tensor of a Constant node, under the node's output."""
    output, tensors = "", []
    for field, first, last in _fields(data, start, stop):
        if field == _NODE_OUTPUT:
            output = data[first:last].decode()
        elif field == _NODE_ATTRIBUTE:
            tensors += [(a, b) for f, a, b in _fields(data, first, last) if f == _ATTRIBUTE_TENSOR and b >= 0]
    for first, last in tensors:
        for _, location in _tensor(data, first, last, file):
            yield output, location


def _tensor(data: mmap.mmap, start: int, stop: int, file: str) -> Iterator[tuple[str, WeightLocation]]:
    name, dtype, where, location = "", 0, None, 0
    external: dict[str, str] = {}
    for field, first, last in _fields(data, start, stop):
        if field == _TENSOR_NAME:
            name = data[first:last].decode()
        elif field == _TENSOR_TYPE:
            dtype = first
        elif field in (_TENSOR_RAW, _TENSOR_FLOATS) and last > first:  # packed floats have the same bytes
            where = WeightLocation(file, first, last - first)
        elif field == _TENSOR_EXTERNAL:
            entry = {f: data[a:b].decode() for f, a, b in _fields(data, first, last)}
            external[entry.get(_ENTRY_KEY, "")] = entry.get(_ENTRY_VALUE, "")
        elif field == _TENSOR_LOCATION:
            location = first
    if location == _EXTERNAL and "location" in external and "length" in external:
        where = WeightLocation(external["location"], int(external.get("offset", "0")), int(external["length"]))
    if dtype == _FLOAT and where is not None:
        yield name, where
