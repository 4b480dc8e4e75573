"""Bringing parts of files into the page cache, as fast as the disk goes and with little of the processor.

Reading into a buffer copies every byte, and the copy takes longer than all the rest: 100 MB cost 20 ms of a core and came at
1.6 GB/s on a virtual disk, where the same bytes sent to the null device cost 3 ms and came at 2.5 GB/s. POSIX_FADV_WILLNEED
copies nothing, but has the disk serve everything at the same time, and fills the page cache with small pages.
"""

from __future__ import annotations

import errno
import os

from edgeplan.runtime.plan_session import Closing

_NOT_OFFERED = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
_BUFFER_BYTES = 1 << 18


class Bringer(Closing):
    """Brings what is asked for, one part after the other. For one thread."""

    def __init__(self) -> None:
        self._sink = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._buffer = memoryview(b"")

    def bring(self, descriptor: int, first: int, last: int) -> int:
        """Have the bytes of an open file in memory, `last` the one after, and wait for them; return how many there are."""
        at = first
        while at < last and (count := self._send(descriptor, at, last)):
            at += count
        return at - first

    def _send(self, descriptor: int, first: int, last: int) -> int:
        if not self._buffer:
            try:
                return os.sendfile(self._sink, descriptor, first, last - first)
            except OSError as error:
                if error.errno not in _NOT_OFFERED:
                    raise
                self._buffer = memoryview(bytearray(_BUFFER_BYTES))  # a file system whose files cannot be sent: copy
        return os.preadv(descriptor, [self._buffer[: last - first]], first)

    def close(self) -> None:
        """Close the files that are held open."""
        os.close(self._sink)


def in_memory(descriptor: int, size: int, probes: int = 8) -> bool:
    """Tell whether a file seems to be in the page cache: a few bytes of it can be had without waiting."""
    buffer = bytearray(1)
    try:
        return all(
            os.preadv(descriptor, [buffer], offset, os.RWF_NOWAIT) == 1 for offset in range(0, size, max(1, size // probes))
        )
    except OSError:  # it is not there (EAGAIN), or the file system cannot tell
        return False
