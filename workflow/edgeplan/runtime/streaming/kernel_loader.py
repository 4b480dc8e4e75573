"""Loading without threads: the computing thread hands reads to the kernel when a step ends, and takes them when it needs them.

Where no processor is free for reading threads, each of their wake-ups takes the computing thread's processor away. A load can
begin only when a step has ended, so the thread that ran the step knows first that it may.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import msgspec

from edgeplan.runtime.streaming.kernel_reads import KernelReads
from edgeplan.runtime.streaming.reader import Chunk, Load, Loader, WeightsFile

#: Reads in flight: more than threads have, since nobody looks before the next step has ended; with many more, loads that wait
#: for their turn would not be read together with their neighbours in the file, and a disk takes longer for small reads.
DEPTH = 4
_AGAIN = (errno.EAGAIN, errno.EINTR)


class _Read(msgspec.Struct):
    """A read is in flight until all of its memory is filled.

    Attributes:
        chunk: the loads that it completes.
        at: byte of the file.
        pieces: address and bytes of the memory that is still to be filled.
    """

    chunk: Chunk
    at: int
    pieces: list[tuple[int, int]]


class KernelLoader(Loader):
    """Loads weights by reading threads, or without: which of both may change between two inferences.

    Args:
        file: what to read.
        reads: of the kernel; the file takes direct I/O.
        lanes: reads in flight with threads, each by one of its own, started when they are first wanted.
        processors: that these threads may use; empty: any.
        threaded: whether threads read at first.
    """

    def __init__(self, file: WeightsFile, reads: KernelReads, lanes: int, processors: Sequence[int], *, threaded: bool) -> None:
        super().__init__(file, 0, processors)
        self._reads, self._lanes = reads, lanes
        self._in_kernel: dict[int, _Read] = {}
        self._counted = True  # whether all that was begun and has ended is known: an interrupt leaves it open
        self._number = self._base = 0
        self._by_threads = False
        if threaded:
            self.change(threaded=True)

    def change(self, *, threaded: bool) -> None:
        """Have threads read from now on, or none; what is in flight ends before.

        Args:
            threaded: whether threads read.
        """
        if threaded == self._by_threads:
            return
        with self._change:
            self._by_threads = False
            self._drain()
            self._by_threads = threaded
            if not threaded:
                self._hand_over()
            elif not self._threads:
                self._start_threads(self._lanes)
            self._change.notify_all()

    def start(
        self,
        loads: Sequence[Load],
        steps: int,
        memory: memoryview,
        horizon: int = 1,
        present: AbstractSet[int] = frozenset(),
    ) -> None:
        """Load from the first inference on; see `Loader`."""
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory)) if len(memory) else 0
        super().start(loads, steps, memory, horizon, present)
        self._begin()

    def prepare(self, horizon: int) -> None:
        """Load weights for so many inferences; see `Loader`."""
        super().prepare(horizon)
        self._begin()

    def pause(self) -> None:
        """Begin no further reads, and wait; see `Loader`."""
        with self._change:
            self._paused = True
            self._drain()
        super().pause()

    def wait_filled(self) -> None:
        """Wait until memory is filled; see `Loader`."""
        if self._by_threads:
            super().wait_filled()
            return
        with self._change:
            self._hand_over()
            while self._error is None and self._flight:
                self._take_ended(wait=True)
                self._hand_over()
            self._check()

    def wait_loaded(self, count: int) -> None:
        """Wait until so many loads are complete; see `Loader`."""
        if self._by_threads:
            super().wait_loaded(count)
        elif self._loaded < count or self._error is not None:
            with self._change:
                self._hand_over()
                while self._loaded < count and self._error is None:
                    self._take_ended(wait=True)
                    self._hand_over()
                self._check()

    def has_loaded(self, count: int) -> bool:
        """See `Loader`; reads that have ended count."""
        if self._loaded < count and not self._by_threads:
            with self._change:
                self._take_ended(wait=False)
        return self._loaded >= count

    def ended(self, steps: int) -> None:
        """See `Loader`; what may be read now is begun."""
        super().ended(steps)
        if self._awaited <= steps:
            self._begin()

    def close(self) -> None:
        """End the threads, and give back what the kernel gave."""
        super().close()
        self._reads.close()

    def _begin(self) -> None:
        """Hand over what may be read now, if anything may."""
        if not self._by_threads:
            with self._change:
                self._hand_over()

    def _drain(self) -> None:
        """Wait for the reads in flight; those of threads, too."""
        while self._in_kernel and self._counted:
            self._take_ended(wait=True)
        if not self._counted:
            self._reads.renew()
            self._in_kernel.clear()
            self._flight.clear()
            self._counted = True
        while self._flight:
            self._change.wait()

    def _hand_over(self) -> None:
        """Begin all reads that may begin."""
        counted, self._counted = self._counted, False
        if len(self._flight) >= DEPTH:
            self._count_ended(wait=False)
        while len(self._flight) < DEPTH and self._ready():
            chunk, at, pieces = self._take()
            self._submit(_Read(chunk, at, [(self._base + address, size) for address, size in pieces]))
        self._counted = counted

    def _submit(self, read: _Read) -> None:
        """Begin a read, or do it here and now where the kernel has no room for it."""
        self._number += 1
        try:
            self._reads.submit(self._number, *self._file.place(read.at), read.pieces)
        except OSError:
            views = [memoryview((ctypes.c_char * size).from_address(address)).cast("B") for address, size in read.pieces]
            self._complete(read.chunk, self._read(read.at, views))
        else:
            self._in_kernel[self._number] = read

    def _take_ended(self, *, wait: bool) -> None:
        """Take the reads that have ended; the rest of those that ended early is begun again.

        Args:
            wait: whether to wait for one, if any is in flight.
        """
        counted, self._counted = self._counted, False
        self._count_ended(wait=wait)
        self._counted = counted

    def _count_ended(self, *, wait: bool) -> None:
        if not self._in_kernel:
            return
        for number, result in self._reads.ended(wait=wait):
            read = self._in_kernel.pop(number)
            if result <= 0 and -result not in _AGAIN:
                self._complete(read.chunk, self._file.failed(read.at, -result))
                continue
            read.at += max(result, 0)
            read.pieces = _behind(read.pieces, max(result, 0))
            if read.pieces:
                self._submit(read)
            else:
                self._complete(read.chunk, None)


def _behind(pieces: list[tuple[int, int]], done: int) -> list[tuple[int, int]]:
    """Return the rest of pieces of memory whose first bytes are filled."""
    left = []
    for address, size in pieces:
        filled = min(size, done)
        done -= filled
        if filled < size:
            left.append((address + filled, size - filled))
    return left
