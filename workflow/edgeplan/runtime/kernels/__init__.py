"""Kernels of the native library: what oneDNN has no primitive for, as functions that are called from C.

A kernel has the arguments of `dnnl_primitive_execute`, and so is called where a primitive is: its block of numbers
(`graph.blocks`), a pointer that says nothing, the number of operands, their addresses. It allocates nothing, and returns 0 or
`BAD_INDEX`. Their sources are in `native/src/kernels`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from edgeplan import native
from edgeplan.errors import DeviceError
from edgeplan.runtime.kernels.registry import KERNELS

_TYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def load(names: Iterable[str]) -> list[int]:
    """Return addresses of kernels, by what they do and what their elements are of: `where_int32`.

    Raises:
        DeviceError: there is no such kernel, or no library.
    """
    return [_address(name) for name in names]


def function(name: str) -> Callable[..., int]:
    """A kernel, with the arguments of `dnnl_primitive_execute`."""
    found: Any = _TYPE(load([name])[0])
    return found  # type: ignore[no-any-return]  # ctypes has no types of its functions


def _address(name: str) -> int:
    family, _, element = name.rpartition("_")
    if element not in KERNELS.get(family, ()):
        raise DeviceError(
            f"there is no kernel {name!r}", where="the compiled steps of the program", next_step="plan the model again"
        )
    return native.address(f"kernel_{name}")
