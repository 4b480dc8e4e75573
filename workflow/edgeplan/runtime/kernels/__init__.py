"""Compiled kernels: what oneDNN has no primitive for, as functions that are called from C.

A kernel has the arguments of `dnnl_primitive_execute`, and so is called where a primitive is: its block of numbers
(`graph.blocks`), a pointer that stands for the element type alone, the number of operands, their addresses. It allocates
nothing, and returns 0 or `BAD_INDEX`. Machine code of kernels is kept; `build` compiles what is not.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from edgeplan.support.machine_code import Images, addresses

_IMAGES = Images("edgeplan.runtime.kernels.build", ("runtime/kernels/*.py", "graph/blocks.py", "runtime/constants.py"))
_TYPE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)


def load(names: Iterable[str]) -> list[int]:
    """Addresses of kernels, by what they do and what their elements are of: `where_int32`."""
    wanted = tuple(names)
    found = addresses(_IMAGES, wanted)
    return [found[name][name] for name in wanted]


def function(name: str) -> Callable[..., int]:
    """A kernel, with the arguments of `dnnl_primitive_execute`."""
    found: Any = _TYPE(load([name])[0])
    return found  # type: ignore[no-any-return]  # ctypes has no types of its functions
