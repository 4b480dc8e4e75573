"""Compiled kernels: what oneDNN has no primitive for, as functions that are called from C.

Importing this loads numba, so a program without compiled steps does not. A kernel has the arguments of
`dnnl_primitive_execute`, and so is called where a primitive is: its block of numbers (`graph.blocks`), a
pointer that stands for the element type alone, the number of operands, their addresses. It allocates
nothing, and returns 0 or `BAD_INDEX`.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from numba import types

from edgeplan.errors import DeviceError
from edgeplan.runtime.kernels.registry import KERNELS
from edgeplan.support.compiled import address_of


def _signature(element: Any) -> Any:
    """Of a kernel for elements of one type."""
    word, pointer = types.int64, types.CPointer
    return types.int32(pointer(word), pointer(element), types.int32, pointer(word))  # type: ignore[no-untyped-call]


@cache
def _compiled(name: str) -> tuple[int, object]:
    family, _, element = name.rpartition("_")
    if family not in KERNELS or element not in KERNELS[family].elements:
        raise DeviceError(
            f"there is no kernel {name!r}", where="the compiled steps of the program", next_step="plan the model again"
        )
    return address_of(KERNELS[family].function, _signature(getattr(types, element)))


def address(name: str) -> int:
    """Address of a kernel, compiled or found on the disk once a process.

    Args:
        name: the kernel's, and what its elements are of: `where_int32`.

    Raises:
        DeviceError: there is no such kernel.
    """
    return _compiled(name)[0]


def names() -> Iterable[str]:
    """Names of all kernels."""
    return (f"{family}_{element}" for family, kernel in KERNELS.items() for element in kernel.elements)
