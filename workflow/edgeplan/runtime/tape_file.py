"""Tapes as arrays, in memory and in a file."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.errors import FormatError
from edgeplan.runtime.folder import PlanFolder
from edgeplan.runtime.linked import AGAIN, Linked, LinkedProgram, LinkedStep
from edgeplan.runtime.native.words import CONSTANT, FLOATS, HANDLE, INTEGERS, WALK, Numbers, Tape
from edgeplan.runtime.signatures import DIMS_BYTES
from edgeplan.runtime.tape import FUNCTIONS, Compiled, Compiler, Layout, block_words, record
from edgeplan.support.files import write_atomically

TAPE_NAME = "program.tape"
_MAGIC = 0x3345_5041_5450_4445  # "EDPTAPE3"
_WORD, _HEAD = 8, 9
_ABSENT = -1  # of later steps: those that stay as they are


@dataclass(frozen=True)
class TapeArrays:
    """A tape as arrays, without addresses.

    Attributes:
        program: whose.
        tape: functions by their number in `FUNCTIONS`.
        constants: bytes that operations point to.
        scratch, blocks: words that a session needs beside its handles.
        later: of each step the first word of its record for later runs, which lie behind all others; -1 without one.
        compiled: what steps that are on no tape are written from; None where it was read.
    """

    program: LinkedProgram
    tape: Tape
    constants: npt.NDArray[np.uint8]
    scratch: int
    blocks: int
    later: Numbers
    compiled: Compiled | None = None

    @cached_property
    def layout(self) -> Layout:
        """Numbers of the program's objects."""
        return Layout.of(self.program)

    def needs(self, group: int) -> tuple[int, ...]:
        """The groups that one is made from, in the order of need.

        By the tape itself: to compile the tables for that took 3 to 5 ms of each start that makes weights from raw ones.
        """
        found: dict[int, None] = {}
        self._add_needs(group, found, set())
        return tuple(found)

    def _add_needs(self, group: int, found: dict[int, None], met: set[int]) -> None:
        tape = self.tape
        own = slice(int(tape.starts[group]), int(tape.starts[group + 1]))
        met.add(group)  # tapes that refer to themselves fail when their objects are made
        for handle in tape.values[own][tape.roles[own] == HANDLE].tolist():
            other = self.layout.group_of(handle)
            if other not in met:
                self._add_needs(other, found, met)
                found[other] = None

    def record(self, index: int, step: LinkedStep) -> Numbers:
        """The record of a step as later runs execute it, or of one that is on no tape."""
        if self.compiled is not None:
            return np.array(record(self.compiled, step), np.int64)
        following = self.later[index + 1 :]
        ends = following[following != _ABSENT][:1]
        return self.tape.records[self.later[index] : ends[0] if len(ends) else None]

    def implementation(self, group: int) -> str:
        """The implementation that a group asks the library for; "" for one that makes no primitive."""
        for operation in range(int(self.tape.starts[group]), int(self.tape.starts[group + 1])):
            if self.tape.kinds[operation] == WALK:
                at = int(self.tape.values[operation][self.tape.roles[operation] == CONSTANT][0])
                return self.constants[at:].tobytes().split(b"\0", 1)[0].decode()
        return ""


def tape_of(linked: Linked) -> TapeArrays:
    """The tape of a program, made from its tables."""
    compiled = Compiler(linked).compiled()
    count = len(compiled.operations)
    kinds, functions, made = (np.zeros(count, np.int64) for _ in range(3))
    width = max((len(integers) for _, _, _, integers, _ in compiled.operations), default=0)
    roles, values = np.zeros((count, width), np.int8), np.zeros((count, width), np.int64)
    floats = np.zeros((count, FLOATS), np.float32)
    for row, (kind, function, handle, integers, numbers) in enumerate(compiled.operations):
        kinds[row], functions[row], made[row] = kind, function, handle
        if integers:
            roles[row, : len(integers)], values[row, : len(integers)] = zip(*integers, strict=True)
        floats[row, : len(numbers)] = numbers
    records: list[int] = []
    starts: list[int] = []
    blocks = 0
    for step in linked.reserve.steps:
        starts.append(len(records))
        records += record(compiled, step, blocks)
        blocks += block_words(records[starts[-1] :])
    later = [_ABSENT] * len(starts)
    for k, again in enumerate(linked.reserve.later):
        if again is not None:
            later[k] = len(records)
            records += record(compiled, again)
    constants = np.frombuffer(bytes(compiled.constants) + bytes(DIMS_BYTES), np.uint8)
    rows = (np.array(compiled.starts, np.int64), np.array(records, np.int64), np.array(starts, np.int64))
    tape = Tape(kinds, functions, made, roles, values, floats, *rows)
    return TapeArrays(linked.program, tape, constants, compiled.scratch, blocks, np.array(later, np.int64), compiled)


def write_tape(arrays: TapeArrays, path: Path) -> None:
    """Write a tape to its file."""
    tape, constants = arrays.tape, arrays.constants
    words = (tape.kinds, tape.functions, tape.made, tape.values, tape.starts, tape.records, tape.record_starts, arrays.later)
    sizes = (*tape.values.shape, len(tape.starts), len(tape.records), len(tape.record_starts), len(constants))
    head = np.array([_MAGIC, *sizes, arrays.scratch, arrays.blocks], np.int64)
    content = b"".join(array.tobytes() for array in (head, *words, tape.floats, tape.roles, constants))
    write_atomically(path, lambda temporary: temporary.write_bytes(content))


def read_tape(plan: PlanFolder, program: LinkedProgram) -> TapeArrays:
    """Read the tape of a program. Its digest is looked at and no more: a plan folder is trusted as a program is."""
    try:
        return _parsed(plan.content(TAPE_NAME), program)
    except ValueError as error:
        what = f"the program's calls do not fit: {error}"
        raise FormatError(what, where=str(plan.path / TAPE_NAME), next_step=AGAIN) from error


def _parsed(content: bytes, program: LinkedProgram) -> TapeArrays:
    words = np.frombuffer(content, np.int64, len(content) // _WORD)
    magic, operations, width, starts, records, steps, constants, scratch, blocks = words[:_HEAD].tolist()
    floats = _WORD // 2 * operations * FLOATS
    lengths = (operations, operations, operations, operations * width, starts, records, steps, steps)
    ends = list(accumulate(lengths, initial=_HEAD))
    whole = _WORD * ends[-1] + floats + operations * width + constants
    if magic != _MAGIC or min(*lengths, constants) < 0 or not 0 <= width <= INTEGERS or whole != len(content):
        raise ValueError("another format version")
    kinds, functions, made, values, groups, found, first, later = (words[a:b] for a, b in pairwise(ends))
    rest = np.frombuffer(content, np.uint8, len(content) - _WORD * ends[-1], _WORD * ends[-1])
    tape = Tape(
        kinds,
        functions,
        made,
        rest[floats : floats + operations * width].view(np.int8).reshape(operations, width),
        values.reshape(operations, width),
        rest[:floats].view(np.float32).reshape(operations, FLOATS),
        groups,
        found,
        first,
    )
    stored = rest[floats + operations * width :]
    if program.kernels:
        stored = stored.copy()  # kernels read words there
    return TapeArrays(program, tape, stored, scratch, blocks, later)


def addresses(function: Callable[[str], Any], names: Sequence[str] = FUNCTIONS) -> Numbers:
    """Where the library's functions lie; 0 for one that it lacks."""

    def address(name: str) -> int:
        try:
            return ctypes.cast(function(name), ctypes.c_void_p).value or 0
        except AttributeError:
            return 0

    return np.array([address(name) for name in names], np.int64)
