"""The calls of a program bound to memory: kernels made once, and of each step the addresses of its operands alone.

The memories that a primitive is given belong to its kernel: before each call the loop points them to the operands of the step.
So another schedule changes a table of addresses, and nothing of the library's.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from edgeplan.errors import FormatError
from edgeplan.runtime import loops
from edgeplan.runtime.creation import Call, Creator, KernelCall
from edgeplan.runtime.dnnl import Dnnl, ExecArg, Handle
from edgeplan.runtime.kernels import kernel_address
from edgeplan.runtime.loops import Loop, function_address, zero_words
from edgeplan.runtime.streaming.program import AGAIN, ELSEWHERE, NOTHING, WEIGHTS, StreamProgram

_FLOAT_BYTES = 4


class BoundCalls:
    """The calls of a program's steps, made and run by one thread; some steps may run elsewhere, and are not in the loop."""

    def __init__(self, dnnl: Dnnl, program: StreamProgram, stream: Handle, steps: Sequence[int] | None = None) -> None:
        self._dnnl, self._program, self._stream = dnnl, program, stream
        self._keep: list[object] = []  # what the words of calls point to
        self._steps = range(len(program.steps)) if steps is None else steps
        self._firsts = [0, *accumulate(len(step.operands) for step in program.steps)]  # operands, then how many there are
        self._operands = zero_words(self._firsts[-1])
        self._items = zero_words(len(self._steps) * loops.ITEM_WORDS)
        self._places: dict[int, list[int]] = {}  # of a kernel's steps, among those that are run here
        for at, k in enumerate(self._steps):
            self._places.setdefault(program.steps[k].kernel, []).append(at)
        self.loop = Loop(dnnl.info.path, stream.value, self._items)
        creator = creator_of(dnnl, program)
        here = {number for number, kernel in enumerate(program.kernels) if kernel.implementation != ELSEWHERE}
        for number, places in self._places.items():
            if number not in here and number != NOTHING:
                raise self._no_fit(self._steps[places[0]])
        self._bind(NOTHING, ())
        for number in sorted(here):
            self._make(creator, number)

    def _make(self, creator: Creator, number: int) -> None:
        """Make a kernel, so that its steps can be run."""
        self._dnnl.set_threads(self._program.threads)
        kernel = self._program.kernels[number]
        created = creator.create(kernel.step, kernel.implementation)
        self._bind(number, [self._words(call) for call in created.calls])

    def _words(self, call: Call | KernelCall) -> tuple[int, int, int, int]:
        """A call as the loop takes it; see `loops.FUNCTION`."""
        if isinstance(call, KernelCall):
            block = (ctypes.c_int64 * len(call.block))(*call.block)
            self._keep.append(block)
            return kernel_address(call.kernel), ctypes.addressof(block), len(call.places), 0
        assert call.primitive is not None  # noqa: S101  created to be run
        call.primitive.forget()
        memories = [self._dnnl.memory(argument.descriptor, 0) for argument in call.arguments]
        given = [ExecArg(a.number, memory.value) for a, memory in zip(call.arguments, memories, strict=True)]
        arguments = (ExecArg * len(given))(*given)
        self._keep += [call.primitive, memories, arguments]
        execute = function_address(self._dnnl.execute)
        return execute, call.primitive.value, len(given), ctypes.addressof(arguments)

    def _bind(self, number: int, calls: Sequence[tuple[int, int, int, int]]) -> None:
        """Tell the loop where the calls of a kernel's steps lie, and where their operands will."""
        begin = ctypes.addressof(self._operands)
        table = zero_words(max(1, len(calls)) * loops.CALL_WORDS)
        table[: len(calls) * loops.CALL_WORDS] = [word for call in calls for word in call]
        self._keep.append(table)
        first, operands = ctypes.addressof(table), sum(call[loops.COUNT] for call in calls)
        end = first + loops.WORD * loops.CALL_WORDS * len(calls)
        for at in self._places.get(number, ()):
            k = self._steps[at]
            if operands != len(self._program.steps[k].operands):
                raise self._no_fit(k)
            item = loops.ITEM_WORDS * at
            self._items[item + loops.OPERANDS] = begin + loops.WORD * self._firsts[k]
            self._items[item + loops.END] = end
            self._items[item + loops.FIRST] = first  # last, since the step counts as prepared by it

    def _no_fit(self, step: int) -> FormatError:
        what = f"the program does not fit: step {self._program.steps[step].name!r}"
        return FormatError(what, where=self._program.model, next_step=AGAIN)

    def place(self, buffers: Sequence[int], weights: Sequence[int]) -> None:
        """Give all operands their addresses."""
        self._operands[:] = [
            operand.offset + (own if operand.buffer == WEIGHTS else buffers[operand.buffer])
            for step, own in zip(self._program.steps, weights, strict=True)
            for operand in step.operands
        ]

    def by_call(self) -> Loop:
        """A loop over the single calls of the steps, each timed by itself; operands lie where they are placed."""
        size, found = loops.WORD * loops.CALL_WORDS, list[Any]()
        for at in range(0, len(self._items), loops.ITEM_WORDS):
            _, first, end, operands = self._items[at : at + loops.ITEM_WORDS]
            for call in range(first, end, size):
                found += (0, call, call + size, operands)
                operands += loops.WORD * ctypes.c_int64.from_address(call + loops.WORD * loops.COUNT).value
        items = zero_words(len(found))
        items[:] = found
        return Loop(self._dnnl.info.path, self._stream.value, items)

    def run(self, first: int, end: int) -> None:
        """Run steps from one on to before another, counted among those that are run here."""
        found = self.loop.run(first, end)
        if found == loops.NONE:
            raise self._no_fit(self._steps[self.loop.step])
        if found != loops.DONE:
            self._dnnl.check_execution(self.loop.status)


def creator_of(dnnl: Dnnl, program: StreamProgram) -> Creator:
    """Make the creator of a program's kernels.

    Every tensor has an offset of its own there, so that none is taken for a view of another.
    """
    offsets = {tensor: _FLOAT_BYTES * k for k, tensor in enumerate(program.layouts)}
    return Creator(dnnl, program.shapes, program.layouts, offsets, program.types)
