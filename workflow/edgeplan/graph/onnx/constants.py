"""Constants of ONNX files: their values, in the message and in other files beside the model.

Large ones stay where they are until something computes with them: a prediction needs none of their values, and a prepared model
refers to the file that they lie in. Meanwhile the location of their external data says which model's they are, and of which
type there: libraries hand a location on as it is.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from edgeplan.errors import ModelError
from edgeplan.graph.ir import BYTES_PER_ELEMENT, Tensor
from edgeplan.graph.model_file import External, external_file, external_place, messages_of, outside, read_message
from edgeplan.support.files import write_atomically
from edgeplan.support.lazy import lazily
from edgeplan.support.scratch import ScratchFolder
from edgeplan.writable import cannot_write

onnx_ir = lazily("onnx_ir")  # it takes a second to import

#: Elements of constants that may decide shapes: these are brought into the message.
MOST_SMALL = 1024
_MOST_BYTES = (1 << 31) - (1 << 20)  # of a message of protobuf
_LEAST_OUTSIDE_BYTES = 1024
#: The element types that the graph knows, and the field in which a constant's values stand that are not stored as raw bytes.
_ELEMENT_TYPES = MappingProxyType(
    {
        TensorProto.FLOAT: ("float32", "float_data"),
        TensorProto.FLOAT16: ("float16", "int32_data"),
        TensorProto.BFLOAT16: ("bfloat16", "int32_data"),
        TensorProto.DOUBLE: ("float64", "double_data"),
        TensorProto.INT64: ("int64", "int64_data"),
        TensorProto.INT32: ("int32", "int32_data"),
        TensorProto.INT8: ("int8", "int32_data"),
        TensorProto.UINT8: ("uint8", "int32_data"),
        TensorProto.BOOL: ("bool", "int32_data"),
    }
)
#: Attributes of `Constant` that hold numbers without a tensor, and their element type.
_HELD = MappingProxyType(
    {
        "value_float": TensorProto.FLOAT,
        "value_floats": TensorProto.FLOAT,
        "value_int": TensorProto.INT64,
        "value_ints": TensorProto.INT64,
    }
)
#: Beyond any memory, and small enough that no sum over a model's tensors overflows 64 bits.
MOST_BYTES = 1 << 50
_DAMAGED = "the file may be corrupt or truncated: copy or export it again"


def element_type(number: int, name: str, source: str) -> str:
    """Name of an ONNX element type."""
    if number in _ELEMENT_TYPES:
        return _ELEMENT_TYPES[number][0]
    names = {value: key for key, value in TensorProto.DataType.items()}
    what = f"tensor {name!r} is of element type {names.get(number, number)}, which is not known"
    raise ModelError(what, where=source, next_step="known are " + ", ".join(known for known, _ in _ELEMENT_TYPES.values()))


def is_known_type(constant: TensorProto) -> bool:
    """Tell whether the graph knows a constant's element type."""
    return constant.data_type in _ELEMENT_TYPES


def constant_tensor(name: str, constant: TensorProto, source: str) -> Tensor:
    """Shape and type of a constant, whose values are left where they are."""
    kind, shape = element_type(constant.data_type, name, source), tuple(constant.dims)
    require_in_range(constant, name, source)
    bytes_each = BYTES_PER_ELEMENT[kind]
    if any(size < 0 for size in shape) or bytes_each * math.prod(shape) > MOST_BYTES:
        _refuse(f"constant {name!r} has the impossible shape {shape}", source)
    if constant.HasField("segment"):
        _refuse(f"constant {name!r} is stored in segments", source)
    needed = bytes_each * math.prod(shape)
    if constant.data_location == TensorProto.EXTERNAL:
        held = place_of(name, constant, source).length
    elif constant.HasField("raw_data"):
        held = len(constant.raw_data)
    else:
        held = bytes_each * len(getattr(constant, _ELEMENT_TYPES[constant.data_type][1]))
    if held not in (needed, None):  # external data without a length have that of the shape
        _refuse(f"constant {name!r} holds {held} bytes, its shape {shape} of {kind} needs {needed}", source)
    return Tensor(name, shape, kind)


def require_in_range(constant: TensorProto, name: str, source: str) -> None:
    """Refuse bytes that are stored as wider integers and are none: what is read of them would be other numbers."""
    if constant.data_type not in (TensorProto.INT8, TensorProto.UINT8) or not constant.int32_data:
        return
    bounds, values = np.iinfo(np.int8 if constant.data_type == TensorProto.INT8 else np.uint8), constant.int32_data
    if odd := next((value for value in (min(values), max(values)) if not bounds.min <= value <= bounds.max), None):
        _refuse(f"constant {name!r} of {bounds.dtype} holds {odd}", source)


def held_value(node: onnx.NodeProto) -> TensorProto | None:
    """Return the value of a `Constant` node: its tensor, or its number or numbers as one; None for text and sparse tensors."""
    for attribute in node.attribute:
        if attribute.name == "value" and attribute.type == onnx.AttributeProto.TENSOR:
            return attribute.t
        if attribute.name in _HELD:
            kind, value = _HELD[attribute.name], onnx.helper.get_attribute_value(attribute)
            shape = (len(value),) if isinstance(value, list) else ()
            return onnx.helper.make_tensor("", kind, shape, value if isinstance(value, list) else [value])
    return None


def constant_values(name: str, constant: TensorProto, model: Path | None, source: str) -> npt.NDArray[Any]:
    """Return values of a constant that `constant_tensor` has accepted; external data lie beside the model, if there is one."""
    try:
        if constant.data_location != TensorProto.EXTERNAL:
            return np.asarray(numpy_helper.to_array(constant))
        if model is None:
            raise ModelError(f"constant {name!r} is in another file", where=source, next_step="load the model from its file")
        place, tensor = place_of(name, constant, source), constant_tensor(name, constant, source)
        path = external_file(model, place.location, place.offset + tensor.size_bytes, f"constant {name!r}")
        kind = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(constant.data_type))
        return np.fromfile(path, kind, tensor.elements, offset=place.offset).reshape(tensor.shape)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        what = f"cannot read constant {name!r}: {' '.join(str(error).split())}"
        raise ModelError(what, where=source, next_step=_DAMAGED) from error


def place_of(name: str, constant: TensorProto, source: str) -> External:
    """Where external data say that a constant lies."""
    place = external_place({entry.key: entry.value for entry in constant.external_data})
    if place is None:
        raise ModelError(f"constant {name!r} does not say where in which file it is", where=source, next_step=_DAMAGED)
    return place


def _refuse(what: str, source: str) -> None:
    raise ModelError(what, where=source, next_step=_DAMAGED)


class _Left(NamedTuple):
    """A constant lies in a file beside its model, as values of a type that may be narrower than the message says."""

    model: str
    location: str
    kind: int


def leave_outside(model: onnx.ModelProto, path: Path | None) -> None:
    """Bring the small constants of other files, beside its own, into a model, and note of the large ones where they are."""
    for tensor, _ in outside(model):
        if path is None:
            raise ModelError("the weights are in another file", next_step="load the model from its file")
        if is_known_type(tensor) and constant_tensor(tensor.name, tensor, str(path)).elements <= MOST_SMALL:
            values = constant_values(tensor.name, tensor, path, str(path))
            tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
            continue
        place = place_of(tensor.name, tensor, str(path))
        left = _Left(str(path), place.location, tensor.data_type)
        point(tensor, json.dumps(left), place.offset, place.length)


def read_whole_model(path: Path) -> onnx.ModelProto:
    """Return the message of an ONNX file with all values that lie in other files."""
    model = read_message(path)
    for tensor, _ in outside(model):
        tensor.CopyFrom(numpy_helper.from_array(constant_values(tensor.name, tensor, path, str(path)), tensor.name))
    return model


def held_values(tensor: TensorProto) -> npt.NDArray[Any]:
    """Return the values of a constant, from the file that it was left in if it was."""
    if tensor.data_location != TensorProto.EXTERNAL:
        return np.asarray(numpy_helper.to_array(tensor))
    left = _left(tensor)
    stored = TensorProto(data_type=left.kind, dims=tensor.dims, data_location=TensorProto.EXTERNAL)
    point(stored, left.location, place_of(tensor.name, tensor, left.model).offset, None)
    values = constant_values(tensor.name, stored, Path(left.model), left.model)
    return values.astype(helper.tensor_dtype_to_np_dtype(tensor.data_type), copy=False)


def take_as(tensor: TensorProto, kind: int) -> None:
    """Have a constant that is left outside be of another type than its values in the file."""
    point(tensor, _location(tensor), place_of(tensor.name, tensor, "").offset, None)
    tensor.data_type = kind


def is_stored_as(tensor: TensorProto, kind: int) -> bool:
    """Tell whether the values of a constant are left outside, and of a type there."""
    return tensor.data_location == TensorProto.EXTERNAL and _left(tensor).kind == kind


def read_when_needed(model: Any) -> None:
    """Have the optimizer (a model of `onnx_ir`) read constants that are left outside once it computes with them."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            value.const_value = _readable(value.const_value)
        for node in graph:
            if node.op_type == "Constant" and (held := node.attributes.get("value")) is not None:
                node.attributes["value"] = onnx_ir.AttrTensor("value", _readable(held.value))


def _readable(tensor: Any) -> Any:
    if not isinstance(tensor, onnx_ir.ExternalTensor):
        return tensor

    class Outside(onnx_ir.ExternalTensor):  # type: ignore[misc, name-defined]
        def numpy(self) -> npt.NDArray[Any]:
            return held_values(onnx_ir.serde.serialize_tensor(self))

        def __array__(self, dtype: Any = None) -> npt.NDArray[Any]:
            return np.asarray(self.numpy(), dtype)

        def tobytes(self) -> bytes:
            return self.numpy().tobytes()

    return Outside(tensor.location, tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=tensor.name)


def as_files_say(model: onnx.ModelProto) -> None:
    """Say again of constants that are left outside what the model's file says; of those of another type there, nothing."""
    for tensor, entries in outside(model):
        left = _left(tensor)
        same = left.kind == tensor.data_type
        length = entries.get("length")
        point(tensor, left.location if same else "", int(entries["offset"]), int(length) if length and same else None)


def save(model: onnx.ModelProto, target: Path) -> Path:
    """Write a model, whose constants outside stay in their file where that lies beside the target, too.

    Others go to a file beside it, and so do all where the message would be too large for one.
    """
    kept = {name for tensor, _ in outside(model) if (name := _kept(tensor, target))}
    weights = next(name for name in (f"{target.name}.data", f"{target.name}.more.data") if name not in kept)
    inside = model.ByteSize() <= _MOST_BYTES
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with ScratchFolder(f".{target.name}.", target.parent) as folder:
            with (Path(folder) / weights).open("wb") as file:
                for tensor in messages_of(model, TensorProto):
                    if tensor.data_location == TensorProto.EXTERNAL and (stays := _kept(tensor, target)):
                        point(tensor, stays, place_of(tensor.name, tensor, "").offset, None)
                    elif tensor.data_location == TensorProto.EXTERNAL:
                        _append(tensor, np.ascontiguousarray(held_values(tensor)).data, file, weights)
                    elif not inside and len(tensor.raw_data) >= _LEAST_OUTSIDE_BYTES:
                        _append(tensor, tensor.raw_data, file, weights)
                used = file.tell() > 0
            (Path(folder) / target.name).write_bytes(model.SerializeToString())
            for name in (weights, target.name) if used else (target.name,):
                write_atomically(target.with_name(name), (Path(folder) / name).replace)
    except OSError as error:
        raise cannot_write(error, target) from error
    return target


def _kept(tensor: TensorProto, target: Path) -> str:
    """Return where a constant stays if a model is written to a target; "" if it has to be written anew."""
    left = _left(tensor)
    beside = Path(left.model).parent.resolve() == target.parent.resolve()
    return left.location if beside and left.kind == tensor.data_type else ""


def _append(tensor: TensorProto, values: Any, file: BinaryIO, weights: str) -> None:
    offset = file.tell()
    size = file.write(values)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    point(tensor, weights, offset, size)


def _location(tensor: TensorProto) -> str:
    return str(next(entry.value for entry in tensor.external_data if entry.key == "location"))


def _left(tensor: TensorProto) -> _Left:
    return _Left(*json.loads(_location(tensor)))


def point(tensor: TensorProto, location: str, offset: int, length: int | None) -> None:
    """Say where in which other file the values of a tensor lie."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
