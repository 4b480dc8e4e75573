"""Whether a tape that was read from a file can be worked off: a wrong one would let the library read anywhere."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgeplan.graph.blocks import AT_OPERANDS, block_length, span_bytes
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
#: What a handle is of, as bits: functions take any pointer, and read another object as if it were theirs.
_DESCRIPTOR, _ATTRIBUTE, _POSTS, _PRIMITIVE, _DESCRIBED, _MEMORY = (1 << words.CLASSES + k for k in range(6))
#: For each function that a tape may call the handles among its arguments: their classes; 0 for an engine, -1 for an address in
#: the session's memory. Those that describe primitives have rules of their own.
_TAKEN = MappingProxyType(
    {
        "dnnl_memory_desc_create_with_tag": (_DESCRIPTOR,),
        "dnnl_memory_desc_create_with_strides": (_DESCRIPTOR,),
        "dnnl_memory_desc_create_submemory": (_DESCRIPTOR, _DESCRIPTOR),
        "dnnl_memory_desc_permute_axes": (_DESCRIPTOR, _DESCRIPTOR),
        "dnnl_memory_create": (_MEMORY, _DESCRIPTOR, 0, -1),
        "dnnl_primitive_attr_create": (_ATTRIBUTE,),
        "dnnl_primitive_attr_set_scratchpad_mode": (_ATTRIBUTE,),
        "dnnl_primitive_attr_set_post_ops": (_ATTRIBUTE, _POSTS),
        "dnnl_post_ops_create": (_POSTS,),
        "dnnl_post_ops_append_eltwise": (_POSTS,),
        "dnnl_post_ops_append_sum": (_POSTS,),
        "dnnl_post_ops_append_binary": (_POSTS, _DESCRIPTOR),
        "dnnl_primitive_create": (_PRIMITIVE, _DESCRIBED),
        "dnnl_primitive_desc_query_md": (_DESCRIBED,),
    }
)
_DESCRIBES = "_primitive_desc_create"
_REORDER, _CONCAT = f"dnnl_reorder{_DESCRIBES}", f"dnnl_concat{_DESCRIBES}"


def _kinds_of(declared: Any, position: int, taken: Iterator[int]) -> int:
    """The kinds that an argument of a declared type may be, as bits; `_NONE` if it may be no handle."""
    if declared is ctypes.c_void_p:
        what = next(taken)
        if what <= 0:
            return 1 << (words.MEMORY if what else words.ENGINE)
        return 1 << words.HANDLE | what
    if declared is _HANDLES:  # the type of results too
        return 1 << words.SCRATCH if position else 1 << words.RESULT | next(taken)
    if declared is _FLOATS:
        return 1 << words.CONSTANT | _NONE
    if declared is Dims or declared is _INTEGERS:
        return 1 << words.CONSTANT
    return 1 << words.NUMBER


def _taken(name: str, types: Sequence[Any]) -> tuple[int, ...]:
    if not name.endswith(_DESCRIBES):
        return _TAKEN[name]
    descriptor, pointers = _DESCRIPTOR | _NONE, types.count(ctypes.c_void_p)
    if name == _REORDER:
        return _DESCRIBED, _DESCRIPTOR, 0, _DESCRIPTOR, 0, _ATTRIBUTE
    return _DESCRIBED, 0, *[descriptor] * (pointers - 2), _ATTRIBUTE


def _allowed() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The kinds that every argument of every function may be, none of those that no tape calls; and how many each takes."""
    rows, counts = np.zeros((len(FUNCTIONS), INTEGERS), np.int64), np.zeros(len(FUNCTIONS), np.int64)
    for name, types in {**STATUS, **{name: types for name, (_, types) in OTHER.items()}}.items():
        if name in _TAKEN or name.endswith(_DESCRIBES):
            taken, row = iter(_taken(name, types)), NUMBER_OF[name]
            integers = [declared for declared in types if declared is not ctypes.c_float]
            rows[row] = 1 << words.NUMBER  # whatever stands behind them is not taken
            rows[row, : len(integers)] = [_kinds_of(kind, position, taken) for position, kind in enumerate(integers)]
            counts[row] = len(integers)
    return rows, counts


_ALLOWED, _COUNTS = _allowed()
_STATUS_COUNT = len(STATUS)
_FUNCTIONS = tuple(NUMBER_OF[name] for name in ("dnnl_primitive_desc_query_md", THREADS, "dnnl_primitive_create", _CONCAT))
_NO_DIMS = bytes(DIMS_BYTES)


def check(arrays: TapeArrays) -> None:
    """Every argument is of a kind that its function takes there, and every reference leads to an object of the right class.

    What sizes objects have shows when they are made (`native.making`) and bound (`native.stages`).

    Raises:
        ValueError: what is wrong.
    """
    tape, constants, layout, program = arrays.tape, arrays.constants, arrays.layout, arrays.program
    _require("constants", constants[-DIMS_BYTES:].tobytes() == _NO_DIMS)
    _require("scratch", 0 <= arrays.scratch < _MOST)
    _require("blocks", 0 <= arrays.blocks < _MOST)
    _require("records", len(tape.record_starts) == program.step_count)
    handles, (_, primitives), (_, memories) = layout.handles, layout.primitive(0), layout.memory(0)
    limits = (handles, len(constants) - DIMS_BYTES, arrays.scratch, program.arena_bytes, _STATUS_COUNT, *_FUNCTIONS, _NONE)
    classes = (layout.descriptors, primitives, memories)
    kernels = (len(program.kernels), len(constants) - DIMS_BYTES)
    sizes = (layout.groups, *classes, handles, program.weights_bytes, program.cache_bytes, arrays.blocks, *kernels)
    given = np.array([*limits, *classes], np.int64)
    found = native.tape_fits(tape, _ALLOWED, _COUNTS, given, np.array(sizes, np.int64))
    _require("groups", found != words.MISFIT_GROUPS)
    _require("records", found != words.MISFIT_RECORDS)
    _require(f"operation {-1 - found}", found == 0)
    if program.kernels:
        _check_kernels(arrays)


def _check_kernels(arrays: TapeArrays) -> None:
    """What compiled kernels touch lies in the arena and among the weights of their step, in records that are whole."""
    constants = arrays.constants[:-DIMS_BYTES].view(np.int64).tolist()
    records, room = arrays.tape.records.tolist(), arrays.program.arena_bytes
    for start in arrays.tape.record_starts.tolist():
        groups, slots, calls = (records[start + row] for row in (words.HEAD_GROUPS, words.HEAD_SLOTS, words.HEAD_CALLS))
        first = at = start + words.HEAD + groups
        at += 2 * slots
        for _ in range(calls):
            primitive, count = records[at], records[at + 1]
            at += 2
            if primitive >= 0:
                at += 2 * count
                continue
            given = constants[records[at] // words.WORD :]
            given = given[: block_length(given)]
            _require("kernels", len(given) > AT_OPERANDS and given[AT_OPERANDS] == count)
            for operand, place in enumerate(records[at + 1 : at + 1 + count]):
                begin, end = (
                    (place, room) if place >= 0 else (records[first - 2 * place - 1], records[start + words.HEAD_BYTES])
                )
                _require("kernels", begin + span_bytes(given, operand) <= end)
            at += 1 + count


def _require(what: str, holds: bool) -> None:
    if not holds:
        raise ValueError(what)
