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
#: Beyond any memory, and small enough that no sum over a model's tensors overflows 64 bits.
MOST_BYTES = 1 << 50
_DAMAGED = "the file may be corrupt or truncated: copy or export it again"


def element_type(number: int, name: str, source: str) -> str:
    """Name of an ONNX element type.

    Raises:
        ModelError: the graph does not know it.
    """
    if number in _ELEMENT_TYPES:
        return _ELEMENT_TYPES[number][0]
    names = {value: key for key, value in TensorProto.DataType.items()}
    raise ModelError(
        f"tensor {name!r} is of element type {names.get(number, number)}, which is not known",
        where=source,
        next_step="known are " + ", ".join(known for known, _ in _ELEMENT_TYPES.values()),
    )


def is_known_type(constant: TensorProto) -> bool:
    """Whether the graph knows a constant's element type."""
    return constant.data_type in _ELEMENT_TYPES


def constant_tensor(name: str, constant: TensorProto, source: str) -> Tensor:
    """Shape and type of a constant, whose values are left where they are.

    Raises:
        ModelError: its element type is not known, its shape is none, or the file holds more or fewer values than the shape has.
    """
    kind, shape = element_type(constant.data_type, name, source), tuple(constant.dims)
    bytes_each = BYTES_PER_ELEMENT[kind]
    if any(size < 0 for size in shape) or bytes_each * math.prod(shape) > MOST_BYTES:
        _refuse(f"constant {name!r} has the impossible shape {shape}", source)
    if constant.HasField("segment"):
        _refuse(f"constant {name!r} is stored in segments", source)
    needed = bytes_each * math.prod(shape)
    if constant.data_location == TensorProto.EXTERNAL:
        held = _external_bytes(name, constant, source)
    elif constant.HasField("raw_data"):
        held = len(constant.raw_data)
    else:
        held = bytes_each * len(getattr(constant, _ELEMENT_TYPES[constant.data_type][1]))
    if held not in (needed, None):
        _refuse(f"constant {name!r} holds {held} bytes, its shape {shape} of {kind} needs {needed}", source)
    return Tensor(name, shape, kind)


def constant_values(name: str, constant: TensorProto, folder: Path | None, source: str) -> npt.NDArray[Any]:
    """Values of a constant that `constant_tensor` has accepted.

    Args:
        name: what nodes call it.
        constant: the constant.
        folder: where external data lie; None if there can be none.
        source: where the model comes from.

    Raises:
        ModelError: its values are in another file, and cannot be read from there.
    """
    external = constant.data_location == TensorProto.EXTERNAL
    if external and (folder is None or _external_bytes(name, constant, source) is None):
        _refuse(f"constant {name!r} is in another file, and how long it is there is not said", source)
    try:
        return np.asarray(numpy_helper.to_array(constant, base_dir=str(folder or "")))
    except (OSError, ValueError, TypeError, OverflowError, onnx.checker.ValidationError) as error:
        message = f"cannot read constant {name!r}: {' '.join(str(error).split())}"
        next_step = "keep the external data beside the model" if external else _DAMAGED
        raise ModelError(message, where=source, next_step=next_step) from error


def _external_bytes(name: str, constant: TensorProto, source: str) -> int | None:
    """How many bytes of another file a constant takes; None if the rest of that file."""
    entries = {entry.key: entry.value for entry in constant.external_data}
    try:
        offset, length = (int(entries.get(key, fallback)) for key, fallback in (("offset", "0"), ("length", "-1")))
    except ValueError:
        offset = length = -1
    given = "length" in entries
    if not isinstance(entries.get("location"), str) or offset < 0 or (given and length < 0):
        _refuse(f"constant {name!r} does not say where in which file it is", source)
    return length if given else None


def _refuse(what: str, source: str) -> None:
    raise ModelError(what, where=source, next_step=_DAMAGED)
