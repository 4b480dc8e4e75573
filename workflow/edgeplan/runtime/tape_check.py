"""Whether a tape that was read from a file can be worked off: a wrong one would let the library read anywhere."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgeplan.runtime import native
from edgeplan.runtime.native import words
from edgeplan.runtime.native.words import INTEGERS
from edgeplan.runtime.signatures import DIMS_BYTES, OTHER, STATUS, Dims
from edgeplan.runtime.tape import FUNCTIONS, NUMBER_OF, THREADS

if TYPE_CHECKING:
    from edgeplan.runtime.tape_file import TapeArrays

_MOST = 1 << 24  # words
_NONE = 1 << 32
_HANDLES, _FLOATS, _INTEGERS = (ctypes.POINTER(kind) for kind in (ctypes.c_void_p, ctypes.c_float, ctypes.c_int))


def _kinds_of(declared: Any, position: int) -> int:
    """The kinds that an argument of a declared type may be, as bits; `_NONE` if it may be no handle."""
    if declared is ctypes.c_void_p:
        return 1 << words.HANDLE | 1 << words.ENGINE | 1 << words.MEMORY | _NONE
    if declared is _HANDLES:  # the type of results too
        return 1 << words.SCRATCH if position else 1 << words.RESULT
    if declared is _FLOATS:
        return 1 << words.CONSTANT | _NONE
    if declared is Dims or declared is _INTEGERS:
        return 1 << words.CONSTANT
    return 1 << words.NUMBER


def _allowed() -> npt.NDArray[np.int64]:
    """The kinds that every argument of every function may be."""
    rows = np.full((len(FUNCTIONS), INTEGERS), 1 << words.NUMBER, np.int64)
    for name, types in {**STATUS, **{name: types for name, (_, types) in OTHER.items()}}.items():
        integers = [declared for declared in types if declared is not ctypes.c_float]
        rows[NUMBER_OF[name], : len(integers)] = [_kinds_of(*pair) for pair in zip(integers, range(INTEGERS), strict=False)]
    return rows


_ALLOWED = _allowed()
_STATUS_COUNT = len(STATUS)


def check(arrays: TapeArrays) -> None:
    """Every argument is of a kind that its function takes there, and every reference leads to something.

    Raises:
        ValueError: what is wrong.
    """
    tape, constants = arrays.tape, arrays.constants
    layout, count = arrays.layout, len(tape.kinds)
    _require("groups", native.groups_fit(tape.starts, layout.groups, count))
    _require("constants", constants[-DIMS_BYTES:].tobytes() == bytes(DIMS_BYTES))
    asked, threads = NUMBER_OF["dnnl_primitive_desc_query_md"], NUMBER_OF[THREADS]
    limits = (layout.handles, len(constants) - DIMS_BYTES, arrays.scratch, arrays.program.arena_bytes)
    given = np.array([*limits, _STATUS_COUNT, asked, threads, _NONE], np.int64)
    found = native.operations_fit(tape.kinds, tape.functions, tape.made, tape.roles, tape.values, _ALLOWED, given)
    _require(f"operation {-1 - found}", found >= 0)
    _check_records(arrays)


def _check_records(arrays: TapeArrays) -> None:
    tape, layout, program = arrays.tape, arrays.layout, arrays.program
    sized = 0 <= arrays.scratch < _MOST and 0 <= arrays.blocks < _MOST
    _require("records", sized and len(tape.record_starts) == program.step_count)
    limits = (layout.groups, layout.descriptors, layout.primitive(0)[1], layout.memory(0)[1], layout.handles)
    sizes = (program.weights_bytes, program.cache_bytes, arrays.blocks)
    _require("records", native.records_fit(tape.records, tape.record_starts, np.array([*limits, *sizes], np.int64)))


def _require(what: str, holds: bool) -> None:
    if not holds:
        raise ValueError(what)
