"""What a cold start does for every step, compiled: make the library's objects, fetch weights, execute.

In Python, a quarter of a preparation's time goes into the interpreter, and two threads that prepare hand it to each other at
every C call, which takes as long again. Compiled code needs it for neither. It interprets a tape (`tape.py`), decides nothing.

All functions take the same arguments, laid out in `words.py`: the tape (`Tape`, constant), the session's objects (`Store`),
addresses (`places`, rows `AT_...`), and memory of the calling thread (`own`, rows `OWN_...`). Whatever goes wrong is returned
as a code, and Python does that step again in its own words.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import types

from edgeplan.runtime.native.checks import tape_fits
from edgeplan.runtime.native.lanes import advance, await_all, drive, publish, take
from edgeplan.runtime.native.making import ensure
from edgeplan.runtime.native.mixing import LANES, mix
from edgeplan.runtime.native.stages import bind, create, execute, fetch, prepare
from edgeplan.runtime.native.words import FLOATS, INTEGERS, OWN_WORDS, PLACES, Store, Tape

__all__ = [
    "LANES",
    "advance",
    "await_all",
    "bind",
    "create",
    "drive",
    "ensure",
    "execute",
    "fetch",
    "load",
    "mix",
    "prepare",
    "publish",
    "take",
    "tape_fits",
]


@cache
def load() -> None:
    """Compile or load what Python calls, for the types that it is called with, so that nothing that is timed waits for it."""
    word, words = types.int64, types.int64[::1]
    i1, f1 = types.int8[:, ::1], types.float32[:, ::1]
    tape = types.NamedTuple(  # type: ignore[no-untyped-call]
        (words, words, words, i1, types.int64[:, ::1], f1, words, words, words), Tape
    )
    store = types.NamedUniTuple(words, len(Store._fields), Store)  # type: ignore[no-untyped-call]
    thread = (words, words)
    for function, given in (
        (ensure, (tape, store, *thread, word)),
        (fetch, (*thread, words, words, word, word)),
        (create, (tape, store, *thread, words, words, word, word)),
        (bind, (store, *thread, words, words, word, word, word, word)),
        (prepare, (tape, store, *thread, words, words, word, word, word)),
        (take, (store, word, types.boolean)),
        (await_all, (tape, store, words, words)),
        (publish, (store, word, word)),
        (drive, (tape, store, *thread, words, word, types.boolean, types.float64)),
        (execute, (words, word)),
        (mix, (types.uint64[::1], types.uint64[::1])),
        (tape_fits, (tape, types.int64[:, ::1], words, words, words)),
        (advance, (tape, store, *thread, words, words, word, word, word, types.boolean, word)),
    ):
        dispatcher: Any = function
        dispatcher.compile(given)
    _rehearse()


def _rehearse() -> None:
    """Call what a cold start calls, with nothing to do: the first call of a compiled function takes longer."""
    none, pairs = np.zeros(0, np.int64), np.zeros((0, INTEGERS), np.int64)
    tape = Tape(none, none, none, np.zeros((0, INTEGERS), np.int8), pairs, np.zeros((0, FLOATS), np.float32), none, none, none)
    store = Store(*(np.zeros(2, np.int64) for _ in Store._fields))
    places, own = np.zeros(PLACES, np.int64), np.zeros(OWN_WORDS, np.int64)
    tape_fits(tape, pairs, none, np.zeros(13, np.int64), np.zeros(10, np.int64))
    drive(tape, store, places, own, none, 0, stealing=True, slower=0.0)
    await_all(tape, store, places, own)
    advance(tape, store, places, own, none, none, 0, 0, 1, True, 0)  # noqa: FBT003
