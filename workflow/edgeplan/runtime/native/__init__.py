"""A cold start does these things for every step in compiled code: make the library's objects, fetch weights, execute.

In Python, a quarter of a preparation's time goes into the interpreter, and two threads that prepare hand it to each other at
every C call, which takes as long again. Compiled code needs it for neither. It interprets a tape (`tape.py`), decides nothing.

Here are the functions that Python calls, while other threads have the interpreter. They take a context (`Context`) and memory
of the calling thread (`own`, rows `OWN_...`). Whatever goes wrong is returned as a code, and Python does that step again in its
own words. `build` compiles the modules beside it into one image, which is mapped here.

Modules:

* `build`: The compiled loops as functions that C calls: what Python hands over are words and
  addresses of arrays.
* `code_slots`: Functions of the C types of `mmap`, `mprotect` and `munmap` that hand out slots of a
  region, as LLVM assembly.
* `intrinsics`: These intrinsics give numba calls by address, and words that other threads see in
  order.
* `lanes`: The lanes of a cold start: who prepares what next, and the execution that follows.
* `making`: The library's objects, made by the operations of a tape.
* `mixing`: Words mixed into a few, at the speed of memory: what `runtime.memory.checksum` is made
  from.
* `partner`: The CPU's lane of a pair, compiled: wait for the other processor's counter, run a
  sub-step, count it.
* `stages`: The stages of a step: its objects made, its weights fetched, its calls written down and
  executed.
* `waiting`: The clock, and how a thread waits for another one.
* `words`: Compiled code and Python agree on these kinds, rows of tables, and arrays that pass
  between them.
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
    "execute": (_WORD,) * 2,
    "advance": (_WORD,) * 10,
    "mix": (_WORD,) * 3,
    "run_lane": (_WORD,) * 10,
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


def execute(own: int, block: int) -> int:
    """Make the calls of a step that was prepared; `own` is given by its address."""
    return int(_function("execute")(own, block))


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


def run_lane(
    places: Numbers,
    own: Numbers,
    shared: Numbers,
    tables: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]],
    last: int,
    limit_ns: int,
) -> int:
    """Run the CPU's lane of a pair: items, calls and times are rows of tables (`partner.run_lane`)."""
    items, calls, times = tables
    given = (_at(places), _at(own), _at(shared), _at(items), _at(calls), _at(times), len(items), len(calls))
    return int(_function("run_lane")(*given, last, limit_ns))
