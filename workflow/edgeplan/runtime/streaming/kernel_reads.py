"""The kernel's asynchronous reads (Linux, `io_submit(2)`), called through libc: no thread waits while the disk works.

A read of direct I/O is handed to the kernel in tens of microseconds, and who handed it over asks later whether it has ended.
Containers permit these calls more often than io_uring, and nothing has to be compiled for them.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence
from typing import Any, Self

_LIBC = ctypes.CDLL(None, use_errno=True)
_SYSCALL: Any = _LIBC.syscall
_SYSCALL.restype = ctypes.c_long
#: Numbers of io_setup, io_destroy, io_getevents and io_submit.
_NUMBERS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2), "riscv64": (0, 1, 4, 2)}
_PREADV = 7
_WORD = ctypes.c_long
#: Words of `struct iocb`: number, (flags), operation and file, address and count of the pieces, place in the file.
_NUMBER, _WHAT, _PIECES, _COUNT, _OFFSET, _CONTROL_WORDS = 0, 2, 3, 4, 5, 8
_FILE_SHIFT = 32
#: Words of `struct io_event`: number, address of the control block, result, unused.
_RESULT, _EVENT_WORDS = 2, 4


class KernelReads:
    """Reads in flight that the kernel does by itself.

    Args:
        depth: the most of them at a time.

    Raises:
        OSError: the system does not permit them, or has no more of them to give.
    """

    def __init__(self, depth: int) -> None:
        numbers = _NUMBERS.get(os.uname().machine)
        if numbers is None:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        self._setup, self._destroy, self._get, self._put = map(_WORD, numbers)
        self._depth, self._events = _WORD(depth), (ctypes.c_int64 * (_EVENT_WORDS * depth))()
        self._control = (ctypes.c_uint64 * _CONTROL_WORDS)()
        self._pointer = ctypes.c_void_p(ctypes.addressof(self._control))
        self._open()

    def _open(self) -> None:
        self._context = ctypes.c_ulong(0)
        _checked(_SYSCALL(self._setup, self._depth, ctypes.byref(self._context)))

    @classmethod
    def opened(cls, depth: int) -> Self | None:
        """Return such reads, or None where the system does not permit them."""
        try:
            return cls(depth)
        except OSError:
            return None

    def submit(self, number: int, descriptor: int, offset: int, pieces: Sequence[tuple[int, int]]) -> None:
        """Begin a read; the kernel has copied what says so when this returns.

        Args:
            number: by which `ended` names it.
            descriptor: of the file, opened for direct I/O: others are read before this returns.
            offset: in the file.
            pieces: address and bytes of the memory to fill, which has to stay until the read has ended.

        Raises:
            OSError: it could not be begun, and nothing is read.
        """
        words = (ctypes.c_uint64 * (2 * len(pieces)))(*(word for piece in pieces for word in piece))
        control = self._control
        control[_NUMBER], control[_WHAT] = number, _PREADV | descriptor << _FILE_SHIFT
        control[_PIECES], control[_COUNT], control[_OFFSET] = ctypes.addressof(words), len(pieces), offset
        _checked(_SYSCALL(self._put, self._context, _WORD(1), ctypes.byref(self._pointer)))

    def ended(self, *, wait: bool) -> list[tuple[int, int]]:
        """Name reads that have ended since the last call, each with the bytes that it read, or -errno.

        Args:
            wait: whether to wait until one has, where none has; a signal ends the wait, too.
        """
        events = self._events
        found = _SYSCALL(self._get, self._context, _WORD(wait), self._depth, events, None)
        if found < 0 and (code := ctypes.get_errno()) != errno.EINTR:
            raise OSError(code, os.strerror(code))
        return [(events[k], events[k + _RESULT]) for k in range(0, _EVENT_WORDS * found, _EVENT_WORDS)]

    def renew(self) -> None:
        """Wait for the reads in flight, and forget them.

        Raises:
            OSError: the system has no more of them to give.
        """
        self.close()
        self._open()

    def close(self) -> None:
        """Give them back; the kernel waits for those that are in flight."""
        _SYSCALL(self._destroy, self._context)


def _checked(result: int) -> None:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
