"""A streamed program is apart from where it lies and when: kernels, operands of each step, buffers, segments of weights.

Equal steps share a kernel, and equal weights a segment. A call names its operands by buffer and offset; a `Schedule` gives
buffers and weights their addresses, and another schedule of the same program changes nothing here. What there is of each step,
operand and buffer are numbers, packed: an object of each would take a share of a small budget.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import BYTES_PER_ELEMENT, Shape
from edgeplan.graph.steps import Step
from edgeplan.runtime.creation import Implementation
from edgeplan.runtime.descriptors import Variant
from edgeplan.runtime.layouts import BLOCKED

#: Where an operand lies, if in no buffer.
WEIGHTS = -1
#: Stands for the kernel of a step that calls none: its output is its input, named anew.
NOTHING = -1
#: Stands for the implementation of a step that another processor runs, whose kernels are no matter of the program's.
ELSEWHERE = Implementation("elsewhere", "", Variant(BLOCKED, BLOCKED))
PAGE_BYTES = 4096  # segments begin at multiples of it, in the file and in memory: direct I/O needs that
AGAIN = "plan the model again: edgeplan plan memory"


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel, made once for all steps that are equal but for their names.

    Attributes:
        step: one of them.
        implementation: how it is made.
    """

    step: Step
    implementation: Implementation


@dataclass(frozen=True, slots=True)
class Operand:
    """Where an argument of a call lies: in a buffer, or in the weights of the step (`WEIGHTS`), from a byte on."""

    buffer: int
    offset: int


@dataclass(frozen=True, slots=True)
class Executed:
    """An executed step calls one kernel, once or several times.

    Attributes:
        name: of the step, unique.
        kernel: its number; `NOTHING` where nothing is called.
        operands: of each call of the kernel, in the order of its arguments, call by call; of a step that runs elsewhere what it
            reads and writes.
        weights_at: where its segment of weights begins in the file; steps with the same weights share one.
        weight_bytes: of the segment, whole pages; 0 without weights.
    """

    name: str
    kernel: int
    operands: tuple[Operand, ...]
    weights_at: int
    weight_bytes: int


@dataclass(frozen=True, slots=True)
class Buffer:
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


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of numbers of 64 bits, in the byte order of x86-64.

    Attributes:
        columns: of a row.
        numbers: row by row.
    """

    columns: int
    numbers: bytes

    @classmethod
    def of(cls, columns: int, rows: Iterable[Sequence[int]]) -> PackedRows:
        """Pack rows."""
        return cls(columns, array("q", [number for row in rows for number in row]).tobytes())

    def column(self, number: int) -> memoryview[int]:
        """A column, which takes no memory of its own."""
        return memoryview(self.numbers).cast("q")[number :: self.columns]

    def __len__(self) -> int:
        return len(self.numbers) // (8 * self.columns)


#: Columns of steps: their kernel, their first operand, where their weights begin in the file, and bytes of these.
KERNEL, FIRST_OPERAND, WEIGHTS_AT, WEIGHT_BYTES, STEP_COLUMNS = range(5)
#: Columns of operands: see `Operand`.
BUFFER, OFFSET, OPERAND_COLUMNS = range(3)
#: Columns of buffers: see `Buffer`.
SIZE, LOWER, UPPER, BUFFER_COLUMNS = range(4)


@dataclass(frozen=True, slots=True)
class Border:
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


@dataclass(frozen=True, slots=True)
class StreamProgram:
    """A model as it is executed.

    Attributes:
        lanes: processors that run its steps, each some of them.
        model: its name.
        threads: of each kernel.
        library: version, commit and instruction set that the kernels are for.
        kernels: see there.
        step_names, step_rows: of the steps, in order (`steps`).
        operand_rows: of all steps, one after the other.
        buffer_names, buffer_rows: of the buffers (`buffers`).
        inputs, outputs: of the model.
        shapes, layouts: of the tensors that kernels' steps name; types: those that are not of float32.
        weights_bytes: size of the file of weights.
    """

    lanes: int
    model: str
    threads: int
    library: tuple[str, str, str]
    kernels: tuple[Kernel, ...]
    step_names: tuple[str, ...]
    step_rows: PackedRows
    operand_rows: PackedRows
    buffer_names: tuple[str, ...]
    buffer_rows: PackedRows
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    shapes: Mapping[str, Shape]
    layouts: Mapping[str, str]
    types: Mapping[str, str]
    weights_bytes: int

    @property
    def weight_bytes(self) -> memoryview[int]:
        """Return the bytes of each step's weights."""
        return self.step_rows.column(WEIGHT_BYTES)

    @property
    def steps(self) -> tuple[Executed, ...]:
        """Return the steps, unpacked."""
        operands = tuple(map(Operand, self.operand_rows.column(BUFFER), self.operand_rows.column(OFFSET)))
        kernels, first, at, size = (self.step_rows.column(k).tolist() for k in range(STEP_COLUMNS))
        ends = (*first[1:], len(operands))
        rows = zip(self.step_names, kernels, first, ends, at, size, strict=True)
        return tuple(Executed(name, kernel, operands[a:b], where, bytes_) for name, kernel, a, b, where, bytes_ in rows)

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """Return the buffers, unpacked."""
        columns = (self.buffer_rows.column(k) for k in range(BUFFER_COLUMNS))
        return tuple(map(Buffer, self.buffer_names, *columns))


def packed_steps(steps: Sequence[Executed]) -> tuple[PackedRows, PackedRows]:
    """Rows of steps, and of their operands."""
    rows: list[tuple[int, ...]] = []
    operands: list[tuple[int, int]] = []
    for step in steps:
        rows.append((step.kernel, len(operands), step.weights_at, step.weight_bytes))
        operands += [(operand.buffer, operand.offset) for operand in step.operands]
    return PackedRows.of(STEP_COLUMNS, rows), PackedRows.of(OPERAND_COLUMNS, operands)
