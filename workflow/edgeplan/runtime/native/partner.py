"""The loop over steps whose calls are bound: wait for a counter, run a step, count it.

Of a pair the counters are words in memory that both processors see while they run, of which the other one uses the lower half.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.native.intrinsics import invoke_with_four, load_word, store_word
from edgeplan.runtime.native.making import status_of
from edgeplan.runtime.native.waiting import nap, now_ns
from edgeplan.runtime.native.words import (
    ARGUMENT_MEMORY,
    ARGUMENT_WORDS,
    ARGUMENTS,
    COUNT,
    COUNTER,
    DONE,
    END,
    FAILED,
    FIRST,
    FN_PLACE,
    FUNCTION,
    LATE,
    NEEDED,
    OPERANDS,
    OTHER,
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

Table = npt.NDArray[np.int64]


@compiled
def _await(places: Numbers, own: Numbers, shared: Numbers, needed: int, limit_ns: int) -> int:
    """Until the other counter is at least so far."""
    if load_word(shared[OTHER]) >= needed:
        return DONE
    begun = now_ns(places, own)
    while True:
        for _ in range(_LOOKS):
            if load_word(shared[OTHER]) >= needed:
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
def _run(places: Numbers, own: Numbers, calls: Table, first: int, end: int, operands: int) -> int:
    """Make the calls of a step; a status."""
    for call in range(first, end):
        count = calls[call, COUNT]
        arguments = _arguments(places, calls[call, ARGUMENTS], count, operands)
        given = invoke_with_four(calls[call, FUNCTION], calls[call, PRIMITIVE], own[OWN_STREAM], count, arguments)
        if status_of(given) != 0:
            return status_of(given)
        if operands != 0:
            operands += count * WORD
    return 0


@compiled
def run_lane(
    places: Numbers,
    own: Numbers,
    shared: Numbers,
    items: Table,
    calls: Table,
    times: Table,
    first: int,
    end: int,
    last: int,
    limit_ns: int,
) -> int:
    """Run steps of a lane in order, then wait for the other one.

    Args:
        places: addresses of functions.
        own: memory of the calling thread, with its stream; where a failure was is put there.
        shared: see `COUNTER`.
        items: the steps of the lane.
        calls: of all steps.
        times: when each began and ended is put there, ns of `time.perf_counter_ns`.
        first: step to run.
        end: the step after the last one.
        last: how far the other counter is in the end.
        limit_ns: of one wait.

    Returns:
        `DONE`, `FAILED` or `LATE`.
    """
    for k in range(first, end):
        own[OWN_STEP] = k
        found = _await(places, own, shared, items[k, NEEDED], limit_ns)
        if found != DONE:
            return found
        times[k, 0] = now_ns(places, own)
        status = _run(places, own, calls, items[k, FIRST], items[k, END], items[k, OPERANDS])
        if status != 0:
            own[OWN_STATUS] = status
            return FAILED
        times[k, 1] = now_ns(places, own)
        store_word(shared[COUNTER], k + 1)
    own[OWN_STEP] = end
    return _await(places, own, shared, last, limit_ns)
