"""Asking for weights before they are fetched: they stream from the disk in the order of execution while kernels are made."""

from __future__ import annotations

import os
import threading

from edgeplan.runtime.memory import in_memory
from edgeplan.runtime.native import words
from edgeplan.runtime.preparation import Shared

#: Asked for at once. A request costs the processor about as much as reading a quarter of this, however small it is.
_AT_ONCE_BYTES = 4 << 20


def reading_ahead(shared: Shared) -> threading.Thread | None:
    """Start to ask for all weights of a program, where they are not in memory yet.

    Returns:
        The thread that asks; None if there is nothing to ask for.
    """
    wanted = [shared.cache.descriptor] if shared.cache.descriptor >= 0 else []
    if "raw" in shared.program.sources:
        wanted += shared.raw.descriptors
    if all(in_memory(descriptor, os.fstat(descriptor).st_size) for descriptor in wanted):
        return None
    thread = threading.Thread(target=_read_ahead, args=(shared,), name="read-ahead", daemon=True)
    thread.start()
    return thread


def _read_ahead(shared: Shared) -> None:
    program, tape = shared.program, shared.tape.tape
    first = last = 0  # what lies together in the cache is asked for together
    for k in range(program.step_count):
        source, segment, size = tape.records[tape.record_starts[k] :][: words.HEAD_PLACE].tolist()
        if source in (words.COPIED, words.MAPPED):
            first, last = (first if last else segment), segment + size
            if last - first >= _AT_ONCE_BYTES:
                _ask(shared.cache.descriptor, first, last)
                last = 0
        elif source == words.BY_PYTHON:
            _ask(shared.cache.descriptor, first, last)
            last = 0
            shared.raw.read_ahead(program.steps[k])
    _ask(shared.cache.descriptor, first, last)


def _ask(descriptor: int, first: int, last: int) -> None:
    if descriptor >= 0:
        for at in range(first, last, _AT_ONCE_BYTES):  # Linux reads no more for one request than its window is wide
            os.posix_fadvise(descriptor, at, min(_AT_ONCE_BYTES, last - at), os.POSIX_FADV_WILLNEED)
