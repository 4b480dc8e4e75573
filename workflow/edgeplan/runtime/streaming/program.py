"""A streamed program is apart from where it lies and when: kernels, calls of each step, buffers, segments of weights.

Equal steps share a kernel. A call names its operands by buffer and offset; a `Schedule` gives buffers and weights their
addresses, and another schedule of the same program changes nothing here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import BYTES_PER_ELEMENT, Shape
from edgeplan.graph.steps import Step
from edgeplan.runtime.creation import Implementation

#: Where an operand lies, if in no buffer.
WEIGHTS = -1
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
        kernel: its number.
        calls: the operands of each call of the kernel, in the order of the kernel's arguments.
        weights_at: where its segment of weights begins in the file.
        weight_bytes: of the segment, whole pages; 0 without weights.
    """

    name: str
    kernel: int
    calls: tuple[tuple[Operand, ...], ...]
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
        model: its name.
        threads: of each kernel.
        library: version, commit and instruction set that the kernels are for.
        kernels, steps, buffers: see there.
        inputs, outputs: of the model.
        shapes, layouts: of the tensors that kernels' steps name; types: those that are not of float32.
        weights_bytes: size of the file of weights.
    """

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
