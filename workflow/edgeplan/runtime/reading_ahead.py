"""Bringing weights into memory before they are fetched: they come in the order of execution while kernels are made.

One part after the other (`bringing`), so that the kernel's own reading ahead asks the disk for no more than its window at once,
in large pages. Asking for everything by POSIX_FADV_WILLNEED is no good: a disk with a long queue serves all of it at the same
time, what is needed first comes late, and small pages take two to three times the processor time.

Before the program is known the same thread brings the weight cache from its beginning, where the first steps' weights lie,
behind the files that say what the program is. It tells of what has come (`Store.flags`): until then lanes make kernels
(`native/src/loops/lanes.cpp`).
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

from edgeplan.runtime.bringing import Bringer
from edgeplan.runtime.folder import PLAN_NAME, PROGRAM_NAME
from edgeplan.runtime.lanes import LaneThread
from edgeplan.runtime.memory import in_memory
from edgeplan.runtime.native import words
from edgeplan.runtime.preparation import CACHE_NAME, Shared
from edgeplan.runtime.tape_file import TAPE_NAME

_AT_ONCE_BYTES = 1 << 18
#: What a start reads before it knows which weights it needs, in that order.
_FIRST = (PLAN_NAME, PROGRAM_NAME, TAPE_NAME)
#: Descriptor, first byte and the one after the last of weights, and a step before which all have come with them.
_Part = tuple[int, int, int, int]


def head_start(folder: Path) -> ReadingAhead | None:
    """Start to read a plan folder that is not in memory; None if its weights are, or it has none of its own.

    What cannot be opened is told by whoever needs it.
    """
    descriptor = _opened(folder / CACHE_NAME)
    if descriptor < 0:
        return None
    reader = ReadingAhead(descriptor)
    try:
        if not in_memory(descriptor, os.fstat(descriptor).st_size):
            for name in _FIRST:
                _ask_for(folder / name)
            reader.start()
            return reader
    except (OSError, RuntimeError):  # no thread can be started, say: the start does without
        pass
    os.close(descriptor)
    return None


def _opened(path: Path) -> int:
    """A descriptor of a file, not waiting for whoever writes to it if it is none; -1 if it cannot be opened."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return -1


def _ask_for(path: Path) -> None:
    """Have the disk bring a small file, without waiting for it."""
    descriptor = _opened(path)
    if descriptor >= 0:
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
        os.close(descriptor)


def reading_ahead(shared: Shared, begun: ReadingAhead | None = None) -> ReadingAhead | None:
    """Read all weights of a program, where they are not in memory yet; None if there is nothing to read.

    Args:
        shared: whose weights.
        begun: what reads already (`head_start`), and goes on with them.
    """
    if begun is not None:
        begun.go_on(shared)
        return begun
    wanted = [shared.cache.descriptor] if shared.cache.descriptor >= 0 else []
    if "raw" in shared.program.sources:
        wanted += shared.raw.descriptors
    if all(in_memory(descriptor, os.fstat(descriptor).st_size) for descriptor in wanted):
        return None
    reader = ReadingAhead()
    reader.go_on(shared)
    reader.start()
    return reader


class ReadingAhead:
    """Reads on a thread of its own.

    Args:
        descriptor: an open weight cache, to be read from its beginning until the program is known; closed by the thread.
    """

    def __init__(self, descriptor: int = -1) -> None:
        self._descriptor, self._ended = descriptor, False
        self._shared: Shared | None = None
        self._known = threading.Event()
        self._thread: LaneThread | None = None

    def start(self) -> None:
        """Start reading, which is not waited for."""
        self._thread = LaneThread(self.run)

    def go_on(self, shared: Shared) -> None:
        """The program is known: read its weights."""
        shared.objects.store.flags[words.ARRIVED] = 0
        self._shared = shared
        self._known.set()

    def end(self) -> None:
        """Stop reading and wait for it: the files are about to be closed."""
        self._ended = True
        self._known.set()
        self.join()

    def join(self) -> None:
        """Wait until everything is read, or the reading has ended otherwise."""
        if self._thread:
            self._thread.join()

    def run(self) -> None:
        """Read; what cannot be read is told by whoever fetches it."""
        try:
            with Bringer() as bringer:
                self._bring_beginning(bringer)
                self._known.wait()
                if self._shared is not None:
                    self._bring_weights(bringer, self._shared)
        except (OSError, MemoryError):
            pass
        finally:
            self._known.wait()
            if self._shared is not None:  # nobody waits for what nobody reads
                self._shared.objects.store.flags[words.ARRIVED] = self._shared.program.step_count
            if self._descriptor >= 0:
                os.close(self._descriptor)

    def _bring_beginning(self, bringer: Bringer) -> None:
        at = 0
        while not self._known.is_set() and (count := bringer.bring(self._descriptor, at, at + _AT_ONCE_BYTES)):
            at += count

    def _bring_weights(self, bringer: Bringer, shared: Shared) -> None:
        for descriptor, first, last, arrived in _together(_wanted(shared)):
            for at in range(first, last, _AT_ONCE_BYTES):
                if self._ended:
                    return
                bringer.bring(descriptor, at, min(last, at + _AT_ONCE_BYTES))
            shared.objects.store.flags[words.ARRIVED] = arrived


def _wanted(shared: Shared) -> Iterator[_Part]:
    """The weights of each step, in the order of execution."""
    program, tape = shared.program, shared.tape.tape
    for k in range(program.step_count):
        source, segment, size = tape.records[tape.record_starts[k] :][: words.HEAD_PLACE].tolist()
        if source in (words.COPIED, words.MAPPED):
            if shared.cache.descriptor >= 0:
                yield shared.cache.descriptor, segment, segment + size, k + 1
        elif source == words.BY_PYTHON:
            parts = shared.raw.places(shared.steps[k])
            yield from ((*part, k + (i == len(parts))) for i, part in enumerate(parts, start=1))


def _together(wanted: Iterator[_Part]) -> Iterator[_Part]:
    """Pieces that lie next to each other joined, as long as none grows beyond what is read at once."""
    known: _Part | None = None
    for descriptor, first, last, arrived in wanted:
        if known and known[0] == descriptor and 0 <= first - known[2] < _AT_ONCE_BYTES and last - known[1] <= _AT_ONCE_BYTES:
            known = (descriptor, known[1], last, arrived)
            continue
        if known:
            yield known
        known = (descriptor, first, last, arrived)
    if known:
        yield known
