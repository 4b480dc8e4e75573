"""The compiled functions of a cold start as Python calls them, while other threads have the interpreter.

They take a context (`Context`) and memory of the calling thread (`own`, rows `OWN_...`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.native.words import (
    CONTEXT_WORDS,
    FLOATS,
    INTEGERS,
    ITEM_WORDS,
    OWN_WORDS,
    PLACES,
    STORE_AT,
    TAPE_AT,
    WIDTH_AT,
    Numbers,
    Store,
    Tape,
)
from edgeplan.support.machine_code import Images, addresses

_IMAGES = Images("edgeplan.runtime.native.build", ("runtime/native/*.py",))
_WORD, _NUMBER = ctypes.c_int64, ctypes.c_double
#: What each function takes.
_TYPES: Mapping[str, tuple[Any, ...]] = {
    "ensure": (_WORD,) * 3,
    "fetch": (_WORD,) * 7,
    "create": (_WORD,) * 7,
    "bind": (_WORD,) * 9,
    "prepare": (_WORD,) * 8,
    "take": (_WORD,) * 3,
    "await_all": (_WORD,) * 2,
    "publish": (_WORD,) * 3,
    "drive": (*(_WORD,) * 6, _NUMBER),
    "advance": (_WORD,) * 10,
    "mix": (_WORD,) * 3,
    "run_lane": (_WORD,) * 9,
}


class Context:
    """The arrays of a session as compiled code takes them.

    Attributes:
        tape, store, places: the arrays; see `words`.
        address: of the words that say where they lie.
    """

    def __init__(self, tape: Tape, store: Store, places: Numbers) -> None:
        self.tape, self.store, self.places = tape, store, places
        self._words = np.zeros(CONTEXT_WORDS, np.int64)
        self._words[0], self._words[WIDTH_AT] = _at(places), tape.values.shape[1]
        both: tuple[tuple[int, tuple[Any, ...]], ...] = ((TAPE_AT, tape), (STORE_AT, store))
        for first, arrays in both:
            for k, array in enumerate(arrays):
                self._words[first + 2 * k : first + 2 * k + 2] = _at(array), len(array)
        self.address = _at(self._words)


def _at(array: npt.NDArray[Any]) -> int:
    return int(array.ctypes.data)


@cache
def _function(name: str) -> Any:
    return ctypes.CFUNCTYPE(_WORD, *_TYPES[name])(addresses(_IMAGES, ["loops"])["loops"][name])


def load() -> None:
    """Load what Python calls, and call what a cold start calls with nothing to do: the first call takes longer."""
    for name in _TYPES:
        _function(name)
    none, pairs = np.zeros(0, np.int64), np.zeros((0, INTEGERS), np.int64)
    tape = Tape(none, none, none, np.zeros((0, INTEGERS), np.int8), pairs, np.zeros((0, FLOATS), np.float32), none, none, none)
    context = Context(tape, Store(*(np.zeros(2, np.int64) for _ in Store._fields)), np.zeros(PLACES, np.int64))
    own = np.zeros(OWN_WORDS, np.int64)
    drive(context, own, none, 0, stealing=True, slower=0.0)
    await_all(context, own)
    advance(context, own, none, none, 0, 0, narrow=1, stealing=True, patience_ns=0)


def code_memory() -> Mapping[str, int]:
    """Addresses of what hands out memory for generated code: `map`, `protect`, `unmap`, and the word `region`."""
    return addresses(_IMAGES, ["code_memory"])["code_memory"]


def ensure(context: Context, own: Numbers, group: int) -> int:
    """Make a group's object, or wait for the thread that is at it."""
    return int(_function("ensure")(context.address, _at(own), group))


def fetch(context: Context, own: Numbers, marks: Numbers, record: Numbers, step: int) -> int:
    """The address of a step's weights from the cache."""
    return int(_function("fetch")(context.address, _at(own), _at(marks), len(marks), _at(record), len(record), step))


def create(context: Context, own: Numbers, marks: Numbers, record: Numbers, step: int) -> int:
    """Make what a step's calls need."""
    return int(_function("create")(context.address, _at(own), _at(marks), len(marks), _at(record), len(record), step))


def bind(context: Context, own: Numbers, marks: Numbers, record: Numbers, step: int, block: int, weights: int) -> int:
    """Write a step's calls at an address, its weights lying at another."""
    given = (context.address, _at(own), _at(marks), len(marks), _at(record), len(record))
    return int(_function("bind")(*given, step, block, weights))


def prepare(context: Context, own: Numbers, marks: Numbers, record: Numbers, step: int, block: int) -> int:
    """Everything before a step's execution, if its weights come from the cache and all is well."""
    given = (context.address, _at(own), _at(marks), len(marks), _at(record), len(record))
    return int(_function("prepare")(*given, step, block))


def take(context: Context, lane: int, *, stealing: bool) -> int:
    """The next step of a lane, or of another that is behind; -1 where there is none."""
    return int(_function("take")(context.address, lane, stealing))


def await_all(context: Context, own: Numbers) -> int:
    """Wait until all steps are prepared, or somebody has given up."""
    return int(_function("await_all")(context.address, _at(own)))


def publish(context: Context, step: int, block: int) -> int:
    """A step's calls are there, for `advance`."""
    return int(_function("publish")(context.address, step, block))


def drive(context: Context, own: Numbers, marks: Numbers, lane: int, *, stealing: bool, slower: float) -> int:
    """Prepare a lane's steps until there are none (`lanes.drive`)."""
    return int(_function("drive")(context.address, _at(own), _at(marks), len(marks), lane, stealing, slower))


def run_lane(places: Numbers, own: Numbers, items: Numbers, times: Numbers) -> int:
    """Run all steps of a lane, which are prepared and wait for no other lane (`partner.run_lane`)."""
    steps = len(items) // ITEM_WORDS
    return int(_function("run_lane")(*map(_at, (places, own, items, times)), steps, 0, steps, 0, 0))


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
    """Execute steps in order, and prepare the main lane's whenever one is not ready (`lanes.advance`)."""
    given = (context.address, _at(own), _at(marks), len(marks), _at(times), first, last)
    return int(_function("advance")(*given, narrow, stealing, patience_ns))


def mix(words: npt.NDArray[np.uint64], states: npt.NDArray[np.uint64]) -> None:
    """Mix words into `LANES` states (`mixing`)."""
    _function("mix")(_at(words), len(words), _at(states))
