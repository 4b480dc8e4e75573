"""A program with its files open and memory for its activations: what its steps are prepared from, on any processor."""

from __future__ import annotations

import copy
import ctypes
import math
import mmap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.graph.shapes import BYTES_PER_ELEMENT, FLOAT16, Shape
from edgeplan.graph.steps import Step
from edgeplan.runtime import constants
from edgeplan.runtime.creation import ALIGNMENT, Created, Creator
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_session import Closing
from edgeplan.runtime.ranges import WeightPart
from edgeplan.runtime.transform import Array, folded, values_of, widened
from edgeplan.runtime.weights import WeightLocation

if TYPE_CHECKING:
    from edgeplan.runtime.program import Program


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes at a fixed address, alive as long as this or any view of them."""

    data: npt.NDArray[np.uint8]
    address: int

    def tensor(self, offset: int, shape: Sequence[int], dtype: str) -> npt.NDArray[Any]:
        """A view of a row-major tensor at an offset."""
        size = BYTES_PER_ELEMENT[dtype] * math.prod(shape)
        return self.data[offset : offset + size].view(dtype).reshape(shape)


def allocate(size: int, alignment: int = ALIGNMENT) -> Buffer:
    """Uninitialised memory, aligned to a cache line, or to more."""
    raw = np.empty(size + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    data = raw[start : start + size]
    return Buffer(data, data.ctypes.data)


class Worker:
    """The calling thread's stream and number of threads. Make one in each thread that prepares or executes."""

    def __init__(self, dnnl: Dnnl, threads: int = 1) -> None:
        dnnl.set_threads(threads)
        self.dnnl, self.threads = dnnl, threads
        self.stream = dnnl.stream()


class WeightValues:
    """Values of weights, and of parts of them, where a model's files hold them, mapped into memory."""

    def __init__(
        self,
        folder: Path,
        locations: Mapping[str, WeightLocation],
        shapes: Mapping[str, Shape],
        parts: Mapping[str, WeightPart],
    ) -> None:
        self._locations, self._shapes, self._parts = locations, shapes, parts
        self._maps: dict[str, mmap.mmap] = {}
        self._widened: dict[str, Array] = {}
        for path in (folder / file for file in sorted({location.file for location in locations.values()})):
            try:
                with path.open("rb") as opened:
                    self._maps[str(path.relative_to(folder))] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                what = f"cannot open the weights: {getattr(error, 'strerror', error)}"
                raise ModelError(what, where=str(path), next_step="check the path") from error

    def of(self, name: str) -> Array:
        """The values of a weight, or of a part of one, row-major and the caller's own."""
        part = self._parts.get(name)
        if part is None:
            return self.whole(name).copy()
        return self.whole(part.whole)[(slice(None),) * part.axis + (slice(part.start, part.stop),)].copy()

    def whole(self, name: str) -> Array:
        """The values of a weight where the file holds them; what is stored in fewer bytes is widened.

        Parts of a weight are asked for one after the other, so the last one is kept.
        """
        location = self._locations[name]
        if location.scale is None and location.dtype != FLOAT16:
            return self._held(location, self._shapes[name])
        if name not in self._widened:
            found = {end: self._held(part, (part.count,) if end else self._shapes[name]) for end, part in location.parts}
            self._widened = {name: widened(found, {"": location.axis})[""]}
        return self._widened[name]

    def _held(self, location: WeightLocation, shape: Shape) -> Array:
        data = np.frombuffer(self._maps[location.file], np.uint8, location.size, location.offset)
        if location.stride != np.dtype(location.dtype).itemsize:
            return values_of(data, location.stride, location.dtype).reshape(shape)
        return np.ndarray(shape, location.dtype, data.data)

    def close(self) -> None:
        """Let go of the files."""
        self._maps.clear()


class Executable(Closing):
    """A program with its model's files open, in a folder, and its arena, of at least `program.arena_bytes`; None: its own."""

    def __init__(self, dnnl: Dnnl, program: Program, folder: Path, arena: Buffer | None = None) -> None:
        self.dnnl, self.program = dnnl, program
        self.creator = Creator(dnnl, program.shapes, program.layouts, program.offsets, program.types)
        self._values = WeightValues(folder, program.weights, program.shapes, program.parts)
        if arena is None:
            data = np.frombuffer(mmap.mmap(-1, max(1, program.arena_bytes)), np.uint8)
            arena = Buffer(data, data.ctypes.data)
        self.arena = arena

    def through(self, dnnl: Dnnl, program: Program | None = None) -> Executable:
        """The same files and memory, used through another handle of the library; closed with this one.

        An engine is of one handle, and what it makes. A program takes the place of this one.
        """
        found = copy.copy(self)
        found.dnnl, found.program = dnnl, program or self.program
        p = found.program
        found.creator = Creator(dnnl, p.shapes, p.layouts, p.offsets, p.types)
        return found

    def close(self) -> None:
        """Close the files of the model. The arena lives as long as something points to it."""
        self._values.close()

    def read(self, index: int) -> Mapping[str, Array]:
        """Read a step's weights from the model's files: role -> values, which are the caller's own."""
        return {role: self._values.of(name) for role, name in self.program.steps[index].weights.items()}

    def bind(self, inputs: Mapping[str, npt.NDArray[Any]]) -> None:
        """Copy the inputs of a run to their place. The arena is reused while running, so each run needs them again."""
        copy_inputs({name: self.activation(name) for name in self.program.inputs}, inputs, self.program.name)

    def outputs(self) -> dict[str, npt.NDArray[Any]]:
        """Copies of the outputs of the last run."""
        return {name: np.array(self.activation(name)) for name in self.program.outputs}

    def activation(self, tensor: str) -> npt.NDArray[Any]:
        """A view of a row-major activation in the arena (the model's inputs and outputs are)."""
        program = self.program
        return self.arena.tensor(program.offsets[tensor], program.shapes[tensor], program.dtype(tensor))


def copy_inputs(views: Mapping[str, npt.NDArray[Any]], inputs: Mapping[str, npt.NDArray[Any]], model: str) -> None:
    """Copy the inputs of a run to their place; the name of the model is for messages."""
    for name, view in views.items():
        value, expected = inputs.get(name), f"{view.dtype}{list(view.shape)}"
        if value is None or value.shape != view.shape or not np.can_cast(value.dtype, view.dtype, "same_kind"):
            given = "missing" if value is None else f"{value.dtype}{list(value.shape)}"
            what, correct = f"input {name!r} is {given}, not {expected}", f"correct the input: expected {expected}"
            raise ModelError(what, where=model, next_step=correct)
        np.copyto(view, value)


def transformed(dnnl: Dnnl, step: Step, created: Created, raw: Mapping[str, Array], worker: Worker) -> Buffer:
    """Weights in the layouts that a step's primitives read: `created.weight_bytes` bytes.

    They are made of values as in the ONNX file, by role; those of `weight` may be overwritten.
    """
    weights = allocate(created.weight_bytes)
    dnnl.set_threads(worker.threads)
    for slot, values in zip(created.slots, folded(step, raw), strict=True):
        address = weights.address + slot.offset
        if dnnl.equal(slot.source.value, slot.target):
            ctypes.memmove(address, values.ctypes.data, slot.size)
            continue
        descriptor = dnnl.reorder(slot.source.value, slot.target)
        primitive = dnnl.primitive(descriptor)
        scratch = allocate(dnnl.scratch_bytes(descriptor))
        scratchpad = dnnl.memory(dnnl.queried(descriptor, constants.QUERY_SCRATCHPAD_MD), scratch.address)
        given = (
            (constants.ARG_SRC, dnnl.memory(slot.source.value, values.ctypes.data)),
            (constants.ARG_DST, dnnl.memory(slot.target, address)),
            (constants.ARG_SCRATCHPAD, scratchpad),
        )
        dnnl.run(primitive, worker.stream, given)
    return weights
