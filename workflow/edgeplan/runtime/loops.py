"""The native loop over steps whose calls are bound, as Python calls it, and the numbers that both share (`loops.h`)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

from edgeplan import native

INTEGERS, FLOATS = 18, 3  # arguments of a call, of either kind
#: Kinds of operations: call a function that returns a status; one that returns a handle; one that returns nothing; copy a
#: handle among the scratch words; move a primitive descriptor on to an implementation.
CALL, ASK, TELL, COPY, WALK = range(5)
#: Kinds of arguments: a number; a handle; where a handle is to be put; a constant's address; a scratch word's; an address in
#: the session's memory; the engine.
NUMBER, HANDLE, RESULT, CONSTANT, SCRATCH, MEMORY, ENGINE = range(7)
#: Where weights come from: nowhere, copied from the cache, mapped, made from the model's file, or what the cold start used.
NO_WEIGHTS, COPIED, MAPPED, RAW, SHARED = range(5)
#: Rows of `places`: addresses, functions of the library, what to ask for.
AT_ENGINE, AT_MEMORY, AT_CONSTANTS, FN_QUERY, FN_NEXT, FN_MEMORY, FN_EXECUTE, FN_PLACE, WHAT_NAME, PLACES = range(10)
#: Rows of `own`: stream, operation and status of a failure, step at hand; of a pair the addresses of this lane's counter and of
#: the other one's, 0 where there is none, and of `GOMP_parallel`, which keeps a team awake; 0 for one thread.
OWN_STREAM, OWN_OPERATION, OWN_STATUS, OWN_STEP, OWN_COUNTER, OWN_OTHER, OWN_TOGETHER, OWN_WORDS = range(8)
#: How a lane ends: well, at a step that is not prepared, in a failure, or since the other processor of a pair did not come in
#: time.
DONE, NONE, FAILED, LATE = 0, -1, -2, -3
#: Head of a step's record.
(HEAD_SOURCE, HEAD_SEGMENT, HEAD_BYTES, HEAD_PLACE, HEAD_GROUPS, HEAD_SLOTS, HEAD_CALLS, HEAD) = range(8)

#: Columns of the steps of a lane: how far the other counter must be, the addresses where the step's calls begin (0 until it is
#: prepared) and end, and that of the addresses of its operands, call by call; 0 where the arguments of its calls know them.
NEEDED, FIRST, END, OPERANDS, ITEM_WORDS = range(5)
#: Columns of calls, which but for the stream are a function and its arguments: steps of one kernel share them. Without
#: arguments, as compiled kernels are called, these are the addresses of the operands.
FUNCTION, PRIMITIVE, COUNT, ARGUMENTS, CALL_WORDS = range(5)

WORD = 8

_WORD = ctypes.c_int64
_PLACE = "dnnl_memory_set_data_handle"
Words: TypeAlias = "ctypes.Array[ctypes.c_int64]"


def zero_words(count: int) -> Words:
    """Allocate words, all of them 0."""
    return (_WORD * count)()


def function_address(function: Any) -> int:
    """The address of a C function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def _places_of(path: str) -> Words:
    """Addresses of the functions that the loop calls, of oneDNN's library at a path, which is loaded."""
    found = zero_words(PLACES)
    found[FN_PLACE] = function_address(getattr(ctypes.CDLL(path), _PLACE))
    return found


class Loop:
    """The loop over the steps of one lane, in the thread that calls it, whose stream it is given.

    Steps have `ITEM_WORDS` words each; they and what they point to live as long as the loop. `times` are nanoseconds at which
    each step began and ended in the last run, two words for each (`time.perf_counter_ns`).
    """

    def __init__(self, path: str, stream: int, items: Words) -> None:
        # addresses of places, own memory, items and times; first step, end, what is waited for last, limit in ns
        self._run, self._places = native.function("run_lane", _WORD, *(_WORD,) * 8), _places_of(path)
        self._own = zero_words(OWN_WORDS)
        self._own[OWN_STREAM] = stream
        self.times, self._items = zero_words(2 * (len(items) // ITEM_WORDS)), items
        self._given = tuple(map(ctypes.addressof, (self._places, self._own, items, self.times)))

    def share(self, own: int, other: int, needed: Sequence[int], team: int) -> None:
        """Have the loop wait for another lane.

        Counters of this lane and of the other one are addresses in memory that both see; for each step the other one has to be
        so far before (`needed`). `team`: `Dnnl.team` of the thread.
        """
        self._own[OWN_COUNTER], self._own[OWN_OTHER], self._own[OWN_TOGETHER] = own, other, team
        for k, count in enumerate(needed):
            self._items[ITEM_WORDS * k + NEEDED] = count

    def run(self, first: int, end: int, last: int = 0, limit_ns: int = 0) -> int:
        """Run steps from one on to before another, then wait until the other counter is so far: `DONE`, `FAILED` or `LATE`."""
        return int(self._run(*self._given, first, end, last, limit_ns))

    @property
    def status(self) -> int:
        """The status of the call that failed."""
        return int(self._own[OWN_STATUS])

    @property
    def step(self) -> int:
        """The step at hand when the loop ended."""
        return int(self._own[OWN_STEP])
