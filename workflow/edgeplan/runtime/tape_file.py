"""Tapes as arrays, in memory and in a file."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.errors import FormatError
from edgeplan.runtime.linked import AGAIN, LinkedProgram, LinkedStep
from edgeplan.runtime.native.words import FLOATS, HANDLE, INTEGERS, Numbers, Tape
from edgeplan.runtime.signatures import DIMS_BYTES
from edgeplan.runtime.tape import FUNCTIONS, Compiled, Compiler, Layout, block_words, record
from edgeplan.support.files import read_whole, write_atomically

_MAGIC = 0x3245_5041_5450_4445  # "EDPTAPE2"
_WORD, _HEAD = 8, 9


@dataclass(frozen=True)
class TapeArrays:
    """A tape as arrays, without addresses.

    Attributes:
        program: whose.
        tape: functions by their number in `FUNCTIONS`.
        constants: bytes that operations point to.
        scratch, blocks: words that a session needs beside its handles.
    """

    program: LinkedProgram
    tape: Tape
    constants: npt.NDArray[np.uint8]
    scratch: int
    blocks: int

    @cached_property
    def layout(self) -> Layout:
        """Numbers of the program's objects."""
        return Layout.of(self.program)

    @cached_property
    def _compiled(self) -> Compiled:
        return Compiler(self.program).compiled()

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

    def record(self, step: LinkedStep) -> Numbers:
        """The record of a step that is not one of the program's, or is to be prepared once more."""
        return np.array(record(self._compiled, step), np.int64)


def tape_of(program: LinkedProgram) -> TapeArrays:
    """The tape of a program, made from its tables."""
    compiled = Compiler(program).compiled()
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
    for step in program.steps:
        starts.append(len(records))
        records += record(compiled, step, blocks)
        blocks += block_words(step)
    constants = np.frombuffer(bytes(compiled.constants) + bytes(DIMS_BYTES), np.uint8)
    rows = (np.array(compiled.starts, np.int64), np.array(records, np.int64), np.array(starts, np.int64))
    tape = Tape(kinds, functions, made, roles, values, floats, *rows)
    return TapeArrays(program, tape, constants, compiled.scratch, blocks)


def write_tape(arrays: TapeArrays, path: Path) -> str:
    """Write a tape atomically; returns its digest."""
    tape, constants = arrays.tape, arrays.constants
    words = (tape.kinds, tape.functions, tape.made, tape.values, tape.starts, tape.records, tape.record_starts)
    sizes = (*tape.values.shape, len(tape.starts), len(tape.records), len(tape.record_starts), len(constants))
    head = np.array([_MAGIC, *sizes, arrays.scratch, arrays.blocks], np.int64)
    content = b"".join(array.tobytes() for array in (head, *words, tape.floats, tape.roles, constants))
    write_atomically(path, lambda temporary: temporary.write_bytes(content))
    return hashlib.sha256(content).hexdigest()


def read_tape(path: Path, program: LinkedProgram) -> TapeArrays:
    """Read the tape of a program. Its digest is looked at and no more: a plan folder is trusted as a program is.

    Raises:
        FormatError: missing, of another format version, or changed since it was written.
    """
    try:
        content = read_whole(path)  # arrays over it can be handed to compiled code
    except OSError as error:
        raise FormatError(f"cannot read the program's calls: {error.strerror}", where=str(path), next_step=AGAIN) from error
    if hashlib.sha256(content).hexdigest() != program.tape_sha256:
        raise FormatError("the program's calls were changed after they were written", where=str(path), next_step=AGAIN)
    try:
        return _parsed(content, program)
    except ValueError as error:
        raise FormatError(f"the program's calls do not fit: {error}", where=str(path), next_step=AGAIN) from error


def _parsed(content: bytearray, program: LinkedProgram) -> TapeArrays:
    words = np.frombuffer(content, np.int64, len(content) // _WORD)
    magic, operations, width, starts, records, steps, constants, scratch, blocks = words[:_HEAD].tolist()
    floats = _WORD // 2 * operations * FLOATS
    lengths = (operations, operations, operations, operations * width, starts, records, steps)
    ends = list(accumulate(lengths, initial=_HEAD))
    whole = _WORD * ends[-1] + floats + operations * width + constants
    if magic != _MAGIC or min(*lengths, constants) < 0 or not 0 <= width <= INTEGERS or whole != len(content):
        raise ValueError("another format version")
    kinds, functions, made, values, groups, found, first = (words[a:b] for a, b in pairwise(ends))
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
    return TapeArrays(program, tape, stored, scratch, blocks)


def addresses(function: Callable[[str], Any], names: Sequence[str] = FUNCTIONS) -> Numbers:
    """Where the library's functions lie; 0 for one that it lacks."""

    def address(name: str) -> int:
        try:
            return ctypes.cast(function(name), ctypes.c_void_p).value or 0
        except AttributeError:
            return 0

    return np.array([address(name) for name in names], np.int64)
