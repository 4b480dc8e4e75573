"""The loop over the steps of a program, whatever its plan is of: wait for a counter, run a step, count it.

Of a pair the counters are words in memory that both processors see while they run, of which the other one uses the lower half.
A cold start leaves the loop at a step that is not prepared yet (`lanes.advance`).
"""

from __future__ import annotations

from edgeplan.runtime.native.intrinsics import invoke_with_four, load_word, store_word
from edgeplan.runtime.native.making import status_of
from edgeplan.runtime.native.waiting import nap, now_ns
from edgeplan.runtime.native.words import (
    ARGUMENT_MEMORY,
    ARGUMENT_WORDS,
    ARGUMENTS,
    CALL_WORDS,
    COUNT,
    DONE,
    END,
    EXECUTION,
    FAILED,
    FIRST,
    FN_PLACE,
    FUNCTION,
    ITEM_WORDS,
    LATE,
    NEEDED,
    NONE,
    OPERANDS,
    OWN_COUNTER,
    OWN_OPERATION,
    OWN_OTHER,
    OWN_STATUS,
    OWN_STEP,
    OWN_STREAM,
    PRIMITIVE,
    WORD,
    Numbers,
)
from edgeplan.support.compiled import compiled

#: Longer waits are no hand-overs between processors at work: the core is left to others for a moment at a time.
_AWAKE_NS = 20_000_000
_LOOKS = 32  # of one reading of the clock


@compiled
def _await(places: Numbers, own: Numbers, needed: int, limit_ns: int) -> int:
    """Until the other counter is at least so far."""
    if needed == 0 or load_word(own[OWN_OTHER]) >= needed:
        return DONE
    begun = now_ns(places, own)
    while True:
        for _ in range(_LOOKS):
            if load_word(own[OWN_OTHER]) >= needed:
                return DONE
        waited = now_ns(places, own) - begun
        if waited > limit_ns:
            return LATE
        if waited > _AWAKE_NS:
            nap(places)


@compiled
def _arguments(places: Numbers, arguments: int, count: int, operands: int) -> int:
    """The arguments of a call, with its memories at the addresses of its operands."""
    if operands == 0:
        return arguments
    if arguments == 0:
        return operands
    for k in range(count):
        memory = load_word(arguments + (k * ARGUMENT_WORDS + ARGUMENT_MEMORY) * WORD)
        invoke_with_four(places[FN_PLACE], memory, load_word(operands + k * WORD), 0, 0)
    return arguments


@compiled
def _run(places: Numbers, own: Numbers, first: int, end: int, operands: int) -> int:
    """Make the calls of a step; a status."""
    for call in range(first, end, CALL_WORDS * WORD):
        count = load_word(call + COUNT * WORD)
        arguments = _arguments(places, load_word(call + ARGUMENTS * WORD), count, operands)
        function, primitive = load_word(call + FUNCTION * WORD), load_word(call + PRIMITIVE * WORD)
        given = invoke_with_four(function, primitive, own[OWN_STREAM], count, arguments)
        if status_of(given) != 0:
            return status_of(given)
        if operands != 0:
            operands += count * WORD
    return 0


@compiled
def run_lane(
    places: Numbers, own: Numbers, items: Numbers, times: Numbers, first: int, end: int, last: int, limit_ns: int
) -> int:
    """Run steps of a lane in order, then wait for the other one.

    Args:
        places: addresses of functions.
        own: memory of the calling thread, with its stream and the lanes' counters; where a failure was is put there.
        items: the steps of the lane, `ITEM_WORDS` for each.
        times: when each began and ended is put there, two words for each, ns of `time.perf_counter_ns`.
        first: step to run.
        end: the step after the last one.
        last: how far the other counter is in the end.
        limit_ns: of one wait.

    Returns:
        `DONE`; `NONE` before a step that is not prepared; `FAILED`, or `LATE`. The step at hand is in `own`.
    """
    for k in range(first, end):
        own[OWN_STEP] = k
        item = items.ctypes.data + k * ITEM_WORDS * WORD
        calls = load_word(item + FIRST * WORD)
        if calls == 0:
            return NONE
        found = _await(places, own, load_word(item + NEEDED * WORD), limit_ns)
        if found != DONE:
            return found
        times[2 * k] = now_ns(places, own)
        status = _run(places, own, calls, load_word(item + END * WORD), load_word(item + OPERANDS * WORD))
        if status != 0:
            own[OWN_OPERATION], own[OWN_STATUS] = EXECUTION, status
            return FAILED
        times[2 * k + 1] = now_ns(places, own)
        if own[OWN_COUNTER] != 0:
            store_word(own[OWN_COUNTER], k + 1)
    own[OWN_STEP] = end
    return _await(places, own, last, limit_ns)
