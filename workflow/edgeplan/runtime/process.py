"""A process that runs plans sets these things up before it opens one (`native/src/loops/process.cpp`)."""

from __future__ import annotations

import os
from ctypes import c_char_p, c_int, c_int64

from edgeplan import native
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.objects import library_places


def prepare_process(dnnl: Dnnl) -> None:
    """For programs that run plans and little else, once, beside loading the library: it holds for the process.

    Where the system does not let it, the same is computed, in more time.
    """
    library_places(dnnl)  # looked up once
    grow_heaps(len(os.sched_getaffinity(0)))  # at least one for each thread that prepares, and one for what reads ahead
    pool_code(dnnl.info.path)


def grow_heap() -> None:
    """Grow the heap of the calling thread, unless it has room."""
    native.function("grow_heap", None)()


def grow_heaps(threads: int) -> bool:
    """Grow the first heap, and heaps for so many threads that start from here on, for good; tell whether all grew."""
    return bool(native.function("grow_heaps", c_int, c_int64)(threads))


def pool_code(path: str) -> bool:
    """Have a loaded library take memory for code from one region, for good; tell whether the system lets it."""
    return bool(native.function("pool_code", c_int, c_char_p)(os.fsencode(path)))
