"""The weight cache of a plan: transformed weights in one file, in the order of execution, each step's at a page.

The header says what the weights are for and holds a checksum of every segment. A program knows the digest of the header, so a
cache of anything else is foreign. Every segment is checked when it is fetched, unless the file system vouches that the file was
not touched since it was written (`stamp`): reading all bytes once more takes longer than a small model's first inference. What
fails is made again from the raw weights.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from edgeplan.errors import StoreError
from edgeplan.runtime.folder_lock import stale
from edgeplan.runtime.linked import AGAIN, LinkedProgram, LinkedStep
from edgeplan.runtime.memory import PAGE_BYTES, Bytes, MappedFile, ZeroedMemory, checksum, contents_stamp, read_fully
from edgeplan.support.files import write_atomically

_LOG = logging.getLogger(__name__)
_CLOCK_SECONDS = 0.02  # more than a tick of the slowest kernel clock (10 ms)


def paged(size: int) -> int:
    """The next multiple of a page."""
    return -(-size // PAGE_BYTES) * PAGE_BYTES


def header(program: LinkedProgram, steps: Sequence[LinkedStep]) -> bytes:
    """Build the header before the first segment of a program's cache."""
    return description(program, steps).ljust(program.first_segment, b"\0")


def description(program: LinkedProgram, steps: Sequence[LinkedStep]) -> bytes:
    """Describe a program's cache: its purpose and contents."""
    document = {
        "format_version": 2,
        "model": program.model,
        "threads": program.threads,
        "layout": program.layout,
        "segments": [[s.name, s.implementation, s.segment, s.weight_bytes, s.checksum] for s in steps if s.cached],
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def key_of(head: bytes) -> str:
    """Return the digest of a header."""
    return hashlib.sha256(head).hexdigest()


def stamp(status: os.stat_result) -> tuple[int, ...]:
    """Return a stamp that changes when anybody writes to a file, replaces it or moves it: its number, size and times.

    The last is set by the kernel alone (ctime), so that a file whose time of modification was put back is noticed too. Damage
    below the file system is not, for which file systems and disks have checksums of their own. Files of the model are trusted
    in the same way.
    """
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def settled(status: os.stat_result) -> bool:
    """Tell whether a change from now on would show in the stamp: clocks of file systems are coarse."""
    return time.time() - status.st_ctime > _CLOCK_SECONDS


def settled_stamp(path: Path) -> tuple[int, ...]:
    """The stamp of a file just written, once a later change would show in it."""
    time.sleep(_CLOCK_SECONDS)
    return stamp(path.stat())


def write_cache(program: LinkedProgram, steps: Sequence[LinkedStep], path: Path, weights: Callable[[int], Bytes]) -> None:
    """Write a cache atomically: readers see the old one or the new one.

    Args:
        program: whose.
        steps: of the program.
        path: of the cache.
        weights: gives the transformed weights of a step by its number.
    """
    drop_leftovers(path)

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.write(header(program, steps))
            for k, step in enumerate(steps):
                if step.cached:
                    file.seek(step.segment)
                    file.write(weights(k).data)
            file.truncate(program.cache_bytes)

    write_atomically(path, write)


def drop_leftovers(path: Path) -> None:
    """Delete the temporary files of processes that were killed while they wrote this cache."""
    for leftover in path.parent.glob(f".{path.name}.*.tmp"):
        with contextlib.suppress(OSError):  # gone: its process has put it in place; or another user's: in nobody's way
            if stale(leftover.stat()):
                leftover.unlink()


class WeightCache:
    """A cache, for one session.

    Args:
        path: of the cache.
        program: what it must be for.

    Attributes:
        problem: the first thing found wrong, or "".
    """

    def __init__(self, path: Path, program: LinkedProgram) -> None:
        self.problem = ""
        self._path, self._program = path, program
        self._lock = threading.Lock()
        self.descriptor = -1
        self._untouched = False
        self._mapped: MappedFile | None = None
        self._opened = (0, 0)

    def open(self) -> None:
        """Open it, if the program has one. What is wrong with it is a warning: weights are made from the raw ones."""
        program = self._program
        if not program.cache_bytes:
            return
        try:
            self.descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            status = os.fstat(self.descriptor)
            self._opened = size, _ = status.st_size, status.st_mtime_ns
            self._untouched = stamp(status) == program.cache_stamp
            if size != program.cache_bytes:
                self._reject(f"has {size} bytes, not {program.cache_bytes}", unusable=True)
            elif key_of(os.pread(self.descriptor, program.first_segment, 0)) != program.cache_key:
                self._reject("is for something else", unusable=True)
            elif "cached_mmap" in program.sources:
                self._mapped = MappedFile(self.descriptor, size)
        except OSError as error:
            self._reject(f"cannot be opened: {error.strerror}", unusable=True)

    @property
    def trusted(self) -> tuple[int, int]:
        """The open file and where it is mapped, for whoever takes weights as they are; -1 and 0 where they must be checked."""
        if not self._untouched or self.descriptor < 0:
            return -1, 0
        return self.descriptor, self._mapped.address if self._mapped is not None else 0

    def changed(self, *, copied: bool) -> str:
        """Where the file lies, if its contents changed since it was opened; "" if not, or where that does not matter any more.

        Args:
            copied: whether weights were copied from it since; what is mapped matters always.
        """
        matters = self.descriptor >= 0 and (copied or self._mapped is not None)
        return str(self._path) if matters and contents_stamp(self.descriptor) != self._opened else ""

    def close(self) -> None:
        """Close the file; what is mapped stays as long as something points to it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self.descriptor, self._mapped = -1, None

    def fetch(self, step: LinkedStep, memory: ZeroedMemory, base: int) -> int:
        """The address of a step's transformed weights, checked; 0 where the cache does not hold them.

        Args:
            step: a cached step.
            memory: where weights that are read are put, at `base + step.place`.
            base: start of the weights in `memory`.
        """
        if self.descriptor < 0:
            return 0
        try:
            if step.source == "cached_mmap" and self._mapped is not None:
                self._mapped.populate(step.segment, step.weight_bytes)
                data = self._mapped.data[step.segment : step.segment + step.weight_bytes]
                address = self._mapped.address + step.segment
            else:
                start = base + step.place
                data = memory.data[start : start + step.weight_bytes]
                address = memory.address + start
                read_fully(self.descriptor, data.data, step.segment)
        except (OSError, EOFError) as error:
            self._reject(f"cannot be read: {error}")
            return 0
        if not self._untouched and checksum(data) != step.checksum:
            self._reject(f"is damaged (weights of step {step.name!r})")
            return 0
        return address

    def _reject(self, problem: str, *, unusable: bool = False) -> None:
        with self._lock:
            first, self.problem = not self.problem, self.problem or problem
        if unusable and self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        if first:
            _LOG.warning("the weight cache %s %s: slower, from the model's own weights; it is built again", self._path, problem)

    def rebuild(self, steps: Sequence[LinkedStep], weights: Callable[[int], Bytes]) -> None:
        """Write the cache of a program's steps again from weights."""

        def checked(index: int) -> Bytes:
            data, step = weights(index), steps[index]
            if checksum(data) != step.checksum:
                raise StoreError(
                    f"the model's weights are not those that the plan was made with (step {step.name!r})",
                    where=str(self._path),
                    next_step=AGAIN,
                )
            return data

        write_cache(self._program, steps, self._path, checked)


def segments(sizes: Iterable[int], start: int) -> list[int]:
    """Offsets of segments of the given sizes, each at a page."""
    found = []
    for size in sizes:
        found.append(start)
        start += paged(size)
    return found
