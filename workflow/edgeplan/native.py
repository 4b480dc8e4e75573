"""The native library: kernels, loops and searches in C++ (the folder `native`), called by ctypes."""

# ruff: noqa: PTH113, PTH118, PTH120  pathlib takes longer to be imported than the library takes to be loaded

from __future__ import annotations

import ctypes
import os
from functools import cache

from edgeplan.errors import DeviceError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

PATH = os.path.join(os.path.dirname(__file__), "libedgeplan.so")
_ABI = 2  # EP_ABI_VERSION of native/include/edgeplan.h


def is_built() -> bool:
    """Tell whether there is a library to load."""
    return os.path.isfile(PATH)


@cache
def library() -> ctypes.CDLL:
    """Load the library, once a process; DeviceError where it was not built, or from other sources."""
    try:
        found = ctypes.CDLL(PATH)
        if (abi := int(found.ep_abi_version())) == _ABI:
            return found
        what = f"the native library has version {abi}, this package needs {_ABI}"
    except OSError as error:
        what = f"the native library cannot be loaded: {error}"
    raise DeviceError(what, where=PATH, next_step="make native")


@cache
def function(name: str, result: Any, *arguments: Any) -> Any:
    """A function of the library, by its name without `ep_`, with ctypes' types of what it returns and takes."""
    found = library()[f"ep_{name}"]
    found.restype, found.argtypes = result, arguments
    return found


def address(name: str) -> int:
    """The address of a function or a variable of the library, by its name without `ep_`; AttributeError: there is none."""
    return ctypes.cast(getattr(library(), f"ep_{name}"), ctypes.c_void_p).value or 0
