"""The compiled loop over steps whose calls are bound, as Python calls it: nothing heavy is imported."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any, NamedTuple

from edgeplan.runtime.native import words
from edgeplan.support.machine_code import Images, addresses

_IMAGES = Images("edgeplan.runtime.native.build", ("runtime/native/*.py",))
_WORD = ctypes.c_int64
#: What the loop calls, by rows of `words`' places.
_SYSTEM = {words.FN_CLOCK: "clock_gettime", words.FN_NAP: "usleep"}
_PLACE = "dnnl_memory_set_data_handle"
_LIBC = ctypes.CDLL(None)


class Table(NamedTuple):
    """Rows of words: the address of the first one, and how many rows there are."""

    address: int
    rows: int


@cache
def load() -> Any:
    """Load the loop."""
    return ctypes.CFUNCTYPE(_WORD, *(_WORD,) * 12)(addresses(_IMAGES, ["calls"])["calls"]["run_lane"])


def array(count: int) -> ctypes.Array[ctypes.c_int64]:
    """Words, all 0."""
    return (_WORD * max(count, 1))()


def function_address(function: Any) -> int:
    """The address of a C function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def places_of(path: str) -> ctypes.Array[ctypes.c_int64]:
    """Addresses of the functions that the loop calls.

    Args:
        path: of oneDNN's library, which is loaded.
    """
    found = array(words.PLACES)
    for row, name in _SYSTEM.items():
        found[row] = function_address(getattr(_LIBC, name))
    found[words.FN_PLACE] = function_address(getattr(ctypes.CDLL(path), _PLACE))
    return found


class Loop:
    """The loop over the steps of one lane, in the thread that calls it.

    Args:
        path: of oneDNN's library.
        stream: of the calling thread.
        items: the steps: rows of `words.ITEM_WORDS`.
        calls: of all steps: rows of `words.CALL_WORDS`.
        times: where to note when each step began and ended: two words for each.
        counters: addresses of this lane's counter and of the other one's, in memory that both see; none: nothing is waited for.
    """

    def __init__(
        self, path: str, stream: int, items: Table, calls: Table, times: int, counters: tuple[int, int] = (0, 0)
    ) -> None:
        self._run, self._places = load(), places_of(path)
        self._own, self._shared, self._counters = array(words.OWN_WORDS), array(words.PAIR_WORDS), array(words.PAIR_WORDS)
        self._own[words.OWN_STREAM] = stream
        unused = ctypes.addressof(self._counters)
        self._shared[:] = [*counters] if all(counters) else [unused, unused + words.WORD]
        given = (self._places, self._own, self._shared)
        self._given = (*map(ctypes.addressof, given), items.address, calls.address, times, items.rows, calls.rows)

    def run(self, first: int, end: int, last: int = 0, limit_ns: int = 0) -> int:
        """Run steps from one on to before another, then wait until the other counter is so far; see `partner.run_lane`."""
        return int(self._run(*self._given, first, end, last, limit_ns))

    @property
    def status(self) -> int:
        """The status of the call that failed."""
        return int(self._own[words.OWN_STATUS])

    @property
    def step(self) -> int:
        """The step at hand when the loop ended."""
        return int(self._own[words.OWN_STEP])
