"""Reads the files of a plan: machine code of kernels, packed weights, or the model's, which are then packed for its kernels.

Machine code is kept in one file, by what it was compiled from and for; what is stale or damaged is not there. The first line is
JSON: for each code a key, its size and its digest. The codes follow it in that order. A key is a digest of the source, its
options and what the processor says its code depends on, so that code of another driver, device or source is never found. A
digest is compared before a code is used: a flipped byte or a file that was cut short makes it absent.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.graph.steps import Step
from edgeplan.opencl.building import ProgramSource
from edgeplan.opencl.launch import Packing, packed_buffer
from edgeplan.runtime.executable import allocate, read_into
from edgeplan.runtime.folder import GPU_START, file_stamp, plan_again
from edgeplan.runtime.gpu_program import PACKED_NAME, PAGE_BYTES, GpuProgram, ModelSource, PackedWeights, WeightPlace
from edgeplan.runtime.transform import folded, values_of
from edgeplan.support.files import files_sha256, write_atomically
from edgeplan.support.lazy import sha256

Array = npt.NDArray[np.float32]
_FLOAT_BYTES = 4
_FORMAT = 1
_MOST_BYTES = 1 << 30


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    key: str
    size: int
    sha256: str


class _Head(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    format: int
    entries: tuple[_Entry, ...]


def code_key(identity: str, source: ProgramSource) -> str:
    """Return the key of a source's code for a processor whose code depends on `identity`."""
    parts = (identity, source.text, *source.options)
    return str(sha256("\0".join(parts).encode()).hexdigest())


class CodeCache:
    """A file of machine code, read whole; it need not be there. Codes depend on the processor's `identity`.

    The problem says why nothing is found in it, if something is wrong with the whole file; "".
    """

    def __init__(self, path: Path, identity: str) -> None:
        self.path, self.problem, self._identity = path, "", identity
        self._parts: dict[str, tuple[memoryview, str]] = {}  # with what their digests are to be
        try:
            if path.stat().st_size > _MOST_BYTES:
                self.problem = "is too large"
                return
            raw = path.read_bytes()
        except OSError as error:
            self.problem = f"cannot be read: {error.strerror}"
            return
        content, at, end = memoryview(raw), raw.find(b"\n") + 1, len(raw)
        try:
            head = msgspec.json.decode(content[:at], type=_Head)
        except msgspec.DecodeError:
            self.problem = "is damaged"
            return
        if head.format != _FORMAT:
            self.problem = f"is of format {head.format}"
            return
        for entry in head.entries:
            if not 0 <= entry.size <= end - at:
                self.problem = "was cut short"
                return
            self._parts[entry.key] = content[at : at + entry.size], entry.sha256
            at += entry.size

    def get(self, source: ProgramSource) -> bytes | None:
        """Return the code of a source; None where there is none for this processor, or a damaged one."""
        content, digest = self._parts.get(code_key(self._identity, source), (b"", ""))
        return bytes(content) if sha256(content).hexdigest() == digest else None


def write_codes(path: Path, identity: str, codes: Mapping[ProgramSource, bytes]) -> None:
    """Write the machine code of sources for a processor, atomically."""
    entries = tuple(_Entry(code_key(identity, s), len(code), str(sha256(code).hexdigest())) for s, code in codes.items())
    head = msgspec.json.encode(_Head(_FORMAT, entries)) + b"\n"
    write_atomically(path, lambda temporary: temporary.write_bytes(b"".join((head, *codes.values()))))


class WeightFiles:
    """Weight files are open for a program: those of the model that it reads, and the packed weights of the plan's folder."""

    def __init__(self, program: GpuProgram, folder: Path) -> None:
        self._folder, self._files, self._packed = folder, dict[int, int](), -1
        weights = [step.weights for step in program.steps if step.weights is not None]
        try:
            for number in program.files_read:
                self._files[number] = _opened(_found(program.files[number], folder))
            if any(one.cached for one in weights):
                self._packed = _opened(folder / PACKED_NAME)
        except BaseException:
            self.close()
            raise

    def parts(self, weights: PackedWeights) -> list[tuple[int, int, int]]:
        """List what is read for a step: descriptor, first byte, and the one after the last."""
        if weights.cached:
            return [(self._packed, weights.offset, weights.offset + _FLOAT_BYTES * weights.elements)]
        return [(self._files[place.file], place.offset, place.offset + place.size) for place in weights.places]

    @property
    def packed(self) -> tuple[int, int]:
        """Return the descriptor of the packed weights and the file's size."""
        return self._packed, os.fstat(self._packed).st_size

    def map_packed(self) -> npt.NDArray[np.uint8]:
        """Map all packed weights of the plan folder into memory."""
        descriptor, size = self.packed
        try:
            return np.frombuffer(mmap.mmap(descriptor, size, prot=mmap.PROT_READ), np.uint8)
        except (OSError, ValueError) as error:
            where = str(self._folder / PACKED_NAME)
            raise ModelError(f"cannot map the weights: {error}", where=where, next_step=plan_again(GPU_START)) from error

    def read_packed(self, weights: PackedWeights) -> Array:
        """Read packed weights from the plan folder."""
        data = allocate(_FLOAT_BYTES * weights.elements, PAGE_BYTES).data  # a device that shares it uses it in place
        self._fill(self._packed, data, weights.offset, str(self._folder / PACKED_NAME))
        return data.view(np.float32)

    def read_raw(self, weights: PackedWeights) -> Mapping[str, npt.NDArray[Any]]:
        """Read the weights of a step as the model holds them: role -> values."""
        return {place.role: self._values(place) for place in weights.places}

    def _values(self, place: WeightPlace) -> npt.NDArray[Any]:
        data = np.empty(place.size, np.uint8)
        self._fill(self._files[place.file], data, place.offset, place.role)
        return values_of(data, place.stride, place.dtype).reshape(place.shape)

    def _fill(self, descriptor: int, data: npt.NDArray[np.uint8], offset: int, where: str) -> None:
        try:
            whole = read_into(descriptor, data, offset)
        except OSError as error:
            what = f"cannot read the weights: {error.strerror}"
            raise ModelError(what, where=where, next_step="check the disk, then run again") from error
        if not whole:
            raise ModelError("the weights end too soon", where=where, next_step=plan_again(GPU_START))

    def close(self) -> None:
        """Close the files that are held open."""
        for descriptor in (*self._files.values(), *([self._packed] if self._packed >= 0 else [])):
            os.close(descriptor)
        self._files, self._packed = {}, -1


def packed_of(weights: PackedWeights, raw: Mapping[str, npt.NDArray[Any]]) -> Array:
    """Pack the weights of a step, role -> values, as its kernels read them; some values may be overwritten."""
    step = Step("", weights.kind, (), (), (), settings=MappingProxyType(weights.settings))
    return packed_buffer(Packing(weights.transform, weights.elements, weights.sizes), folded(step, raw))


def sources_of(model: Path, names: Sequence[str]) -> tuple[ModelSource, ...]:
    """Describe the files of a model that weights lie in, by their paths relative to its folder."""
    paths = [model.parent / name for name in names]
    return tuple(ModelSource(str(path.resolve()), file_stamp(path), files_sha256([path])) for path in paths)


def _found(source: ModelSource, folder: Path) -> Path:
    """The file that was planned: where it was, or beside the plan."""
    made = Path(source.path)
    for path in (made, folder / made.name, folder.parent / made.name):
        try:
            if file_stamp(path) == source.stamp or files_sha256([path]) == source.sha256:
                return path
        except OSError:
            continue
    what = f"the model's file {made.name!r} is not found, or was changed since it was planned"
    raise ModelError(what, where=str(made), next_step=f"put it back, or {plan_again(GPU_START)}")


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        what = f"cannot open the weights: {error.strerror}"
        raise ModelError(what, where=str(path), next_step=plan_again(GPU_START)) from error
