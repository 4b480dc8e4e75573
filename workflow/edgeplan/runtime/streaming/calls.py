"""The calls of a program bound to memory: kernels made once, and of each step the addresses of its operands alone.

The memories that a primitive is given belong to its kernel: before each call the loop points them to the operands of the step.
So another schedule changes a table of addresses, and nothing of the library's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from itertools import pairwise
from time import perf_counter_ns
from typing import Any

from edgeplan.errors import FormatError
from edgeplan.runtime import kernels
from edgeplan.runtime.creation import ROWS_KERNEL, Call, Created, Creator, KernelCall
from edgeplan.runtime.dnnl import Dnnl, Handle
from edgeplan.runtime.native import words
from edgeplan.runtime.native.calls import Loop, Words, array, function_address
from edgeplan.runtime.signatures import ExecArg
from edgeplan.runtime.streaming.library_pages import LibraryPages
from edgeplan.runtime.streaming.program import AGAIN, ELSEWHERE, NOTHING, WEIGHTS, StreamProgram
from edgeplan.runtime.streaming.reader import WeightsFile
from edgeplan.runtime.streaming.rows import Rows

_FLOAT_BYTES = 4
_DROP_EVERY = 8  # kernels made


class BoundCalls:
    """The calls of a program's steps, made and run by one thread.

    Args:
        dnnl: the library.
        program: its kernels are made here.
        stream: of the thread.
        steps: those that are run here, in order; None: all. Others run elsewhere.
        file: of the weights, for steps that read rows of it.
        library: its pages, of which those that only the making of kernels needs are dropped again.

    Attributes:
        columns: of the program.
        loop: over the steps that are run here.
        rows: the steps that read rows of the file; Python runs them.

    Raises:
        FormatError: operands are not those of the kernels.
    """

    def __init__(
        self,
        dnnl: Dnnl,
        program: StreamProgram,
        stream: Handle,
        steps: Sequence[int] | None = None,
        file: WeightsFile | None = None,
        library: LibraryPages | None = None,
    ) -> None:
        self._dnnl, self._program, self._stream = dnnl, program, stream
        self._keep: list[object] = []  # what the words of calls point to
        self.columns = program.columns
        kernel_of = self.columns.kernel_of
        self._steps = range(len(kernel_of)) if steps is None else steps
        made = _made(dnnl, program, library)
        rows: dict[int, Rows] = {}
        found: list[tuple[int, int, int, int]] = []
        calls: dict[int, tuple[int, int, int]] = {NOTHING: (0, 0, 0)}  # of a kernel the first, the end and their operands
        for number, created in made.items():
            first = len(found)
            for call in created.calls:
                if isinstance(call, KernelCall) and call.kernel.startswith(ROWS_KERNEL):
                    assert file is not None  # noqa: S101  programs without a file hold no such steps
                    rows[number] = Rows(file, call, program.weights_bytes, program.model)
                found.append(self._words(call))
            calls[number] = first, len(found), sum(call[words.COUNT] for call in found[first:])
        table = array(len(found) * words.CALL_WORDS)
        table[:] = [word for call in found for word in call]
        self._operands, self._keep = array(len(self.columns.buffer_of)), [*self._keep, table]
        self._items = self._bound(calls, ctypes.addressof(table))
        self.loop = Loop(dnnl.info.path, stream.value, self._items)
        self.rows = {k: rows[kernel_of[k]] for k in self._steps if kernel_of[k] in rows}

    def _words(self, call: Call | KernelCall) -> tuple[int, int, int, int]:
        """A call as the loop takes it; see `words.FUNCTION`."""
        if isinstance(call, KernelCall):
            if call.kernel.startswith(ROWS_KERNEL):
                return 0, 0, len(call.places), 0
            block = (ctypes.c_int64 * len(call.block))(*call.block)
            self._keep.append(block)
            return kernels.load([call.kernel])[0], ctypes.addressof(block), len(call.places), 0
        assert call.primitive is not None  # noqa: S101  created to be run
        call.primitive.forget()
        memories = [self._dnnl.memory(argument.descriptor, 0) for argument in call.arguments]
        given = [ExecArg(a.number, memory.value) for a, memory in zip(call.arguments, memories, strict=True)]
        arguments = (ExecArg * len(given))(*given)
        self._keep += [call.primitive, memories, arguments]
        execute = function_address(self._dnnl.execute)
        return execute, call.primitive.value, len(given), ctypes.addressof(arguments)

    def _bound(self, calls: Mapping[int, tuple[int, int, int]], table: int) -> Words:
        """The steps as the loop takes them: where their kernel's calls lie, and where their operands will."""
        program, begin = self._program, ctypes.addressof(self._operands)
        firsts, kernel_of = (*self.columns.first_operand, len(self.columns.buffer_of)), self.columns.kernel_of
        items = array(len(self._steps) * words.ITEM_WORDS)
        for at, k in enumerate(self._steps):
            first, end, operands = calls.get(kernel_of[k], (0, 0, -1))
            if operands != firsts[k + 1] - firsts[k]:
                what = f"the program does not fit: step {program.step_names[k]!r}"
                raise FormatError(what, where=program.model, next_step=AGAIN)
            where = [table + words.WORD * words.CALL_WORDS * number for number in (first, end)]
            items[words.ITEM_WORDS * at : words.ITEM_WORDS * (at + 1)] = [0, *where, begin + words.WORD * firsts[k]]
        return items

    def place(self, buffers: Sequence[int], weights: Sequence[int]) -> None:
        """Give all operands their addresses.

        Args:
            buffers: address of each buffer.
            weights: address of each step's weights.
        """
        operands, buffer_of, offset_of = self._operands, self.columns.buffer_of, self.columns.offset_of
        firsts = (*self.columns.first_operand, len(operands))
        for step, (first, end) in enumerate(pairwise(firsts)):
            for k in range(first, end):
                buffer = buffer_of[k]
                operands[k] = offset_of[k] + (weights[step] if buffer == WEIGHTS else buffers[buffer])

    def by_call(self) -> Loop:
        """A loop over the single calls of the steps, each timed by itself; operands lie where they are placed."""
        size, found = words.WORD * words.CALL_WORDS, list[Any]()
        for at in range(0, len(self._items), words.ITEM_WORDS):
            _, first, end, operands = self._items[at : at + words.ITEM_WORDS]
            for call in range(first, end, size):
                found += (0, call, call + size, operands)
                operands += words.WORD * ctypes.c_int64.from_address(call + words.WORD * words.COUNT).value
        items = array(len(found))
        for at, word in enumerate(found):
            items[at] = word
        items[:] = found
        return Loop(self._dnnl.info.path, self._stream.value, items)

    def run(self, first: int, end: int) -> None:
        """Run steps from one on to before another, counted among those that are run here; those that read rows by themselves.

        Raises:
            ModelError: an index lies outside its axis.
            DeviceError: the library reports a failure.
        """
        if first in self.rows:
            status = self._read_rows(first)
        else:
            status = 0 if self.loop.run(first, end) == words.DONE else self.loop.status
        if status:
            self._dnnl.check_execution(status)

    def _read_rows(self, step: int) -> int:
        first = self.columns.first_operand[step]
        self.loop.times[2 * step] = perf_counter_ns()
        status = self.rows[step].read(*self._operands[first : first + 2])
        self.loop.times[2 * step + 1] = perf_counter_ns()
        return status


def _made(dnnl: Dnnl, program: StreamProgram, library: LibraryPages | None) -> dict[int, Created]:
    """The kernels by number but for those of others; what only their making needs of the library is dropped again.

    Every tensor has an offset of its own here, so that none is taken for a view of another.
    """
    offsets = {tensor: _FLOAT_BYTES * k for k, tensor in enumerate(program.layouts)}
    dnnl.set_threads(program.threads)
    creator = Creator(dnnl, program.shapes, program.layouts, offsets, program.types)
    made: dict[int, Created] = {}
    for number, kernel in enumerate(program.kernels):
        if library is not None and len(made) % _DROP_EVERY == 0:
            library.drop()
        if kernel.implementation != ELSEWHERE:
            made[number] = creator.create(kernel.step, kernel.implementation)
    if library is not None:
        library.drop()
    return made
