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
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.graph.ir import BYTES_PER_ELEMENT
from edgeplan.graph.steps import Step
from edgeplan.runtime import constants
from edgeplan.runtime.creation import ALIGNMENT, Created, Creator, aligned
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.transform import SCALE, Array, folded, values_of, widened

if TYPE_CHECKING:
    from edgeplan.runtime.program import Program

_GAP_BYTES = 1 << 16  # weights this near to each other in a file are read by one call


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


@dataclass(frozen=True, slots=True)
class _Read:
    """One read of neighbouring weights: where in the file, and for each piece its role (or "" for a gap), place and size."""

    file: str
    offset: int
    pieces: tuple[tuple[str, int, int], ...]


class Executable:
    """A program with its files open and its arena allocated.

    Args:
        dnnl: the library.
        program: what to run.
        folder: where the model file lies.
        arena: memory for activations, of at least `program.arena_bytes`; None: its own.
    """

    def __init__(self, dnnl: Dnnl, program: Program, folder: Path, arena: Buffer | None = None) -> None:
        self.dnnl, self.program = dnnl, program
        self.creator = Creator(dnnl, program.shapes, program.layouts, program.offsets, program.types)
        self._files: dict[str, int] = {}
        try:
            for file in sorted({location.file for location in program.weights.values()}):
                self._files[file] = os.open(folder / file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            self.close()
            raise ModelError(
                f"cannot open the weights: {error.strerror}", where=str(folder / file), next_step="check the path"
            ) from error
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
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def read(self, index: int) -> Mapping[str, Array]:
        """Read a step's weights from the model's files: role -> values."""
        step, program = self.program.steps[index], self.program
        reads, size = self._reads(index)
        buffer = allocate(size)
        view = buffer.data.data
        for read in reads:
            self._fill(read, [view[at : at + count] for _, at, count in read.pieces])
        values = {}
        places = {role + end: place for role, name in step.weights.items() for end, place in program.weights[name].parts}
        for role, at, count in (piece for read in reads for piece in read.pieces if piece[0]):
            place = places[role]
            found = values_of(buffer.data[at : at + count], place.stride, place.dtype, place.rows)
            values[role] = found if role.endswith(SCALE) else found.reshape(program.shapes[step.weights[role]])
        return widened(values, {role: place.axis for role, place in places.items()})

    def _fill(self, read: _Read, pieces: list[memoryview]) -> None:
        offset = read.offset
        try:
            while pieces:
                got = os.preadv(self._files[read.file], pieces, offset)
                if not got:
                    raise ModelError(
                        f"{read.file} ends before byte {offset}", where=self.program.name, next_step="copy the model again"
                    )
                offset += got
                while pieces and got >= len(pieces[0]):
                    got -= len(pieces.pop(0))
                if got:
                    pieces[0] = pieces[0][got:]
        except OSError as error:
            raise ModelError(
                f"cannot read {read.file}: {error.strerror}",
                where=self.program.name,
                next_step="check the disk, then run again",
            ) from error

    def _reads(self, index: int) -> tuple[list[_Read], int]:
        """The reads of a step's weights, neighbours joined, and the bytes of the buffer they need."""
        step, weights = self.program.steps[index], self.program.weights
        found = [(role + end, place) for role, name in step.weights.items() for end, place in weights[name].parts]
        places = sorted((place.file, place.offset, role, place.size) for role, place in found)
        reads: list[_Read] = []
        at, end = 0, -1
        for file, offset, role, size in places:
            near = bool(reads) and reads[-1].file == file and 0 <= offset - end <= _GAP_BYTES
            pieces: tuple[tuple[str, int, int], ...] = ()
            if near and offset > end:
                pieces = (("", at, offset - end),)
                at += aligned(offset - end)
            pieces += ((role, at, size),)
            at += aligned(size)
            end = offset + size
            if near:
                reads[-1] = _Read(file, reads[-1].offset, reads[-1].pieces + pieces)
            else:
                reads.append(_Read(file, offset, pieces))
        return reads, at

    def activation(self, tensor: str) -> npt.NDArray[Any]:
        """A view of a row-major activation in the arena (the model's inputs and outputs are)."""
        program = self.program
        return self.arena.tensor(program.offsets[tensor], program.shapes[tensor], program.dtype(tensor))


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
