"""The native functions of a cold start as Python calls them, while other threads have the interpreter.

They take a context (`Context`) and memory of the calling thread (`own`, rows `OWN_...`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan import native
from edgeplan.runtime.native import calls
from edgeplan.runtime.native.words import ITEM_WORDS, Numbers, Store, Tape

_WORD = ctypes.c_int64
#: What each function takes.
_TYPES: Mapping[str, tuple[Any, ...]] = {
    "ensure": (_WORD,) * 3,
    "fetch": (_WORD,) * 6,
    "create": (_WORD,) * 6,
    "bind": (_WORD,) * 8,
    "prepare": (_WORD,) * 7,
    "take": (_WORD,) * 3,
    "await_all": (_WORD,),
    "publish": (_WORD,) * 3,
    "drive": (*(_WORD,) * 6, ctypes.c_double),
    "advance": (_WORD,) * 10,
    "mix": (_WORD,) * 3,
}
_TOLD = ("publish", "mix")  # these return nothing


class Context:
    """The arrays of a session as native code takes them.

    Attributes:
        tape, store, places: the arrays; see `words`.
        address: of the words that say where they lie.
    """

    def __init__(self, tape: Tape, store: Store, places: Numbers) -> None:
        self.tape, self.store, self.places = tape, store, places
        arrays = [word for array in (*tape, *store) for word in (_at(array), len(array))]
        self._words = np.array([_at(places), *arrays, tape.values.shape[1]], np.int64)
        self.address = _at(self._words)


def _at(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _function(name: str) -> Any:
    return native.function(name, None if name in _TOLD else _WORD, *_TYPES[name])


def load() -> None:
    """Look up what Python calls."""
    for name in _TYPES:
        _function(name)
    calls.run_lane()


def ensure(context: Context, own: Numbers, group: int) -> int:
    """Make a group's object, or wait for the thread that is at it."""
    return int(_function("ensure")(context.address, _at(own), group))


def fetch(context: Context, own: Numbers, marks: Numbers, record: Numbers, step: int) -> int:
    """The address of a step's weights from the cache."""
    return int(_function("fetch")(context.address, _at(own), _at(marks), len(marks), _at(record), step))


def create(context: Context, own: Numbers, marks: Numbers, record: Numbers, step: int) -> int:
    """Make what a step's calls need."""
    return int(_function("create")(context.address, _at(own), _at(marks), len(marks), _at(record), step))


def bind(context: Context, own: Numbers, marks: Numbers, record: Numbers, step: int, block: int, weights: int) -> int:
    """Write a step's calls at an address, its weights lying at another."""
    given = (context.address, _at(own), _at(marks), len(marks), _at(record))
    return int(_function("bind")(*given, step, block, weights))


def prepare(context: Context, own: Numbers, marks: Numbers, record: Numbers, step: int, block: int) -> int:
    """Everything before a step's execution, if its weights come from the cache and all is well."""
    given = (context.address, _at(own), _at(marks), len(marks), _at(record))
    return int(_function("prepare")(*given, step, block))


def take(context: Context, lane: int, *, stealing: bool) -> int:
    """The next step of a lane, or of another that is behind; -1 where there is none."""
    return int(_function("take")(context.address, lane, stealing))


def await_all(context: Context) -> int:
    """Wait until all steps are prepared, or somebody has given up."""
    return int(_function("await_all")(context.address))


def publish(context: Context, step: int, block: int) -> None:
    """A step's calls are there, for `advance`."""
    _function("publish")(context.address, step, block)


def drive(context: Context, own: Numbers, marks: Numbers, lane: int, *, stealing: bool, slower: float) -> int:
    """Prepare a lane's steps until there are none, if it is `stealing` then those of others.

    `slower` stands for a slower core: it waits so many times as long as each preparation took.
    """
    return int(_function("drive")(context.address, _at(own), _at(marks), len(marks), lane, stealing, slower))


def run_lane(places: Numbers, own: Numbers, items: Numbers, times: Numbers) -> int:
    """Run all steps of a lane, which are prepared and wait for no other lane."""
    return int(calls.run_lane()(*map(_at, (places, own, items, times)), 0, len(items) // ITEM_WORDS, 0, 0))


def advance(
    context: Context,
    own: Numbers,
    marks: Numbers,
    times: Numbers,
    first: int,
    last: int,
    *,
    narrow: int,
    stealing: bool,
    patience_ns: int,
) -> int:
    """Execute steps in order, and prepare the main lane's whenever one is not ready (`native/src/loops/lanes.cpp`)."""
    given = (context.address, _at(own), _at(marks), len(marks), _at(times), first, last)
    return int(_function("advance")(*given, narrow, stealing, patience_ns))


def mix(words: npt.NDArray[np.uint64], states: npt.NDArray[np.uint64]) -> None:
    """Mix words into `LANES` states, in turn: no change of a word is lost."""
    _function("mix")(_at(words), len(words), _at(states))
