"""Memory for generated code, mapped once for all kernels.

oneDNN maps 256 KiB that can be written and executed for each kernel that it generates, and unmaps them with the primitive.
Every such change of the address space interrupts the other cores of the process and makes threads that fault wait: two threads
that generate kernels slow each other down. `pool_code` has the library take the same memory, with the same permissions, from a
region that was mapped before; what it asks for beyond that, and any other mapping, is the system's as ever.

The library offers no hook for that, so its imports of three C functions are pointed to compiled ones (`imports`,
`native.code_slots`): they run where the interpreter must not.
"""

from __future__ import annotations

import ctypes
import mmap
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.imports import imports_of, replace
from edgeplan.runtime.native import entries
from edgeplan.runtime.native.words import SLOT_BYTES, SLOTS

_ALL = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
_ANONYMOUS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
_NOHUGEPAGE, _NORESERVE = 15, 0x4000


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
        map, protect, unmap: addresses of functions of the C types of `mmap`, `mprotect`, `munmap`.
    """

    def __init__(self, base: int) -> None:
        self.base = base
        states = base + SLOTS * SLOT_BYTES
        self._states: npt.NDArray[np.int64] = np.ctypeslib.as_array((ctypes.c_int64 * SLOTS).from_address(states))
        code = entries.code_memory()
        ctypes.c_int64.from_address(code["region"]).value = base
        self.map, self.protect, self.unmap = (code[name] for name in ("map", "protect", "unmap"))

    @classmethod
    def reserve(cls) -> CodePool | None:
        """Map the region, and the words of its slots behind it; pages are taken when they are written to."""
        size = SLOTS * (SLOT_BYTES + 8)
        libc = ctypes.CDLL(None, use_errno=True)
        take, advise = libc.mmap, libc.madvise
        take.restype, advise.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        take.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
        base = take(None, size, _ALL, _ANONYMOUS | _NORESERVE, -1, 0)
        if base is None or base == ctypes.c_void_p(-1).value:
            return None
        advise(base, size, _NOHUGEPAGE)  # a kernel needs some pages; clearing 2 MiB takes longer
        return cls(base)

    @property
    def used(self) -> int:
        """Count the slots that hold code."""
        return int(np.count_nonzero(self._states))
