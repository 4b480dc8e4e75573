"""What is executed, apart from where it lies and when: kernels, the calls of each step, buffers and segments of weights.

Equal steps share a kernel. A call names its operands by buffer and offset; a `Schedule` gives buffers and weights their
addresses, and another schedule of the same program changes nothing here.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from edgeplan.errors import FormatError
from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import BYTES_PER_ELEMENT, Shape
from edgeplan.graph.steps import PostOp, Step
from edgeplan.runtime.creation import Implementation
from edgeplan.runtime.descriptors import Variant

FORMAT = 1
PROGRAM_NAME = "program.json"
#: Where an operand lies, if in no buffer.
WEIGHTS = -1
_MOST_THREADS = 1024
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
    """A step.

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
        """In bytes."""
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


def to_json(program: StreamProgram) -> str:
    """The program as a document."""
    return json.dumps({"format": FORMAT, **asdict(_plain(program))}, separators=(",", ":"), default=dict)


def _plain(program: StreamProgram) -> StreamProgram:
    """Mappings that can be copied."""
    kernels = tuple(
        Kernel(
            Step(
                k.step.name, k.step.kind, (), k.step.inputs, k.step.outputs,
                dict(k.step.weights), dict(k.step.settings), k.step.post_ops,
            ),
            k.implementation,
        )
        for k in program.kernels
    )  # fmt: skip
    return StreamProgram(
        program.model, program.threads, program.library, kernels, program.steps, program.buffers,
        program.inputs, program.outputs, dict(program.shapes), dict(program.layouts),
        dict(program.types), program.weights_bytes,
    )  # fmt: skip


def from_json(text: str | bytes, where: Path) -> StreamProgram:
    """A program from its document.

    Raises:
        FormatError: it is of another format, or damaged.
    """
    try:
        found = json.loads(text)
        if found.pop("format") != FORMAT:
            raise FormatError("the program has another format", where=str(where), next_step=AGAIN)
        return _inside(
            StreamProgram(
                model=found["model"],
                threads=found["threads"],
                library=tuple(found["library"]),
                kernels=tuple(_kernel(k) for k in found["kernels"]),
                steps=tuple(_executed(s) for s in found["steps"]),
                buffers=tuple(Buffer(**b) for b in found["buffers"]),
                inputs=tuple(_border(b) for b in found["inputs"]),
                outputs=tuple(_border(b) for b in found["outputs"]),
                shapes={name: tuple(shape) for name, shape in found["shapes"].items()},
                layouts=found["layouts"],
                types=found["types"],
                weights_bytes=found["weights_bytes"],
            )
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise FormatError(f"the program is damaged: {error}", where=str(where), next_step=AGAIN) from error


def _inside(program: StreamProgram) -> StreamProgram:
    """The same, if every number names something that there is and every address lies inside of it.

    Raises:
        ValueError: one does not.
    """
    if type(program.threads) is not int or not 1 <= program.threads <= _MOST_THREADS:
        raise ValueError("threads")
    for buffer in program.buffers:
        if not (0 <= buffer.lower < buffer.upper <= len(program.steps) and buffer.size >= 0):
            raise ValueError(f"buffer {buffer.name!r}")
    for step in program.steps:
        end = step.weights_at + step.weight_bytes
        if not (0 <= step.kernel < len(program.kernels) and 0 <= step.weights_at <= end <= program.weights_bytes):
            raise ValueError(f"step {step.name!r}")
        for operand in (operand for call in step.calls for operand in call):
            _require_in(operand, step.weight_bytes if operand.buffer == WEIGHTS else None, program, 0)
    for border in (*program.inputs, *program.outputs):
        _require_in(border.operand, None, program, border.size)
    return program


def _require_in(operand: Operand, size: int | None, program: StreamProgram, length: int) -> None:
    if size is None:
        if not 0 <= operand.buffer < len(program.buffers):
            raise ValueError(f"buffer {operand.buffer}")
        size = program.buffers[operand.buffer].size
    if not 0 <= operand.offset <= operand.offset + length <= size:
        raise ValueError(f"byte {operand.offset} of buffer {operand.buffer}")


def _kernel(found: dict[str, Any]) -> Kernel:
    step, made = found["step"], found["implementation"]
    settings = {key: tuple(value) if isinstance(value, list) else value for key, value in step["settings"].items()}
    return Kernel(
        Step(
            step["name"],
            step["kind"],
            (),
            tuple(step["inputs"]),
            tuple(step["outputs"]),
            MappingProxyType(step["weights"]),
            MappingProxyType(settings),
            tuple(PostOp(**post) for post in step["post_ops"]),
        ),
        Implementation(made["name"], made["kernel"], Variant(**made["variant"])),
    )


def _executed(found: dict[str, Any]) -> Executed:
    calls = tuple(tuple(Operand(**operand) for operand in call) for call in found["calls"])
    return Executed(found["name"], found["kernel"], calls, found["weights_at"], found["weight_bytes"])


def _border(found: dict[str, Any]) -> Border:
    return Border(found["name"], tuple(found["shape"]), Operand(**found["operand"]), found["dtype"], found.get("below", 2))


def read_program(folder: Path) -> StreamProgram:
    """The program of a plan folder.

    Raises:
        FormatError: it is missing, of another format, or damaged.
    """
    path = folder / PROGRAM_NAME
    try:
        text = path.read_bytes()
    except OSError as error:
        raise FormatError(f"cannot read the plan: {error.strerror}", where=str(path), next_step=AGAIN) from error
    return from_json(text, path)
