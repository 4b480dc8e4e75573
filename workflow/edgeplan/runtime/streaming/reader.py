"""Reading weights past the page cache: direct I/O into memory, a few reads in flight, in order of execution.

What is stored in half its bytes is read to the upper half of its place, and widened there read by read (`widen_read`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import math
import os
import threading
from collections import deque
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from time import perf_counter_ns

import msgspec

from edgeplan.errors import ModelError
from edgeplan.runtime.streaming import halves
from edgeplan.runtime.streaming.halves import BF16, Stored
from edgeplan.runtime.streaming.program import AGAIN

#: Bytes of one read: smaller ones cost bandwidth, larger ones gain none.
CHUNK_BYTES = 2 << 20
_MOST_PIECES = 512  # of one read; the system takes 1024
_REFUSED = (errno.EINVAL, errno.EOPNOTSUPP)


class WeightsFile:
    """The file of weights, read without leaving anything of it in the page cache.

    Args:
        path: the file.
        size: bytes that it has to have.
        drop: whether it was read before, so that what the page cache has of it is to be dropped.

    Attributes:
        direct: whether the file system takes direct I/O; where it refuses, reads go through the page cache, which is told
            to drop them again.
    """

    def __init__(self, path: Path, size: int, *, drop: bool = False) -> None:
        self.path = path
        try:
            self._descriptor, self.direct = _opened(path)
        except OSError as error:
            raise ModelError(f"cannot open the weights: {error.strerror}", where=str(path), next_step=AGAIN) from error
        found = os.fstat(self._descriptor)
        if found.st_size != size:
            os.close(self._descriptor)
            raise ModelError(f"the weights have {found.st_size} bytes, not {size}", where=str(path), next_step=AGAIN)
        self._stamp = found.st_mtime_ns
        if drop:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    def read(self, offset: int, pieces: Sequence[memoryview]) -> None:
        """Fill memory from an offset on."""
        left, at = list(pieces), offset
        while left:
            try:
                got = os.preadv(self._descriptor, left, at)
            except OSError as error:
                raise self._failed(at, error.errno or 0) from error
            if not got:
                raise self._failed(at)
            at += got
            while left and got >= len(left[0]):
                got -= len(left.pop(0))
            if got:
                left[0] = left[0][got:]
        if not self.direct:
            os.posix_fadvise(self._descriptor, offset, at - offset, os.POSIX_FADV_DONTNEED)

    def _failed(self, at: int, code: int = 0) -> ModelError:
        """Describe a read that failed at a byte of the file, by its errno; 0: the file ended."""
        if not code:
            return ModelError(f"the weights end before byte {at}", where=str(self.path), next_step=AGAIN)
        what = f"cannot read the weights at byte {at}: {os.strerror(code)}"
        return ModelError(what, where=str(self.path), next_step="check the disk, then run again")

    def require_unchanged(self) -> None:
        """Nobody has written to the file since it was opened."""
        if os.fstat(self._descriptor).st_mtime_ns != self._stamp:
            raise ModelError("the weights were changed while they were in use", where=str(self.path), next_step=AGAIN)

    def close(self) -> None:
        """Close the file of weights."""
        os.close(self._descriptor)


def _opened(path: Path) -> tuple[int, bool]:
    flags = os.O_RDONLY | os.O_CLOEXEC
    if direct := getattr(os, "O_DIRECT", 0):
        try:
            return os.open(path, flags | direct), True
        except OSError as error:
            if error.errno not in _REFUSED:
                raise
    return os.open(path, flags), False


class Load(msgspec.Struct, frozen=True):
    """The weights of one step.

    Attributes:
        step: its number.
        at: where they begin in the file.
        size: bytes in the file.
        address: where they go, from the beginning of the arena.
        after: the step that has to end before; -1: none.
        again: with `after` -1: the step of the inference before that has to end first; the step itself: they stay.
        halved: whether the file holds half the bytes of each value, so that they take twice `size` in memory.
        kind: of these halves.
    """

    step: int
    at: int
    size: int
    address: int
    after: int
    again: int
    halved: bool = False
    kind: Stored = BF16

    @property
    def read_to(self) -> int:
        """Return where the bytes of the file go: of halves the upper half of the place."""
        return self.address + self.size if self.halved else self.address

    @property
    def memory_bytes(self) -> int:
        """Return the bytes that the weights take in memory."""
        return halves.VALUE_BYTES * self.size // halves.HALF_BYTES if self.halved else self.size


class Widening(msgspec.Struct, frozen=True):
    """Halves that are widened once they are read: where they begin and their values go, from the beginning of the arena."""

    halves: int
    values: int
    size: int
    kind: Stored

    @classmethod
    def of(cls, load: Load, offset: int, size: int) -> Widening:
        """The widening of `size` bytes of a load, from `offset` of its stored bytes on."""
        values = load.address + halves.VALUE_BYTES * offset // halves.HALF_BYTES
        return cls(load.read_to + offset, values, size, load.kind)


def widen_read(base: int, widenings: Sequence[Widening]) -> int:
    """Widen what has been read. Of one load it is done from the lowest address on: values take the place of halves before.

    Args:
        base: address of the arena.
        widenings: what to widen, in the order of the file.

    Returns:
        Bytes of the values.
    """
    for one in widenings:
        halves.widen(base + one.halves, base + one.values, one.size, one.kind)
    return sum(halves.VALUE_BYTES * one.size // halves.HALF_BYTES for one in widenings)


class Chunk:
    """A read in flight: how many loads are complete when it, and all before it, are, and what it is widened by."""

    __slots__ = ("complete", "passed", "widenings")

    def __init__(self, passed: int) -> None:
        self.passed, self.complete = passed, False
        self.widenings: list[Widening] = []


class Loader:
    """Loads the weights of one inference after the other, in order, each as early as its memory is free.

    Args:
        file: what to read.
        lanes: reads in flight, each by a thread of its own.
        processors: that these threads may use; empty: any.
    """

    def __init__(self, file: WeightsFile, lanes: int = 2, processors: Sequence[int] = ()) -> None:
        self._file, self._processors = file, processors
        self._change = threading.Condition()
        self._loads: tuple[Load, ...] = ()
        self._steps = 0
        self._memory: memoryview | None = None
        self._base = 0  # address of the arena
        self._widens = False  # whether a thread is at it
        self._flight: deque[Chunk] = deque()
        self._stopped, self._paused = False, True
        self._present: AbstractSet[int] = frozenset()
        self._error: BaseException | None = None
        self._reset()
        self._threads = [threading.Thread(target=self._work, name=f"reader-{k}", daemon=True) for k in range(lanes)]
        for thread in self._threads:
            thread.start()

    def _reset(self) -> None:
        self._inference, self._load, self._offset = 0, 0, 0  # what is read next
        self._passed, self._loaded = 0, 0  # loads that reads were begun for, and that are complete, since the beginning
        self._ended = 0  # steps that have ended
        self._awaited: float = 0  # that readers wait for: nobody is woken before
        self._horizon = 0  # inferences that weights are loaded for
        self.bytes_read = 0
        self._widened_bytes, self._widening_ns = 0, 0

    def start(
        self,
        loads: Sequence[Load],
        steps: int,
        memory: memoryview,
        horizon: int = 1,
        present: AbstractSet[int] = frozenset(),
    ) -> None:
        """Load from the first inference on, as nothing but `present` is in memory.

        Args:
            loads: of one inference, in order of execution.
            steps: of one inference.
            memory: the arena.
            horizon: inferences to load weights for.
            present: steps whose weights stay and are in memory already; nothing else is.
        """
        with self._change:
            self._reset()
            self._present = present
            self._loads, self._steps, self._memory, self._horizon = tuple(loads), steps, memory, horizon
            for kind in {load.kind for load in self._loads if load.halved}:
                halves.load(kind)
            self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory)) if len(memory) else 0
            self._error, self._paused = None, False
            self._change.notify_all()

    def pause(self) -> None:
        """Begin no further reads, and wait for those in flight."""
        with self._change:
            self._paused = True
            while self._flight:
                self._change.wait()
            self._memory = self._error = None

    def prepare(self, horizon: int) -> None:
        """Load weights for so many inferences, counted from the beginning."""
        with self._change:
            self._horizon = max(self._horizon, horizon)
            self._change.notify_all()

    def wait_filled(self) -> None:
        """Wait until nothing more can be loaded before a step ends."""
        with self._change:
            while self._error is None and (self._flight or self._ready()):
                self._change.wait()
            self._check()

    def wait_loaded(self, count: int) -> None:
        """Wait until so many loads are complete, counted from the beginning."""
        if self._loaded >= count and self._error is None:  # it only grows
            return
        with self._change:
            while self._loaded < count and self._error is None:
                self._change.wait()
            self._check()

    def has_loaded(self, count: int) -> bool:
        """Tell whether so many loads are complete, counted from the beginning; it only grows."""
        return self._loaded >= count

    def ended(self, steps: int) -> None:
        """So many steps have ended since the beginning: what they used is free."""
        self._ended = steps
        if steps >= self._awaited:  # a reader says what it waits for before it looks at what has ended
            with self._change:
                self._change.notify_all()

    @property
    def widened_per_ms(self) -> float:
        """Bytes of values that were widened in a ms since the beginning; 0 where none were."""
        return 1e6 * self._widened_bytes / self._widening_ns if self._widening_ns else 0.0

    def close(self) -> None:
        """End the threads that read."""
        with self._change:
            self._stopped = True
            self._change.notify_all()
        for thread in self._threads:
            thread.join()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _needed(self) -> int:
        """Steps that have to end before the next load may begin, counted from the beginning."""
        load = self._loads[self._load]
        if load.after >= 0:
            return self._inference * self._steps + load.after + 1
        return 0 if self._inference == 0 else (self._inference - 1) * self._steps + load.again + 1

    def _skip(self) -> None:
        """Pass by weights that stay in memory."""
        while self._inference < self._horizon and self._offset == 0 and self._loads:
            load = self._loads[self._load]
            stays = load.after < 0 and load.again == load.step
            if not stays or (not self._inference and load.step not in self._present):
                return
            self._next_load()

    def _next_load(self) -> None:
        self._passed += 1
        self._offset, self._load = 0, self._load + 1
        if self._load == len(self._loads):
            self._load, self._inference = 0, self._inference + 1
        if not self._flight:
            self._loaded = self._passed
            self._change.notify_all()

    def _ready(self) -> bool:
        """Tell whether the next piece may be read."""
        self._awaited = math.inf
        if self._paused or not self._loads:
            return False
        self._skip()
        if self._inference >= self._horizon:
            return False
        self._awaited = 0 if self._offset else self._needed()
        return self._awaited <= self._ended

    def _take(self) -> tuple[Chunk, int, list[tuple[int, int]]]:
        """The next read: neighbours in the file that may be loaded now, wherever they go."""
        chunk = Chunk(0)
        self._flight.append(chunk)
        first = self._loads[self._load]
        start = end = first.at + self._offset
        pieces: list[tuple[int, int]] = []
        while end - start < CHUNK_BYTES and len(pieces) < _MOST_PIECES and self._ready():
            load = self._loads[self._load]
            if load.at + self._offset != end:
                break
            size = min(load.size - self._offset, CHUNK_BYTES - (end - start))
            pieces.append((load.read_to + self._offset, size))
            if load.halved:
                chunk.widenings.append(Widening.of(load, self._offset, size))
            end += size
            self._offset += size
            if self._offset == load.size:
                self._next_load()
        chunk.passed = self._passed
        self.bytes_read += end - start
        return chunk, start, pieces

    def _work(self) -> None:
        pin(self._processors)
        change = self._change
        while True:
            with change:
                while not self._stopped and not self._ready():
                    change.wait()
                if self._stopped:
                    return
                chunk, start, pieces = self._take()
                memory = self._memory
            assert memory is not None  # noqa: S101  there is an arena while reads are in flight
            error = self._read(start, [memory[at : at + size] for at, size in pieces])
            del memory
            with change:
                self._complete(chunk, error)
                change.notify_all()
            del error

    def _complete(self, chunk: Chunk, error: BaseException | None) -> None:
        """A read has ended: count the loads that are complete now.

        In order, so that one thread at a time widens, and no read before its turn.
        """
        if error is not None:  # known before loads count as complete: nobody takes what was not read
            self._error, self._paused = error, True
        chunk.complete = True
        while self._flight and self._flight[0].complete and not self._widens:
            done = self._flight[0]
            if done.widenings and self._error is None:
                self._widen(done)
            self._flight.popleft()
            if self._error is None:
                self._loaded = done.passed if self._flight else self._passed
                self._change.notify_all()

    def _widen(self, chunk: Chunk) -> None:
        """Widen a read, while others go on."""
        self._widens = True
        self._change.release()
        began, widened = perf_counter_ns(), 0
        error: BaseException | None = None
        try:
            widened = widen_read(self._base, chunk.widenings)
        except BaseException as raised:  # noqa: BLE001  it is raised again where the weights are waited for
            error = _without_frames(raised)
        self._change.acquire()
        self._widens = False
        if error is not None:
            self._error, self._paused = error, True
        self._widening_ns += perf_counter_ns() - began
        self._widened_bytes += widened

    def _read(self, start: int, pieces: Sequence[memoryview]) -> BaseException | None:
        """Read, and return what went wrong: it is raised again where the weights are waited for."""
        try:
            self._file.read(start, pieces)
        except BaseException as error:  # noqa: BLE001  see above
            return _without_frames(error)
        return None


def pin(processors: Sequence[int]) -> None:
    """Keep the calling thread to those of these processors that it may use; where it may use none, it stays as it is.

    Args:
        processors: numbers; empty: any.
    """
    if allowed := os.sched_getaffinity(0) & set(processors):
        with contextlib.suppress(OSError):  # the system took them away meanwhile: reading elsewhere is slower, not wrong
            os.sched_setaffinity(0, allowed)


def _without_frames(error: BaseException) -> BaseException:
    """An error that keeps nothing of where it was raised: those frames hold views of memory, which could not be freed."""
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)
