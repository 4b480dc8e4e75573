"""Heaps for the threads that generate kernels, grown before a plan is opened (glibc).

Generating a kernel allocates thousands of small blocks. Two threads that share a heap wait for each other's turns at it, often
in the system; a heap of a thread's own grows by a page or two at a time, and changing the address space that often makes all
threads wait. So each thread gets a heap that is large enough from the start. Its pages are taken when they are written to, as
ever, but for one in thirty.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
_NEVER = 2**31 - 1
_APART_BYTES = 128 << 10  # from here on a block is mapped on its own, and given back when it is freed
_PIECE_BYTES = 120 << 10
_PIECES = 128
_MOST_HEAPS = 64


def grow_heaps(threads: int) -> bool:
    """Grow the first heap, and heaps for threads that start from here on, for good: for programs that run plans.

    A thread takes over the heap of one that has ended, so as many threads as will be needed grow one each, and end. What is
    freed on a heap stays with the process; large blocks are not on heaps.

    Args:
        threads: besides this one.

    Returns:
        whether the C library could.
    """
    libc = ctypes.CDLL(None)
    setter = getattr(libc, "mallopt", None)
    if setter is None or not (setter(_MMAP_THRESHOLD, _APART_BYTES) and setter(_TRIM_THRESHOLD, _NEVER)):
        return False  # what was freed would be given back at once
    grow_heap()
    count = min(threads, _MOST_HEAPS)
    together = threading.Barrier(max(count, 1))  # a thread that has ended would hand its heap to the next

    def work() -> None:
        grow_heap()
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait()

    growing = [threading.Thread(target=work, name="heap") for _ in range(count)]
    try:
        for thread in growing:
            thread.start()
    except RuntimeError:  # the system allows no more threads
        together.abort()
        return False
    for thread in growing:
        thread.join()
    return True


def grow_heap() -> None:
    """Grow the heap of the calling thread, unless it has room."""
    libc = ctypes.CDLL(None)
    take, give = libc.malloc, libc.free
    take.restype, take.argtypes, give.argtypes = ctypes.c_void_p, (ctypes.c_size_t,), (ctypes.c_void_p,)
    for piece in [take(_PIECE_BYTES) for _ in range(_PIECES)]:
        give(piece)
