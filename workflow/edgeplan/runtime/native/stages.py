"""The stages of a step: its objects made, its weights fetched, its calls written down and executed."""

from __future__ import annotations

from edgeplan.runtime.native.intrinsics import invoke_with_four, load_word, store_word
from edgeplan.runtime.native.making import ensure, status_of
from edgeplan.runtime.native.waiting import now_ns
from edgeplan.runtime.native.words import (
    AT_CONSTANTS,
    AT_ENGINE,
    AT_MAP,
    AT_MEMORY,
    AT_WEIGHTS,
    BINDING,
    BY_PYTHON,
    CACHE_FILE,
    COPIED,
    CREATE,
    DONE,
    FAILED,
    FN_ADVISE,
    FN_EXECUTE,
    FN_MEMORY,
    FN_READ,
    HEAD,
    HEAD_BYTES,
    HEAD_CALLS,
    HEAD_GROUPS,
    HEAD_PLACE,
    HEAD_SEGMENT,
    HEAD_SLOTS,
    HEAD_SOURCE,
    LEFT_TO_PYTHON,
    MAPPED,
    NO_WEIGHTS,
    OWN_MARKS,
    OWN_OPERATION,
    OWN_STATUS,
    READ,
    WORD,
    Numbers,
    Store,
    Tape,
    memories_at,
)
from edgeplan.support.compiled import compiled

_POPULATE_READ, _POPULATED_AT_ONCE, _PAGE = 22, 2 << 20, 4096
_memories_at = compiled(memories_at)


@compiled
def _map(places: Numbers, first: int, last: int) -> bool:
    """Have the pages of a part of the cache mapped: what cannot be read is told, where touching it would end the process."""
    for part in range(first, last, _POPULATED_AT_ONCE):
        length = min(_POPULATED_AT_ONCE, last - part)
        if status_of(invoke_with_four(places[FN_ADVISE], places[AT_MAP] + part, length, _POPULATE_READ, 0)) != 0:
            return False
    return True


@compiled
def _fetch(places: Numbers, records: Numbers, at: int) -> int:
    """The address of a step's weights from the cache; `LEFT_TO_PYTHON` where something is not as usual."""
    source, segment, size = records[at + HEAD_SOURCE], records[at + HEAD_SEGMENT], records[at + HEAD_BYTES]
    if source == NO_WEIGHTS:
        return 0
    if source == MAPPED and places[AT_MAP] != 0:
        if not _map(places, segment // _PAGE * _PAGE, segment + size):
            return LEFT_TO_PYTHON
        return int(places[AT_MAP] + segment)
    if source == COPIED and places[CACHE_FILE] >= 0:
        address = places[AT_WEIGHTS] + records[at + HEAD_PLACE]
        done = 0
        while done < size:
            got = invoke_with_four(places[FN_READ], places[CACHE_FILE], address + done, size - done, segment + done)
            if got <= 0:
                return LEFT_TO_PYTHON
            done += got
        return int(address)
    return LEFT_TO_PYTHON


@compiled
def _create(tape: Tape, store: Store, places: Numbers, own: Numbers, records: Numbers, at: int) -> int:
    """Make what a step's calls need."""
    first = at + HEAD
    for i in range(first, first + records[at + HEAD_GROUPS]):
        if ensure(tape, store, places, own, records[i]) != DONE:
            return FAILED
    return DONE


@compiled
def _bind(store: Store, places: Numbers, own: Numbers, records: Numbers, at: int, block: int, weights: int) -> int:
    """Write a step's calls at an address, its weights lying at another.

    The words of each (`words.FUNCTION`), the memories of the step's weights, the arguments. A compiled kernel has a block of
    numbers for a primitive, and addresses for arguments.
    """
    slots, calls = records[at + HEAD_SLOTS], records[at + HEAD_CALLS]
    first = row = at + HEAD + records[at + HEAD_GROUPS]
    memories = block + _memories_at(calls) * WORD
    for slot in range(slots):
        descriptor = store.handles[records[row]]
        status = invoke_with_four(
            places[FN_MEMORY], memories + slot * WORD, descriptor, places[AT_ENGINE], weights + records[row + 1]
        )
        if status_of(status) != 0:
            own[OWN_OPERATION], own[OWN_STATUS] = BINDING, status_of(status)
            return FAILED
        row += 2
    arguments = memories + slots * WORD
    for call in range(calls):
        entry, count, primitive = block + _memories_at(call) * WORD, records[row + 1], records[row]
        store_word(entry + 2 * WORD, count)
        store_word(entry + 3 * WORD, arguments)
        row += 2
        if primitive < 0:
            store_word(entry, store.kernels[-1 - primitive])
            store_word(entry + WORD, places[AT_CONSTANTS] + records[row])
            for place in records[row + 1 : row + 1 + count]:
                address = places[AT_MEMORY] + place if place >= 0 else weights + records[first - 2 * (place + 1) + 1]
                store_word(arguments, address)
                arguments += WORD
            row += 1 + count
            continue
        store_word(entry, places[FN_EXECUTE])
        store_word(entry + WORD, store.handles[primitive])
        for _ in range(count):
            memory = records[row + 1]
            store_word(arguments, records[row])
            store_word(arguments + WORD, store.handles[memory] if memory >= 0 else load_word(memories + (-1 - memory) * WORD))
            arguments += 2 * WORD
            row += 2
    return DONE


@compiled
def _mark(own: Numbers, marks: Numbers, stage: int, step: int, start: int, end: int) -> None:
    at = own[OWN_MARKS] * 4
    if at + 4 <= len(marks):
        marks[at], marks[at + 1], marks[at + 2], marks[at + 3] = stage, step, start, end
        own[OWN_MARKS] += 1


@compiled
def prepare(
    tape: Tape, store: Store, places: Numbers, own: Numbers, marks: Numbers, records: Numbers, at: int, step: int, block: int
) -> int:
    """Everything before a step's execution, if its weights come from the cache and all is well.

    Its kernels are made before its weights are fetched: with the page cache evicted these are on their way meanwhile.
    """
    if records[at + HEAD_SOURCE] == BY_PYTHON:
        return LEFT_TO_PYTHON
    start = now_ns(places, own)
    found = _create(tape, store, places, own, records, at)
    if found != DONE:
        return found
    weights = 0
    if records[at + HEAD_SOURCE] != NO_WEIGHTS:
        made = now_ns(places, own)
        _mark(own, marks, CREATE, step, start, made)
        weights = _fetch(places, records, at)
        if weights < 0:
            return LEFT_TO_PYTHON
        start = now_ns(places, own)
        _mark(own, marks, READ, step, made, start)
    found = _bind(store, places, own, records, at, block, weights)
    _mark(own, marks, CREATE, step, start, now_ns(places, own))
    return found


@compiled
def fetch(places: Numbers, own: Numbers, marks: Numbers, records: Numbers, at: int, step: int) -> int:
    """The address of a step's weights from the cache, as a part of its preparation."""
    start = now_ns(places, own)
    weights = _fetch(places, records, at)
    _mark(own, marks, READ, step, start, now_ns(places, own))
    return weights


@compiled
def create(
    tape: Tape, store: Store, places: Numbers, own: Numbers, marks: Numbers, records: Numbers, at: int, step: int
) -> int:
    """Make what a step's calls need, as a part of its preparation."""
    start = now_ns(places, own)
    found = _create(tape, store, places, own, records, at)
    _mark(own, marks, CREATE, step, start, now_ns(places, own))
    return found


@compiled
def bind(
    store: Store, places: Numbers, own: Numbers, marks: Numbers, records: Numbers, at: int, step: int, block: int, weights: int
) -> int:
    """Write a step's calls, as a part of its preparation."""
    start = now_ns(places, own)
    found = _bind(store, places, own, records, at, block, weights)
    _mark(own, marks, CREATE, step, start, now_ns(places, own))
    return found
