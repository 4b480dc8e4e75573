"""Memory for generated code, mapped once for all kernels.

oneDNN maps 256 KiB that can be written and executed for each kernel that it generates, and unmaps them with the primitive.
Every such change of the address space interrupts the other cores of the process and makes threads that fault wait: two threads
that generate kernels slow each other down. `pool_code` has the library take the same memory, with the same permissions, from a
region that was mapped before; what it asks for beyond that, and any other mapping, is the system's as ever.

The library offers no hook for that, so its imports of three C functions are pointed to native ones (`imports`,
`native/src/loops/code_slots.cpp`): they run where the interpreter must not.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

from edgeplan import native
from edgeplan.runtime.imports import imports_of, replace


@lru_cache
def pool_code(path: str) -> CodePool | None:
    """Have a loaded library take memory for code from a pool, for the rest of this process.

    For programs that run plans; before kernels are made. Where the system does not let it, all is as before.

    Args:
        path: of oneDNN's library.

    Returns:
        The pool; None where there is none: an unknown kind of system, or one that forbids memory both writable and executable.
    """
    slots = imports_of(path, ("mmap", "mprotect", "munmap"))
    if len(slots) < 3:  # all of them
        return None
    pool = CodePool.reserve()
    if pool is None:
        return None
    ours = {"munmap": pool.unmap, "mprotect": pool.protect, "mmap": pool.map}  # what hands slots out comes last
    return pool if all(replace(slots[name], address) for name, address in ours.items()) else None


class CodePool:
    """Slots of a region, and the three functions that hand them out.

    Attributes:
        base: address of the region.
        map, protect, unmap: addresses of functions of the C types of `mmap`, `mprotect`, `munmap`.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        self.map, self.protect, self.unmap = (native.address(f"code_{name}") for name in ("map", "protect", "unmap"))

    @classmethod
    def reserve(cls) -> CodePool | None:
        """Map the region, once a process; pages are taken when they are written to."""
        base = native.function("code_region", ctypes.c_int64)()
        return cls(base) if base else None

    @property
    def used(self) -> int:
        """Count the slots that hold code."""
        return int(native.function("code_used", ctypes.c_int64)())
