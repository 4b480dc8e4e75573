"""Kernels compiled into images, one for each type of elements."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numba import types

from edgeplan.errors import DeviceError
from edgeplan.runtime.kernels.registry import KERNELS
from edgeplan.support.object_code import Entry, image_of

_RAISED = 255  # a status that neither the library nor a kernel returns


def build(name: str) -> bytes:
    """Compile a kernel for this processor."""
    family, _, element = name.rpartition("_")
    if family not in KERNELS or element not in KERNELS[family].elements:
        raise DeviceError(
            f"there is no kernel {name!r}", where="the compiled steps of the program", next_step="plan the model again"
        )
    word, pointer = types.int64, types.CPointer
    like: Any = getattr(types, element)
    signature = types.int32(pointer(word), pointer(like), types.int32, pointer(word))  # type: ignore[no-untyped-call]
    return image_of({name: Entry(KERNELS[family].function, signature, _RAISED)})


def names() -> Iterable[str]:
    """Return the names of all kernels."""
    return (f"{family}_{element}" for family, kernel in KERNELS.items() for element in kernel.elements)
