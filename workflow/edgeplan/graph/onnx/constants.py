"""Constants of an ONNX file: what they are made of, whether the file holds as much as their shape says, and their values."""

from __future__ import annotations

import math
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

from edgeplan.errors import ModelError
from edgeplan.graph.external_data import External, external, external_file
from edgeplan.graph.ir import BYTES_PER_ELEMENT, Tensor

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
    raise ModelError(
        f"tensor {name!r} is of element type {names.get(number, number)}, which is not known",
        where=source,
        next_step="known are " + ", ".join(known for known, _ in _ELEMENT_TYPES.values()),
    )


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
    """Return values of a constant that `constant_tensor` has accepted.

    Args:
        name: what nodes call it.
        constant: the constant.
        model: the file of the model, beside which external data lie; None if there can be none.
        source: where the model comes from.
    """
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
        raise ModelError(
            f"cannot read constant {name!r}: {' '.join(str(error).split())}", where=source, next_step=_DAMAGED
        ) from error


def place_of(name: str, constant: TensorProto, source: str) -> External:
    """Where external data say that a constant lies."""
    place = external({entry.key: entry.value for entry in constant.external_data})
    if place is None:
        raise ModelError(f"constant {name!r} does not say where in which file it is", where=source, next_step=_DAMAGED)
    return place


def _refuse(what: str, source: str) -> None:
    raise ModelError(what, where=source, next_step=_DAMAGED)
