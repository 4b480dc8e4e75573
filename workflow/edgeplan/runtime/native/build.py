"""The compiled loops as functions that C calls: what Python hands over are words and addresses of arrays.

A context holds the addresses and lengths of a session's arrays (`native.Context`).
"""

from __future__ import annotations

from typing import Any

from numba import carray, types  # type: ignore[attr-defined]  # it is public

from edgeplan.runtime.native.code_slots import ASSEMBLY
from edgeplan.runtime.native.intrinsics import bytes_at, floats_at, unsigned_at, words_at
from edgeplan.runtime.native.lanes import advance, await_all, drive, publish, take
from edgeplan.runtime.native.making import ensure
from edgeplan.runtime.native.mixing import mix
from edgeplan.runtime.native.partner import run_lane
from edgeplan.runtime.native.stages import bind, create, fetch, prepare
from edgeplan.runtime.native.widening import ASSEMBLY as WIDENING
from edgeplan.runtime.native.words import (
    FAILED,
    FLOATS,
    ITEM_WORDS,
    LANES,
    OWN_WORDS,
    PLACES,
    STORE_AT,
    TAPE_AT,
    WIDTH_AT,
    Store,
    Tape,
)
from edgeplan.support.compiled import compiled
from edgeplan.support.object_code import Entry, image_of

# mypy: disable-error-code="no-any-return"


def build(name: str) -> bytes:
    """Compile the image of the loops, or of functions that are assembly.

    Args:
        name: `loops`; `calls`, which alone a plan of memory needs; `widening`, which it needs where weights are stored in half
            their bytes; or `code_memory`, whose functions hand out memory for code.
    """
    if name in (assembly := {"code_memory": ASSEMBLY, "widening": WIDENING}):
        return image_of({}, assembly[name])
    word: Any = types.int64
    entries = {}
    for function, count in (_CALLS if name == "calls" else _ENTRIES).items():
        given: list[Any] = [word] * count
        if function is _drive:
            given[-1] = types.float64
        entries[function.__name__.removeprefix("_")] = Entry(function, word(*given), FAILED)
    return image_of(entries)


@compiled
def _array(address: int, count: int) -> Any:
    return carray(words_at(address), (count,))


@compiled
def _unsigned(address: int, count: int) -> Any:
    return carray(unsigned_at(address), (count,))


@compiled
def _table(address: int, rows: int, columns: int) -> Any:
    return carray(words_at(address), (rows, columns))


@compiled
def _named(context: int, first: int, which: int) -> Any:
    given = _array(context + 8 * (first + 2 * which), 2)
    return _array(given[0], given[1])


@compiled
def _own(address: int) -> Any:
    return _array(address, OWN_WORDS)


@compiled
def _places(context: int) -> Any:
    return _array(_array(context, 1)[0], PLACES)


@compiled
def _tape(context: int) -> Any:
    width = _array(context + 8 * WIDTH_AT, 1)[0]
    given = _array(context + 8 * TAPE_AT, 12)
    operations, roles, values, floats = given[1], given[6], given[8], given[10]
    return Tape(
        _named(context, TAPE_AT, 0),
        _named(context, TAPE_AT, 1),
        _named(context, TAPE_AT, 2),
        carray(bytes_at(roles), (operations, width)),
        _table(values, operations, width),
        carray(floats_at(floats), (operations, FLOATS)),
        _named(context, TAPE_AT, 6),
        _named(context, TAPE_AT, 7),
        _named(context, TAPE_AT, 8),
    )


@compiled
def _store(context: int) -> Any:
    return Store(
        _named(context, STORE_AT, 0),
        _named(context, STORE_AT, 1),
        _named(context, STORE_AT, 2),
        _named(context, STORE_AT, 3),
        _named(context, STORE_AT, 4),
        _named(context, STORE_AT, 5),
        _named(context, STORE_AT, 6),
        _named(context, STORE_AT, 7),
        _named(context, STORE_AT, 8),
    )


# Of compiled functions all arguments are positional, and none is a tuple spread out.


def _ensure(context: int, own: int, group: int) -> int:
    return ensure(_tape(context), _store(context), _places(context), _own(own), group)


def _fetch(context: int, own: int, marks: int, count: int, record: int, size: int, step: int) -> int:
    return fetch(_places(context), _own(own), _array(marks, count), _array(record, size), 0, step)


def _create(context: int, own: int, marks: int, count: int, record: int, size: int, step: int) -> int:
    noted, words = _array(marks, count), _array(record, size)
    return create(_tape(context), _store(context), _places(context), _own(own), noted, words, 0, step)


def _bind(context: int, own: int, marks: int, count: int, record: int, size: int, step: int, block: int, weights: int) -> int:
    noted, words = _array(marks, count), _array(record, size)
    return bind(_store(context), _places(context), _own(own), noted, words, 0, step, block, weights)


def _prepare(context: int, own: int, marks: int, count: int, record: int, size: int, step: int, block: int) -> int:
    noted, words = _array(marks, count), _array(record, size)
    return prepare(_tape(context), _store(context), _places(context), _own(own), noted, words, 0, step, block)


def _take(context: int, lane: int, stealing: int) -> int:
    return take(_store(context), lane, stealing != 0)


def _await_all(context: int, own: int) -> int:
    return await_all(_tape(context), _store(context), _places(context), _own(own))


def _publish(context: int, step: int, block: int) -> int:
    return publish(_tape(context), _store(context), step, block)


def _drive(context: int, own: int, marks: int, count: int, lane: int, stealing: int, slower: float) -> int:
    noted = _array(marks, count)
    return drive(_tape(context), _store(context), _places(context), _own(own), noted, lane, stealing != 0, slower)


def _advance(
    context: int,
    own: int,
    marks: int,
    count: int,
    times: int,
    first: int,
    last: int,
    narrow: int,
    stealing: int,
    patience_ns: int,
) -> int:
    tape, store, places, noted, executed = (
        _tape(context),
        _store(context),
        _places(context),
        _array(marks, count),
        _array(times, 2 * last),
    )
    return advance(tape, store, places, _own(own), noted, executed, first, last, narrow, stealing != 0, patience_ns)


def _mix(words: int, count: int, states: int) -> int:
    mix(_unsigned(words, count), _unsigned(states, LANES))
    return 0


def _run_lane(places: int, own: int, items: int, times: int, count: int, first: int, end: int, last: int, limit_ns: int) -> int:
    steps, noted = _array(items, count * ITEM_WORDS), _array(times, 2 * count)
    return run_lane(_array(places, PLACES), _own(own), steps, noted, first, end, last, limit_ns)


#: How many words each function takes.
_ENTRIES: dict[Any, int] = {
    _ensure: 3,
    _fetch: 7,
    _create: 7,
    _bind: 9,
    _prepare: 8,
    _take: 3,
    _await_all: 2,
    _publish: 3,
    _drive: 7,
    _advance: 10,
    _mix: 3,
    _run_lane: 9,
}
_CALLS: dict[Any, int] = {_run_lane: 9}
