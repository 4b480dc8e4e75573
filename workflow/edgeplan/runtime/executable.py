"""A program with its files open and memory for its activations: what its steps are prepared from, on any processor."""

from __future__ import annotations

import copy
import ctypes
import math
import mmap
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.graph.shapes import BYTES_PER_ELEMENT, Shape
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


def read_into(descriptor: int, data: npt.NDArray[np.uint8], offset: int) -> bool:
    """Fill bytes from an offset of a file; False where it ends before."""
    target = data.data
    while target.nbytes:
        got = os.preadv(descriptor, [target], offset)
        if not got:
            return False
        target, offset = target[got:], offset + got
    return True


class WeightValues(Closing):
    """Values of weights, and of parts of them, read from a model's files: each the caller's own."""

    def __init__(
        self,
        folder: Path,
        locations: Mapping[str, WeightLocation],
        shapes: Mapping[str, Shape],
        parts: Mapping[str, WeightPart] = MappingProxyType({}),
    ) -> None:
        self._folder, self._locations, self._shapes, self._parts = folder, locations, shapes, parts
        self._files: dict[str, int] = {}
        self._last: tuple[str, Array | None] = ("", None)
        for file in sorted({location.file for location in locations.values()}):
            try:
                self._files[file] = os.open(folder / file, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                self.close()
                what = f"cannot open the weights: {error.strerror}"
                raise ModelError(what, where=str(folder / file), next_step="check the path") from error

    def of(self, name: str) -> Array:
        """The values of a weight, or of a part of one, row-major.

        Parts of a weight are asked for one after the other, so the last one is kept whole.
        """
        part = self._parts.get(name)
        if part is None:
            return self.whole(name)
        last, values = self._last
        if values is None or last != part.whole:
            values = self.whole(part.whole)
            self._last = (part.whole, values)
        return values[(slice(None),) * part.axis + (slice(part.start, part.stop),)].copy()

    def whole(self, name: str) -> Array:
        """The values of a weight; what is stored in fewer bytes is widened."""
        location = self._locations[name]
        found = {end: self._read(part, (part.count,) if end else self._shapes[name]) for end, part in location.parts}
        return widened(found, {"": location.axis})[""]

    def _read(self, place: WeightLocation, shape: Shape) -> npt.NDArray[Any]:
        data, where = allocate(place.size).data, str(self._folder / place.file)
        try:
            whole = read_into(self._files[place.file], data, place.offset)
        except OSError as error:
            what = f"cannot read {place.file}: {error.strerror}"
            raise ModelError(what, where=where, next_step="check the disk, then run again") from error
        if not whole:
            what = f"{place.file} ends before byte {place.offset + place.size}"
            raise ModelError(what, where=where, next_step="copy the model again")
        return values_of(data, place.stride, place.dtype).reshape(shape)

    def close(self) -> None:
        """Close the files."""
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        self._last = ("", None)


class Executable(Closing):
    """A program with its model's files open, in a folder, and its arena, of at least `program.arena_bytes`; None: its own."""

    def __init__(self, dnnl: Dnnl, program: Program, folder: Path, arena: Buffer | None = None) -> None:
        self.dnnl, self.program = dnnl, program
        self.creator = Creator(dnnl, program.shapes, program.layouts, program.offsets, program.types)
        self._values = WeightValues(folder, program.weights, program.shapes)
        if arena is None:
            data = np.frombuffer(mmap.mmap(-1, max(1, program.arena_bytes)), np.uint8)
            arena = Buffer(data, data.ctypes.data)
        self.arena = arena

    def through(self, dnnl: Dnnl) -> Executable:
        """The same files and memory, used through another handle of the library; closed with this one.

        An engine is of one handle, and what it makes.
        """
        found, p = copy.copy(self), self.program
        found.dnnl, found.creator = dnnl, Creator(dnnl, p.shapes, p.layouts, p.offsets, p.types)
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
