"""A streamed program is apart from where it lies and when: kernels, operands of each step, buffers, segments of weights.

Equal steps share a kernel, and equal weights a segment. A call names its operands by buffer and offset; a `Schedule` gives
buffers and weights their addresses, and another schedule of the same program changes nothing here.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from edgeplan.graph.shapes import Shape
from edgeplan.graph.steps import Step
from edgeplan.runtime.creation import Implementation
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.primitives import Variant
from edgeplan.runtime.program_file import Border
from edgeplan.runtime.streaming.schedules import BF16, Stored

#: Where an operand lies, if in no buffer.
WEIGHTS = -1
#: Stands for the kernel of a step that calls none: its output is its input, named anew.
NOTHING = -1
#: Stands for the implementation of a step that another processor runs, whose kernels are no matter of the program's.
ELSEWHERE = Implementation("elsewhere", "", Variant(BLOCKED, BLOCKED))
AGAIN = "plan the model again: edgeplan plan memory"


class Kernel(msgspec.Struct, frozen=True):
    """One kernel, made once for all steps that are equal but for their names, of which it names one."""

    step: Step
    implementation: Implementation


class Operand(msgspec.Struct, frozen=True, array_like=True):
    """Where an argument of a call lies: in a buffer, or in the weights of the step (`WEIGHTS`), from a byte on."""

    buffer: int
    offset: int


class Executed(msgspec.Struct, frozen=True, array_like=True):
    """An executed step calls one kernel, once or several times; `NOTHING` where nothing is called. Its name is unique.

    Operands are of each call of the kernel, in the order of its arguments, call by call; of a step that runs elsewhere what it
    reads and writes. Its segment of weights begins at a place of the file (steps with the same weights share one), takes whole
    pages in memory, 0 without weights, and as many bytes in the file or half of them (`runtime.streaming.schedules`).
    """

    name: str
    kernel: int
    operands: tuple[Operand, ...]
    weights_at: int
    weight_bytes: int
    stored_bytes: int


class Buffer(msgspec.Struct, frozen=True, array_like=True):
    """Memory in bytes that steps share, from `lower` to before `upper`: activations, or the scratch of one step."""

    name: str
    size: int
    lower: int
    upper: int


class StreamProgram(msgspec.Struct, frozen=True):
    """A model as it is executed, on so many processors (`lanes`), each of which runs some of its steps.

    `threads` are of each kernel, the library's version, commit and instruction set those that the kernels are for. Shapes and
    layouts are of the tensors that kernels' steps name, types of those that are not of float32; the file of weights has so many
    bytes, of which those that are stored in half their bytes are of the kind `halves`.
    """

    lanes: int
    model: str
    threads: int
    library: tuple[str, str, str]
    kernels: tuple[Kernel, ...]
    steps: tuple[Executed, ...]
    buffers: tuple[Buffer, ...]
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    shapes: Mapping[str, Shape]
    layouts: Mapping[str, str]
    types: Mapping[str, str]
    weights_bytes: int
    halves: Stored = BF16

    @property
    def step_names(self) -> tuple[str, ...]:
        """Return the names of the steps."""
        return tuple(step.name for step in self.steps)

    @property
    def buffer_names(self) -> tuple[str, ...]:
        """Return the names of the buffers."""
        return tuple(buffer.name for buffer in self.buffers)
