"""The calls of a program bound to memory: kernels made once, and of each step the addresses of its operands alone.

The memories that a primitive is given belong to its kernel: before each call the loop points them to the operands of the step.
So another schedule changes a table of addresses, and nothing of the library's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import pairwise
from time import perf_counter_ns

from edgeplan.errors import FormatError
from edgeplan.runtime import kernels
from edgeplan.runtime.creation import ROWS_KERNEL, Call, Created, Creator, KernelCall
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native import words
from edgeplan.runtime.native.calls import Loop, Table, array, function_address
from edgeplan.runtime.signatures import ExecArg
from edgeplan.runtime.streaming.library_pages import LibraryPages
from edgeplan.runtime.streaming.program import (
    AGAIN,
    BUFFER,
    FIRST_OPERAND,
    KERNEL,
    OFFSET,
    WEIGHTS,
    StreamProgram,
)
from edgeplan.runtime.streaming.reader import WeightsFile
from edgeplan.runtime.streaming.rows import Rows

_FLOAT_BYTES = 4
_DROP_EVERY = 8  # kernels made


class BoundCalls:
    """The calls of a program's steps, made and run by one thread.

    Args:
        dnnl: the library.
        program: its kernels are made here.
        file: of the weights, for steps that read rows of it.
        library: its pages; those that only the making of kernels needs are dropped again.

    Attributes:
        times: nanoseconds at which each step began and ended in the last run (`time.perf_counter_ns`).
        rows: the steps that read rows of the file; Python runs them.

    Raises:
        FormatError: operands are not those of the kernels.
    """

    def __init__(self, dnnl: Dnnl, program: StreamProgram, file: WeightsFile, library: LibraryPages) -> None:
        self._dnnl, self._program = dnnl, program
        self._keep: list[object] = []  # what the words of calls point to
        made = _made(dnnl, program, library)
        calls, ends, operands = [], [0], []
        for created in made:
            calls += [self._words(call) for call in created.calls]
            ends.append(len(calls))
            operands.append(sum(call[words.COUNT] for call in calls[ends[-2] :]))
        self._calls = array(len(calls) * words.CALL_WORDS)
        self._calls[: len(calls) * words.CALL_WORDS] = [word for call in calls for word in call]
        self._operands = array(len(program.operand_rows))
        self._items = self._bound(ends, operands)
        found = (_rows_of(created, file, program) for created in made)
        by_kernel = {k: rows for k, rows in enumerate(found) if rows is not None}
        steps = enumerate(program.step_rows.column(KERNEL))
        self.rows = {k: by_kernel[kernel] for k, kernel in steps if kernel in by_kernel}
        self.times = array(2 * len(program.step_rows))
        self._stream = dnnl.stream()
        items = Table(ctypes.addressof(self._items), len(program.step_rows))
        table = Table(ctypes.addressof(self._calls), len(calls))
        self._loop = Loop(dnnl.info.path, self._stream.value, items, table, ctypes.addressof(self.times))

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

    def _bound(self, ends: Sequence[int], operands: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
        """The steps as the loop takes them: where their kernel's calls lie, and where their operands will."""
        program, begin = self._program, ctypes.addressof(self._operands)
        firsts = (*program.step_rows.column(FIRST_OPERAND), len(program.operand_rows))
        items = array(len(program.step_rows) * words.ITEM_WORDS)
        for k, (kernel, (first, end)) in enumerate(zip(program.step_rows.column(KERNEL), pairwise(firsts), strict=True)):
            if operands[kernel] != end - first:
                what = f"the program does not fit: step {program.step_names[k]!r}"
                raise FormatError(what, where=program.model, next_step=AGAIN)
            items[words.ITEM_WORDS * k : words.ITEM_WORDS * (k + 1)] = [
                *(0, ends[kernel], ends[kernel + 1], begin + words.WORD * first)
            ]
        return items

    def place(self, buffers: Sequence[int], weights: Sequence[int]) -> None:
        """Give all operands their addresses.

        Args:
            buffers: address of each buffer.
            weights: address of each step's weights.
        """
        rows, operands = self._program.operand_rows, self._operands
        firsts = (*self._program.step_rows.column(FIRST_OPERAND), len(rows))
        buffer_of, offset_of = rows.column(BUFFER), rows.column(OFFSET)
        for step, (first, end) in enumerate(pairwise(firsts)):
            for k in range(first, end):
                buffer = buffer_of[k]
                operands[k] = offset_of[k] + (weights[step] if buffer == WEIGHTS else buffers[buffer])

    def run(self, first: int, end: int) -> None:
        """Run steps from one on to before another; those that read rows by themselves.

        Raises:
            ModelError: an index lies outside its axis.
            DeviceError: the library reports a failure.
        """
        if first in self.rows:
            status = self._read_rows(first)
        else:
            status = 0 if self._loop.run(first, end) == words.DONE else self._loop.status
        if status:
            self._dnnl.check_execution(status)

    def _read_rows(self, step: int) -> int:
        first = self._program.step_rows.column(FIRST_OPERAND)[step]
        self.times[2 * step] = perf_counter_ns()
        status = self.rows[step].read(*self._operands[first : first + 2])
        self.times[2 * step + 1] = perf_counter_ns()
        return status


def _rows_of(created: Created, file: WeightsFile, program: StreamProgram) -> Rows | None:
    """What a kernel reads of a table in the file; None for other kernels."""
    call = created.calls[0]
    if isinstance(call, KernelCall) and call.kernel.startswith(ROWS_KERNEL):
        return Rows(file, call, program.weights_bytes, program.model)
    return None


def _made(dnnl: Dnnl, program: StreamProgram, library: LibraryPages) -> tuple[Created, ...]:
    """The kernels; what only their making needs of the library is dropped again.

    Every tensor has an offset of its own here, so that none is taken for a view of another.
    """
    offsets = {tensor: _FLOAT_BYTES * k for k, tensor in enumerate(program.layouts)}
    dnnl.set_threads(program.threads)
    creator = Creator(dnnl, program.shapes, program.layouts, offsets, program.types)
    made: list[Created] = []
    with dnnl.without_primitive_cache():  # equal steps share their kernel anyway
        for kernel in program.kernels:
            if len(made) % _DROP_EVERY == 0:
                library.drop()
            made.append(creator.create(kernel.step, kernel.implementation))
    library.drop()
    return tuple(made)
