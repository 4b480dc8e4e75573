"""Shapes of tensors, and the bytes of their elements. Imports next to nothing: who runs plans reads no graphs."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

Shape = tuple[int, ...]
BYTES_PER_ELEMENT: Mapping[str, int] = MappingProxyType(
    {"float32": 4, "float16": 2, "bfloat16": 2, "float64": 8, "int64": 8, "int32": 4, "int8": 1, "uint8": 1, "bool": 1}
)
