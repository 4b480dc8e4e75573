"""The native loop over steps whose calls are bound, as Python calls it: nothing heavy is imported."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any, TypeAlias

from edgeplan import native
from edgeplan.runtime.native import words

_WORD = ctypes.c_int64
_PLACE = "dnnl_memory_set_data_handle"
Words: TypeAlias = "ctypes.Array[ctypes.c_int64]"


def run_lane() -> Any:
    """The loop: addresses of places, own memory, items and times; first step, end, what is waited for last, limit in ns."""
    return native.function("run_lane", _WORD, *(_WORD,) * 8)


def array(count: int) -> Words:
    """Allocate words, all of them 0."""
    return (_WORD * count)()


def function_address(function: Any) -> int:
    """The address of a C function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def places_of(path: str) -> Words:
    """Addresses of the functions that the loop calls.

    Args:
        path: of oneDNN's library, which is loaded.
    """
    found = array(words.PLACES)
    found[words.FN_PLACE] = function_address(getattr(ctypes.CDLL(path), _PLACE))
    return found


class Loop:
    """The loop over the steps of one lane, in the thread that calls it.

    Args:
        path: of oneDNN's library.
        stream: of the calling thread.
        items: the steps, `words.ITEM_WORDS` for each; they and what they point to live as long as the loop.

    Attributes:
        times: nanoseconds at which each step began and ended in the last run, two words for each (`time.perf_counter_ns`).
    """

    def __init__(self, path: str, stream: int, items: Words) -> None:
        self._run, self._places = run_lane(), places_of(path)
        self._own = array(words.OWN_WORDS)
        self._own[words.OWN_STREAM] = stream
        self.times, self._items = array(2 * (len(items) // words.ITEM_WORDS)), items
        self._given = tuple(map(ctypes.addressof, (self._places, self._own, items, self.times)))

    def share(self, own: int, other: int, needed: Sequence[int], team: int) -> None:
        """Have the loop wait for another lane.

        Args:
            own: address of this lane's counter, in memory that both see.
            other: of the other one's.
            needed: for each step, how far the other one has to be before.
            team: `Dnnl.team` of the thread.
        """
        self._own[words.OWN_COUNTER], self._own[words.OWN_OTHER], self._own[words.OWN_TOGETHER] = own, other, team
        for k, count in enumerate(needed):
            self._items[words.ITEM_WORDS * k + words.NEEDED] = count

    def run(self, first: int, end: int, last: int = 0, limit_ns: int = 0) -> int:
        """Run steps from one on to before another, then wait until the other counter is so far: `DONE`, `FAILED` or `LATE`."""
        return int(self._run(*self._given, first, end, last, limit_ns))

    @property
    def status(self) -> int:
        """The status of the call that failed."""
        return int(self._own[words.OWN_STATUS])

    @property
    def step(self) -> int:
        """The step at hand when the loop ended."""
        return int(self._own[words.OWN_STEP])
