"""The CPU's lane of a pair, compiled: wait for the other processor's counter, run a sub-step, count it.

The counters are words in memory that both processors see while they run, of which the other one uses the lower half.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.native.intrinsics import invoke_with_four, load_word, store_word
from edgeplan.runtime.native.making import status_of
from edgeplan.runtime.native.waiting import nap, now_ns
from edgeplan.runtime.native.words import (
    ARGUMENTS,
    COUNT,
    COUNTER,
    DONE,
    END,
    FAILED,
    FIRST,
    FUNCTION,
    LATE,
    NEEDED,
    OTHER,
    OWN_STATUS,
    OWN_STEP,
    OWN_STREAM,
    PRIMITIVE,
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
def run_lane(
    places: Numbers, own: Numbers, shared: Numbers, items: Table, calls: Table, times: Table, last: int, limit_ns: int
) -> int:
    """Run all items of the lane, then wait for the last one of the other.

    Args:
        places: addresses of functions.
        own: memory of the calling thread, with its stream; where a failure was is put there.
        shared: see `COUNTER`.
        items: in order.
        calls: of all items.
        times: when each began and ended is put there, ns of `time.perf_counter_ns`.
        last: how far the other counter is in the end.
        limit_ns: of one wait.

    Returns:
        `DONE`, `FAILED` or `LATE`.
    """
    for k in range(len(items)):
        own[OWN_STEP] = k
        found = _await(places, own, shared, items[k, NEEDED], limit_ns)
        if found != DONE:
            return found
        times[k, 0] = now_ns(places, own)
        for call in range(items[k, FIRST], items[k, END]):
            given = invoke_with_four(
                calls[call, FUNCTION], calls[call, PRIMITIVE], own[OWN_STREAM], calls[call, COUNT], calls[call, ARGUMENTS]
            )
            if status_of(given) != 0:
                own[OWN_STATUS] = status_of(given)
                return FAILED
        times[k, 1] = now_ns(places, own)
        store_word(shared[COUNTER], k + 1)
    own[OWN_STEP] = len(items)
    return _await(places, own, shared, last, limit_ns)
