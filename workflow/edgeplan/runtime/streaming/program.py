"""A streamed program is apart from where it lies and when: kernels, operands of each step, buffers, segments of weights.

Equal steps share a kernel, and equal weights a segment. A call names its operands by buffer and offset; a `Schedule` gives
buffers and weights their addresses, and another schedule of the same program changes nothing here. What there is of each step,
operand and buffer are numbers, packed: an object of each would take a share of a small budget.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.shapes import BYTES_PER_ELEMENT, Shape
from edgeplan.graph.steps import Step
from edgeplan.runtime.creation import Implementation
from edgeplan.runtime.descriptors import Variant
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.streaming.halves import BF16, Stored

#: Where an operand lies, if in no buffer.
WEIGHTS = -1
#: Stands for the kernel of a step that calls none: its output is its input, named anew.
NOTHING = -1
#: Stands for the implementation of a step that another processor runs, whose kernels are no matter of the program's.
ELSEWHERE = Implementation("elsewhere", "", Variant(BLOCKED, BLOCKED))
PAGE_BYTES = 4096  # segments begin at multiples of it, in the file and in memory: direct I/O needs that
AGAIN = "plan the model again: edgeplan plan memory"


class Kernel(msgspec.Struct, frozen=True):
    """One kernel, made once for all steps that are equal but for their names.

    Attributes:
        step: one of them.
        implementation: how it is made.
    """

    step: Step
    implementation: Implementation


class Operand(msgspec.Struct, frozen=True):
    """Where an argument of a call lies: in a buffer, or in the weights of the step (`WEIGHTS`), from a byte on."""

    buffer: int
    offset: int


class Executed(msgspec.Struct, frozen=True):
    """An executed step calls one kernel, once or several times.

    Attributes:
        name: of the step, unique.
        kernel: its number; `NOTHING` where nothing is called.
        operands: of each call of the kernel, in the order of its arguments, call by call; of a step that runs elsewhere what it
            reads and writes.
        weights_at: where its segment of weights begins in the file; steps with the same weights share one.
        weight_bytes: of the segment in memory, whole pages; 0 without weights.
        stored_bytes: of the segment in the file: as many, or half of them (`runtime.streaming.halves`).
    """

    name: str
    kernel: int
    operands: tuple[Operand, ...]
    weights_at: int
    weight_bytes: int
    stored_bytes: int


class Buffer(msgspec.Struct, frozen=True):
    """Memory that steps share: activations, or the scratch of one step.

    Attributes:
        name: of the activation, or of the step.
        size: bytes.
        lower, upper: alive from step `lower` to before step `upper`.
    """

    name: str
    size: int
    lower: int
    upper: int


class ProgramColumns(NamedTuple):
    """The numbers of a program's steps and operands.

    Attributes:
        kernel_of, first_operand, weights_at, weight_bytes, stored_bytes: of each step.
        buffer_of, offset_of: of each operand.
    """

    kernel_of: memoryview[int]
    first_operand: memoryview[int]
    weights_at: memoryview[int]
    weight_bytes: memoryview[int]
    buffer_of: memoryview[int]
    offset_of: memoryview[int]
    stored_bytes: memoryview[int]


STEP_COLUMNS, OPERAND_COLUMNS, BUFFER_COLUMNS = 4, 2, 3


def packed(rows: Iterable[Sequence[int]]) -> bytes:
    """Rows of numbers of 64 bits, one after the other, in the byte order of x86-64."""
    return array("q", [number for row in rows for number in row]).tobytes()


def columns_of(steps: bytes, operands: bytes, stored: bytes) -> ProgramColumns:
    """The columns of packed rows, which take no memory of their own; see `StreamProgram`."""
    tables = ((memoryview(steps).cast("q"), STEP_COLUMNS), (memoryview(operands).cast("q"), OPERAND_COLUMNS))
    found = [numbers[k::width] for numbers, width in tables for k in range(width)]
    found.append(memoryview(stored).cast("q") if stored else found[STEP_COLUMNS - 1])
    return ProgramColumns(*found)


class Border(msgspec.Struct, frozen=True):
    """An input or output of the model: its shape, row-major, where it lies, its type, and what its integers stay below."""

    name: str
    shape: Shape
    operand: Operand
    dtype: str = FLOAT32
    below: int = 2

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return BYTES_PER_ELEMENT[self.dtype] * math.prod(self.shape)


class StreamProgram(msgspec.Struct, frozen=True):
    """A model as it is executed.

    Attributes:
        lanes: processors that run its steps, each some of them.
        model: its name.
        threads: of each kernel.
        library: version, commit and instruction set that the kernels are for.
        kernels: see there.
        step_names, step_rows: of the steps, in order (`steps`); rows are packed.
        operand_rows: of the operands of all steps.
        buffer_names, buffer_rows: of the buffers (`buffers`).
        inputs, outputs: of the model.
        shapes, layouts: of the tensors that kernels' steps name; types: those that are not of float32.
        weights_bytes: size of the file of weights.
        stored_rows: of the steps, packed: bytes of their weights in the file; empty: as many as in memory.
        halves: kind of the weights that are stored in half their bytes.
    """

    lanes: int
    model: str
    threads: int
    library: tuple[str, str, str]
    kernels: tuple[Kernel, ...]
    step_names: tuple[str, ...]
    step_rows: bytes
    operand_rows: bytes
    buffer_names: tuple[str, ...]
    buffer_rows: bytes
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    shapes: Mapping[str, Shape]
    layouts: Mapping[str, str]
    types: Mapping[str, str]
    weights_bytes: int
    stored_rows: bytes = b""
    halves: Stored = BF16

    @property
    def columns(self) -> ProgramColumns:
        """Return the numbers of the steps and operands."""
        return columns_of(self.step_rows, self.operand_rows, self.stored_rows)

    @property
    def steps(self) -> tuple[Executed, ...]:
        """Return the steps as values, unpacked."""
        found = self.columns
        operands = tuple(map(Operand, found.buffer_of, found.offset_of))
        ends = [*found.first_operand, len(operands)][1:]
        rows = zip(
            self.step_names, found.kernel_of, found.first_operand, ends, found.weights_at, found.weight_bytes,
            found.stored_bytes, strict=True,
        )  # fmt: skip
        return tuple(Executed(name, kernel, operands[a:b], *weights) for name, kernel, a, b, *weights in rows)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers as values, unpacked."""
        numbers = memoryview(self.buffer_rows).cast("q")
        return tuple(map(Buffer, self.buffer_names, *(numbers[k::BUFFER_COLUMNS] for k in range(BUFFER_COLUMNS))))


def packed_steps(steps: Sequence[Executed]) -> tuple[bytes, bytes]:
    """Rows of steps, and of their operands, packed."""
    rows: list[tuple[int, ...]] = []
    operands: list[tuple[int, int]] = []
    for step in steps:
        rows.append((step.kernel, len(operands), step.weights_at, step.weight_bytes))
        operands += [(operand.buffer, operand.offset) for operand in step.operands]
    return packed(rows), packed(operands)
