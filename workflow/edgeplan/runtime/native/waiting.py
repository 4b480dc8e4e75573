"""The clock, and how a thread waits for another one."""

from __future__ import annotations

from edgeplan.runtime.native.intrinsics import invoke_with_four
from edgeplan.runtime.native.words import FN_CLOCK, FN_NAP, OWN_CALL, Numbers
from edgeplan.support.compiled import compiled

#: Most waits between lanes are shorter. Longer awake, a thread that shares its core uses its share of it up.
_AWAKE_NS = 100_000
_NAP_US = 50


@compiled
def now_ns(places: Numbers, own: Numbers) -> int:
    """`clock_gettime(CLOCK_MONOTONIC)`: the clock of `time.perf_counter_ns`."""
    words = own[OWN_CALL:].ctypes.data
    invoke_with_four(places[FN_CLOCK], 1, words, 0, 0)
    return int(own[OWN_CALL]) * 1_000_000_000 + int(own[OWN_CALL + 1])


@compiled
def nap(places: Numbers) -> None:
    """Leave the processor for a moment.

    Not by `sched_yield`: beside a process that is busy it gives up the rest of the thread's share, and the core comes back
    after 12 ms, where a nap ends after less than 1 (means, Linux 6.18).
    """
    invoke_with_four(places[FN_NAP], _NAP_US, 0, 0, 0)


@compiled
def pause(places: Numbers, own: Numbers, begun: int) -> None:
    """A moment of a wait that began then (`now_ns`): awake at first, then asleep."""
    if now_ns(places, own) - begun > _AWAKE_NS:
        nap(places)


@compiled
def wait_until(places: Numbers, own: Numbers, end: int) -> int:
    """Wait for a moment to come, asleep until shortly before; the time then."""
    now = now_ns(places, own)
    while now < end:
        if end - now > 2 * _AWAKE_NS:  # a nap takes longer than it says
            nap(places)
        now = now_ns(places, own)
    return now
