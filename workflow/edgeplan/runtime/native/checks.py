"""Whether tables that were read from a file can be worked off."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.native.compiled import compiled
from edgeplan.runtime.native.words import (
    ASK,
    BY_PYTHON,
    CALL,
    CONSTANT,
    COPIED,
    COPY,
    ENGINE,
    HANDLE,
    HEAD,
    HEAD_BLOCK,
    HEAD_BYTES,
    HEAD_CALLS,
    HEAD_GROUPS,
    HEAD_PLACE,
    HEAD_SEGMENT,
    HEAD_SLOTS,
    HEAD_SOURCE,
    MAPPED,
    MEMORY,
    NUMBER,
    RESULT,
    SCRATCH,
    TELL,
    WALK,
    Numbers,
    memories_at,
)

_memories_at = compiled(memories_at)


@compiled
def _argument_fits(role: int, value: int, limits: Numbers) -> bool:
    if role == HANDLE or role == RESULT:  # noqa: PLR1714, SIM109  for numba
        return bool(0 <= value < limits[0])
    if role == CONSTANT:
        return bool(0 <= value < limits[1])
    if role == SCRATCH:
        return bool(0 <= value < limits[2])
    if role == MEMORY:
        return bool(0 <= value < limits[3])
    return role == NUMBER or role == ENGINE  # noqa: PLR1714


@compiled
def groups_fit(starts: Numbers, groups: int, operations: int) -> bool:
    """Whether every group has operations, and all have one."""
    if len(starts) != groups + 1 or starts[0] != 0 or starts[groups] != operations:
        return False
    for group in range(groups):  # noqa: SIM110  for numba
        if starts[group] >= starts[group + 1]:
            return False
    return True


@compiled
def operations_fit(  # noqa: C901, PLR0911, PLR0912  one check after the other
    kinds: Numbers,
    functions: Numbers,
    made: Numbers,
    roles: npt.NDArray[np.int8],
    values: Numbers,
    allowed: Numbers,
    limits: Numbers,
) -> int:
    """Whether every operation refers to what is there and gives its function what it takes: 0, or -1 - the first that does not.

    Args:
        kinds: see `Tape`.
        functions: by number.
        made: see `Tape`.
        roles: see `Tape`.
        values: see `Tape`.
        allowed: for each function and argument a bit for every kind that it may be, and one if it may be no handle.
        limits: numbers of handles, constants' bytes, scratch words, the memory's bytes, functions that return a status; the
            function that returns a handle; that which returns nothing; the bit for no handle.
    """
    for row in range(len(kinds)):
        kind, function = kinds[row], functions[row]
        for i in range(values.shape[1]):
            if not _argument_fits(roles[row, i], values[row, i], limits):
                return -1 - row
        if kind == CALL or kind == ASK:  # noqa: PLR1714, SIM109  for numba
            if not (0 <= function < limits[4] if kind == CALL else function == limits[5]):
                return -1 - row
            if kind == ASK and not 0 <= made[row] < limits[0]:
                return -1 - row
            for i in range(values.shape[1]):
                none = roles[row, i] == NUMBER and values[row, i] == 0 and allowed[function, i] & limits[7] != 0
                if not none and (allowed[function, i] >> roles[row, i]) & 1 == 0:
                    return -1 - row
        elif kind == TELL:
            if function != limits[6] or roles[row, 0] != NUMBER:
                return -1 - row
        elif kind == COPY:
            handle = roles[row, 1] == HANDLE or roles[row, 1] == ENGINE or values[row, 1] == 0
            if roles[row, 0] != NUMBER or not 0 <= values[row, 0] < limits[2] or not handle:
                return -1 - row
        elif kind != WALK or roles[row, 0] != HANDLE or roles[row, 1] != CONSTANT:
            return -1 - row
    return 0


@compiled
def records_fit(  # noqa: C901, PLR0911, PLR0912  one check after the other
    records: Numbers, starts: Numbers, limits: Numbers
) -> bool:
    """Whether every record is whole, refers to what is there, and has room for its calls and weights."""
    groups, descriptors, primitives, memories, handles = limits[0], limits[1], limits[2], limits[3], limits[4]
    weights, cache, words = limits[5], limits[6], limits[7]
    at, block = 0, 0
    for k in range(len(starts)):
        if starts[k] != at or at + HEAD > len(records):
            return False
        source, segment, size = (
            records[at + HEAD_SOURCE],
            records[at + HEAD_SEGMENT],
            records[at + HEAD_BYTES],
        )
        place, needed = records[at + HEAD_PLACE], records[at + HEAD_GROUPS]
        slots, calls = records[at + HEAD_SLOTS], records[at + HEAD_CALLS]
        if source < 0 or source > BY_PYTHON or segment < 0 or size < 0 or place < 0:
            return False
        if source == COPIED and place + size > weights:
            return False
        if (source == COPIED or source == MAPPED) and segment + size > cache:  # noqa: PLR1714, SIM109  for numba
            return False
        if needed < 0 or slots < 0 or calls < 0 or records[at + HEAD_BLOCK] != block:
            return False
        at += HEAD
        if at + needed + 2 * slots > len(records):
            return False
        for i in range(at, at + needed):
            if records[i] < 0 or records[i] >= groups:
                return False
        at += needed
        for i in range(slots):
            descriptor, offset = records[at + 2 * i], records[at + 2 * i + 1]
            if descriptor < 0 or descriptor >= descriptors or offset < 0 or offset > size:
                return False
        at += 2 * slots
        block += _memories_at(calls) + slots
        for _ in range(calls):
            if at + 2 > len(records):
                return False
            primitive, count = records[at], records[at + 1]
            at += 2
            if primitive < primitives or primitive >= memories or count < 0 or at + 2 * count > len(records):
                return False
            for i in range(count):
                memory = records[at + 2 * i + 1]
                if (memory >= 0 and (memory < memories or memory >= handles)) or memory < -slots:
                    return False
            at += 2 * count
            block += 2 * count
    return at == len(records) and block == words
