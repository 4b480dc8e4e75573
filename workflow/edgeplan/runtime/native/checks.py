"""Whether tables that were read from a file can be worked off."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edgeplan.runtime.native.words import (
    ASK,
    BY_PYTHON,
    CALL,
    CLASSES,
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
    MISFIT_GROUPS,
    MISFIT_RECORDS,
    NO_WEIGHTS,
    NUMBER,
    RESULT,
    SCRATCH,
    TELL,
    WALK,
    WORD,
    Numbers,
    Tape,
    memories_at,
)
from edgeplan.support.compiled import compiled

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
def _groups_fit(starts: Numbers, groups: int, operations: int) -> bool:
    """Whether every group has operations, and all have one."""
    if len(starts) != groups + 1 or starts[0] != 0 or starts[groups] != operations:
        return False
    for group in range(groups):  # noqa: SIM110  for numba
        if starts[group] >= starts[group + 1]:
            return False
    return True


@compiled
def _class_of(handle: int, limits: Numbers) -> int:
    """What a handle is of, as a bit: attributes have two handles, primitives too."""
    if handle < limits[10]:
        return 1 << CLASSES
    if handle < limits[11]:
        return int(1 << (CLASSES + 1 + (handle - limits[10]) % 2))
    if handle < limits[12]:
        return int(1 << (CLASSES + 3 + (handle - limits[11]) % 2))
    return 1 << (CLASSES + 5)


@compiled
def _arguments_fit(tape: Tape, row: int, allowed: Numbers, limits: Numbers) -> bool:
    for i in range(tape.values.shape[1]):
        role, value, may = tape.roles[row, i], tape.values[row, i], allowed[i]
        if role == NUMBER and value == 0 and may & limits[9] != 0:
            continue
        if (may >> role) & 1 == 0:
            return False
        if (role == HANDLE or role == RESULT) and may & _class_of(value, limits) == 0:  # noqa: PLR1714, SIM109  for numba
            return False
    return True


@compiled
def _operations_fit(  # noqa: C901, PLR0911, PLR0912  one check after the other
    tape: Tape, allowed: npt.NDArray[np.int64], counts: Numbers, limits: Numbers
) -> int:
    """Whether every operation refers to what is there and gives its function what it takes: 0, or -1 - the first that does not.

    Every handle is made by one operation only, and what changes an object stands in the group that makes it, so that what
    was found to fit stays as it was.

    Args:
        tape: in groups (`_groups_fit`).
        allowed: for each function and argument a bit for every kind that it may be, one for every class of handles, and one if
            it may be no handle.
        counts: how many integer arguments each function takes.
        limits: numbers of handles, constants' bytes, scratch words, the memory's bytes, functions that return a status; the
            function that returns a handle, that which returns nothing, that which makes primitives, that which takes an array;
            the bit for no handle; the first handles that are of attributes, primitives, memories.
    """
    width, group = tape.values.shape[1], 0
    maker, writer = np.full(limits[0], -1), np.full(limits[2], -1)
    for row in range(len(tape.kinds)):
        while tape.starts[group + 1] <= row:
            group += 1
        kind, function, values, roles = tape.kinds[row], tape.functions[row], tape.values[row], tape.roles[row]
        for i in range(width):
            if not _argument_fits(roles[i], values[i], limits):
                return -1 - row
        if kind == CALL or kind == ASK:  # noqa: PLR1714, SIM109  for numba
            if not (0 <= function < limits[4] if kind == CALL else function == limits[5]):
                return -1 - row
            if not 0 < counts[function] <= width or not _arguments_fit(tape, row, allowed[function], limits):
                return -1 - row
            made = tape.made[row] if kind == ASK else values[0]
            if kind == ASK and not 0 <= made < limits[10]:
                return -1 - row
            if kind == CALL and roles[0] != RESULT:  # it changes its first argument
                if maker[made] != group:
                    return -1 - row
            elif maker[made] >= 0:
                return -1 - row
            else:
                maker[made] = group
            if function == limits[7] and (values[1] != made + 1 or maker[made + 1] != group):
                return -1 - row
            if function == limits[8]:
                if not 0 < values[3] <= limits[2] - values[5]:
                    return -1 - row
                for word in range(values[5], values[5] + values[3]):
                    if writer[word] != group:
                        return -1 - row
        elif width < 2:  # noqa: PLR2004  of the following the second is looked at
            return -1 - row
        elif kind == TELL:
            if function != limits[6] or roles[0] != NUMBER:
                return -1 - row
        elif kind == COPY:
            if roles[0] != NUMBER or not 0 <= values[0] < limits[2] or roles[1] != HANDLE or values[1] >= limits[10]:
                return -1 - row
            writer[values[0]] = group
        else:
            if kind != WALK or roles[0] != HANDLE or roles[1] != CONSTANT or maker[values[0]] != group:
                return -1 - row
            if _class_of(values[0], limits) != 1 << (CLASSES + 4):
                return -1 - row
    return 0


@compiled
def _records_fit(  # noqa: C901, PLR0911, PLR0912  one check after the other
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
        if source == COPIED and place > weights - size:  # a sum may go beyond what a word holds
            return False
        if (source == COPIED or source == MAPPED) and segment > cache - size:  # noqa: PLR1714, SIM109  for numba
            return False
        if records[at + HEAD_BLOCK] != block:
            return False
        at += HEAD
        if not 0 <= needed <= len(records) - at or not 0 <= slots <= (len(records) - at - needed) // 2:
            return False
        if not 0 <= calls <= len(records) or (source == NO_WEIGHTS and slots > 0):
            return False
        for i in range(at, at + needed):
            if records[i] < 0 or records[i] >= groups:
                return False
        at += needed
        for i in range(slots):
            descriptor, offset = records[at + 2 * i], records[at + 2 * i + 1]
            if descriptor < 0 or descriptor >= descriptors or not 0 <= offset < size:
                return False
        at += 2 * slots
        block += _memories_at(calls) + slots
        for _ in range(calls):
            if at + 2 > len(records):
                return False
            primitive, count = records[at], records[at + 1]
            at += 2
            if primitive < 0:  # what it touches, `tape_check` looks at
                if -1 - primitive >= limits[8] or not 0 < count < len(records) - at or records[at] % WORD != 0:
                    return False
                if not 0 <= records[at] < limits[9]:
                    return False
                for place in records[at + 1 : at + 1 + count]:
                    if place < -slots:
                        return False
                at += 1 + count
                block += count
                continue
            if primitive < primitives or primitive >= memories or (primitive - primitives) % 2 != 0:
                return False
            if not 0 <= count <= (len(records) - at) // 2:
                return False
            for i in range(count):
                memory = records[at + 2 * i + 1]
                if (memory >= 0 and (memory < memories or memory >= handles)) or memory < -slots:
                    return False
            at += 2 * count
            block += 2 * count
    return at == len(records) and block == words


@compiled
def tape_fits(tape: Tape, allowed: npt.NDArray[np.int64], counts: Numbers, limits: Numbers, sizes: Numbers) -> int:
    """Whether a tape can be worked off, by one call: the way from Python to compiled code takes as long as the checks.

    Args:
        tape: what was read.
        allowed: see `_operations_fit`.
        counts: likewise.
        limits: likewise.
        sizes: numbers of groups and descriptors, the first handles that are of primitives and of memories, number of handles;
            bytes of weights in memory and of the cache, words of blocks; numbers of compiled kernels, bytes of constants.

    Returns:
        0; `MISFIT_GROUPS`, `MISFIT_RECORDS`; or -1 - the first operation that does not fit.
    """
    if not _groups_fit(tape.starts, sizes[0], len(tape.kinds)):
        return MISFIT_GROUPS
    found = _operations_fit(tape, allowed, counts, limits)
    if found != 0:
        return int(found)
    return 0 if _records_fit(tape.records, tape.record_starts, sizes) else MISFIT_RECORDS
