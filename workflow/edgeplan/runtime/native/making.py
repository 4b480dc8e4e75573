"""The library's objects, made by the operations of a tape."""

from __future__ import annotations

from edgeplan.runtime.native.intrinsics import byte, claim, invoke, invoke_with_four, load_word, store_word
from edgeplan.runtime.native.waiting import now_ns, pause
from edgeplan.runtime.native.words import (
    ASK,
    AT_CONSTANTS,
    AT_ENGINE,
    AT_MEMORY,
    CALL,
    CONSTANT,
    COPY,
    DONE,
    ENGINE,
    FAILED,
    FLOATS,
    FN_NEXT,
    FN_QUERY,
    HANDLE,
    MEMORY,
    OWN_CALL,
    OWN_OPERATION,
    OWN_STATUS,
    RESULT,
    SCRATCH,
    WALK,
    WHAT_NAME,
    WORD,
    Numbers,
    Store,
    Tape,
)
from edgeplan.support.compiled import compiled

_MADE, _BEING_MADE, _BROKEN = 2, 1, 3  # the last byte of a state; of one broken, operation and status are before it


@compiled
def status_of(word: int) -> int:
    """A C `int` that came back in a word, whose other half is not defined."""
    return word & 0xFFFFFFFF


@compiled
def _walk(places: Numbers, own: Numbers, described: int, wanted: int) -> int:
    """Move a primitive descriptor on until its implementation's name is that at an address; a status.

    By name: a warm primitive cache repeats implementations in the walk, so positions shift.
    """
    text = own[OWN_CALL:].ctypes.data
    while True:
        status = status_of(invoke_with_four(places[FN_QUERY], described, places[WHAT_NAME], 0, text))
        if status != 0:
            return status
        at, found = 0, own[OWN_CALL]
        while byte(wanted + at) == byte(found + at) and byte(wanted + at) != 0:
            at += 1
        if byte(wanted + at) == byte(found + at):
            return 0
        status = status_of(invoke_with_four(places[FN_NEXT], described, 0, 0, 0))
        if status != 0:
            return status


@compiled
def _operate(  # noqa: C901  one operation of each kind
    tape: Tape, store: Store, places: Numbers, own: Numbers, operation: int
) -> int:
    """Perform one operation and return its status."""
    for i in range(tape.values.shape[1]):  # whatever stands behind them is not taken
        value, role = tape.values[operation, i], tape.roles[operation, i]
        if role == HANDLE:
            value = store.handles[value]
        elif role == RESULT:
            value = store.handles.ctypes.data + value * WORD
        elif role == CONSTANT:
            value = places[AT_CONSTANTS] + value
        elif role == SCRATCH:
            value = store.scratch.ctypes.data + value * WORD
        elif role == MEMORY:
            value = places[AT_MEMORY] + value
        elif role == ENGINE:
            value = places[AT_ENGINE]
        own[OWN_CALL + i] = value
    kind = tape.kinds[operation]
    if kind == COPY:
        store.scratch[own[OWN_CALL]] = own[OWN_CALL + 1]
        return 0
    if kind == WALK:
        return _walk(places, own, own[OWN_CALL], own[OWN_CALL + 1])
    words = own[OWN_CALL:].ctypes.data
    given = invoke(tape.functions[operation], words, tape.floats.ctypes.data + operation * (FLOATS * 4))
    if kind == ASK:
        store.handles[tape.made[operation]] = given
    return status_of(given) if kind == CALL else 0


@compiled
def ensure(tape: Tape, store: Store, places: Numbers, own: Numbers, group: int) -> int:
    """Make a group's object, or wait for the thread that is at it. What it is made from must be there.

    Nothing is waited for while a group is being made, so threads cannot wait for each other in a circle.
    """
    state = store.states.ctypes.data + group * WORD
    found = load_word(state)
    if found == 0:
        found = claim(state, _BEING_MADE)
        if found == 0:
            for operation in range(tape.starts[group], tape.starts[group + 1]):
                status = _operate(tape, store, places, own, operation)
                if status != 0:
                    own[OWN_OPERATION], own[OWN_STATUS] = operation, status
                    store_word(state, (operation << 32) | (status << 8) | _BROKEN)
                    return FAILED
            store_word(state, _MADE)
            return DONE
    begun = now_ns(places, own) if found == _BEING_MADE else 0
    while found == _BEING_MADE:
        pause(places, own, begun)
        found = load_word(state)
    if found != _MADE:  # what the thread said that was at it
        own[OWN_OPERATION], own[OWN_STATUS] = found >> 32, (found >> 8) & 0xFFFFFF
        return FAILED
    return DONE
