"""Bringing weights into memory before they are fetched: they come in the order of execution while kernels are made.

One part after the other (`bringing`), so that the kernel's own reading ahead asks the disk for no more than its window at once,
in large pages. Asking for everything by POSIX_FADV_WILLNEED is no good: a disk with a long queue serves all of it at the same
time, what is needed first comes late, and small pages take two to three times the processor time.

It tells of what has come (`Store.flags`): until then lanes make kernels (`native.lanes`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from edgeplan.runtime.bringing import Bringer
from edgeplan.runtime.lanes import LaneThread
from edgeplan.runtime.memory import in_memory
from edgeplan.runtime.native import words
from edgeplan.runtime.preparation import Shared

_AT_ONCE_BYTES = 1 << 18
#: Descriptor, first byte and the one after the last of weights, and a step before which all have come with them.
_Part = tuple[int, int, int, int]


def reading_ahead(shared: Shared) -> ReadingAhead | None:
    """Start to read all weights of a program, where they are not in memory yet; None if there is nothing to read."""
    wanted = [shared.cache.descriptor] if shared.cache.descriptor >= 0 else []
    if "raw" in shared.program.sources:
        wanted += shared.raw.descriptors
    if all(in_memory(descriptor, os.fstat(descriptor).st_size) for descriptor in wanted):
        return None
    reader = ReadingAhead(shared)
    reader.start()
    return reader


class ReadingAhead:
    """Reads on a thread of its own.

    Args:
        shared: whose weights.
    """

    def __init__(self, shared: Shared) -> None:
        self._shared, self._ended = shared, False
        self._thread: LaneThread | None = None

    def start(self) -> None:
        """Begin; not waited for."""
        self._shared.objects.store.flags[words.ARRIVED] = 0
        self._thread = LaneThread(self.run)

    def end(self) -> None:
        """Stop reading and wait for it: the files are about to be closed."""
        self._ended = True
        self.join()

    def join(self) -> None:
        """Wait until everything is read, or the reading has ended otherwise."""
        if self._thread:
            self._thread.join()

    def run(self) -> None:
        """Read; what cannot be read is told by whoever fetches it."""
        flags = self._shared.objects.store.flags
        try:
            with Bringer() as bringer:
                for descriptor, first, last, arrived in _together(_wanted(self._shared)):
                    for at in range(first, last, _AT_ONCE_BYTES):
                        if self._ended:
                            return
                        bringer.bring(descriptor, at, min(last, at + _AT_ONCE_BYTES))
                    flags[words.ARRIVED] = arrived
        except OSError:
            return
        finally:
            flags[words.ARRIVED] = self._shared.program.step_count  # nobody waits for what nobody reads


def _wanted(shared: Shared) -> Iterator[_Part]:
    """The weights of each step, in the order of execution."""
    program, tape = shared.program, shared.tape.tape
    for k in range(program.step_count):
        source, segment, size = tape.records[tape.record_starts[k] :][: words.HEAD_PLACE].tolist()
        if source in (words.COPIED, words.MAPPED):
            if shared.cache.descriptor >= 0:
                yield shared.cache.descriptor, segment, segment + size, k + 1
        elif source == words.BY_PYTHON:
            parts = shared.raw.places(program.steps[k])
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
