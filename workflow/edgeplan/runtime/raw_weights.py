"""Raw weights in the files of the model, read by their offsets, and made into what the primitives read."""

from __future__ import annotations

import ctypes
import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace as changed

from edgeplan.errors import FormatError, ModelError
from edgeplan.graph.ir import BYTES_PER_ELEMENT
from edgeplan.graph.steps import Step
from edgeplan.runtime import constants
from edgeplan.runtime.dnnl import Dnnl, Handle
from edgeplan.runtime.linked import AGAIN, LinkedProgram, LinkedStep, ModelFile, RawWeight
from edgeplan.runtime.memory import Bytes, ZeroedMemory, contents_stamp, read_fully
from edgeplan.runtime.objects import Objects
from edgeplan.runtime.signatures import ExecArg
from edgeplan.runtime.transform import Array, folded, values_of, widened
from edgeplan.runtime.weight_cache import settled, stamp

_NEAR_BYTES = 1 << 16  # weights of a step this near to each other are read by one call
_ALIGNMENT = 64
_CHUNK_BYTES = 1 << 20


def file_sha256(descriptor: int) -> str:
    """Hash of an open file's contents."""
    with open(descriptor, "rb", closefd=False) as file:  # a path may lead to another by now
        file.seek(0)
        return hashlib.file_digest(file, "sha256").hexdigest()


class RawFiles:
    """The files of a model; once they are open, they are known to be those that the plan was made for.

    Args:
        program: whose files.
        folder: of the plan; files beside it in the folder come before those at their old paths.

    Attributes:
        hashed: numbers of the files that were read whole, since their stamps were not those of the plan.
        renewed: by number, files as they are known from now on: of the same contents under another stamp.
    """

    def __init__(self, program: LinkedProgram, folder: Path) -> None:
        self._program, self._folder = program, folder
        self._descriptors: list[int] = []
        self._opened: list[tuple[int, int]] = []
        self._used: set[int] = set()
        self._missing = ""
        self.hashed: set[int] = set()
        self.renewed: dict[int, ModelFile] = {}

    def open(self) -> None:
        """Open all files that are there."""
        for number in range(len(self._program.files)):
            self._descriptors.append(self._open(number))

    def _open(self, number: int) -> int:
        path = self._program.files[number].path
        for place in (os.path.join(self._folder, os.path.basename(path)), path):  # noqa: PTH118, PTH119  a start waits for it
            try:
                descriptor = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as error:
                problem = f"cannot open {place}: {error.strerror}"
                continue
            self._opened.append(contents_stamp(descriptor))
            try:
                same = self._is_same(number, descriptor)
            except OSError as error:
                self._give_up(descriptor)
                next_step = "check the disk, then run again"
                raise ModelError(f"cannot read the model: {error.strerror}", where=place, next_step=next_step) from error
            if not same:
                self._give_up(descriptor)
                raise FormatError("the model changed since the plan was made", where=place, next_step=AGAIN)
            return descriptor
        self._missing = self._missing or problem  # no matter while all weights come from the cache
        self._opened.append((0, 0))
        return -1

    def _is_same(self, number: int, descriptor: int) -> bool:
        """Tell whether a file is that of the plan. Under another stamp (copied, touched, its time put back) contents decide."""
        file, status = self._program.files[number], os.fstat(descriptor)
        found = stamp(status)
        if found == file.stamp:
            return True
        if status.st_size != file.size:
            return False
        self.hashed.add(number)
        if file_sha256(descriptor) != file.sha256:
            return False
        if settled(status):
            self.renewed[number] = changed(file, stamp=found)
        return True

    def _give_up(self, descriptor: int) -> None:
        os.close(descriptor)
        self.close()

    def changed(self) -> str:
        """Where a file lies that weights were read from and whose contents changed since it was opened; "" if none."""
        for number in sorted(self._used):
            if contents_stamp(self._descriptors[number]) != self._opened[number]:
                return self._program.files[number].path
        return ""

    def close(self) -> None:
        """Close all files of the model."""
        for descriptor in self._descriptors:
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptors.clear()

    def places(self, step: LinkedStep) -> list[tuple[int, int, int]]:
        """Where a step's weights lie: descriptor, first byte and the one after the last, of files that are there."""
        found = [(self._descriptors[w.file], w.offset, w.offset + w.size) for w in step.raw]
        return [place for place in found if place[0] >= 0]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return the descriptors of the files that are there."""
        return tuple(d for d in self._descriptors if d >= 0)

    def read(self, wanted: tuple[RawWeight, ...], staging: Staging) -> Mapping[str, Array]:
        """The raw weights of a step: role -> values, which lie in `staging` until its next use."""
        found: dict[str, Array] = {}
        if not wanted:
            return found
        largest = max(wanted, key=lambda w: w.size)
        first = min(w.offset for w in wanted)
        last = max(w.offset + w.size for w in wanted)
        total = sum(w.size for w in wanted)
        near = len({w.file for w in wanted}) == 1 and last - first <= total + _NEAR_BYTES
        groups = [(first, last, wanted)] if near else [(w.offset, w.offset + w.size, (w,)) for w in wanted]
        memory = staging.take(total + _NEAR_BYTES + _ALIGNMENT * len(wanted))
        at = 0
        for start, stop, weights in groups:
            lead = largest.offset - start if near else 0
            at += -(at + lead) % _ALIGNMENT  # the largest is aligned
            data = memory[at : at + stop - start]
            self._fill(weights[0].file, data.data, start)
            for w in weights:
                piece = data[w.offset - start : w.offset - start + w.size]
                aligned = w.stride != BYTES_PER_ELEMENT[w.dtype] or not (at + w.offset - start) % _ALIGNMENT
                found[w.role] = values_of(piece if aligned else piece.copy(), w.stride, w.dtype).reshape(w.shape)
            at += stop - start
        return widened({w.role: found[w.role] for w in wanted}, {w.role: w.axis for w in wanted})

    def _fill(self, file: int, target: memoryview, offset: int) -> None:
        name = self._program.files[file].path
        if self._descriptors[file] < 0:
            raise ModelError(self._missing, where=name, next_step="put the model back, or plan again")
        self._used.add(file)
        try:
            read_fully(self._descriptors[file], target, offset)
        except OSError as error:
            next_step = "check the disk, then run again"
            raise ModelError(f"cannot read the weights: {error.strerror}", where=name, next_step=next_step) from error
        except EOFError as error:
            raise ModelError(f"cannot read the weights: {error}", where=name, next_step="copy the model again") from error


class Staging:
    """Memory for raw weights on their way, reused from step to step. One for each thread."""

    def __init__(self) -> None:
        self._region: ZeroedMemory | None = None

    def take(self, size: int) -> Bytes:
        """So many bytes; what was taken before is given up."""
        if self._region is None or len(self._region.data) < size:
            self._region = ZeroedMemory(2 * size)
        return self._region.data[:size]


def transform(dnnl: Dnnl, objects: Objects, stream: Handle, step: LinkedStep, raw: Mapping[str, Array], address: int) -> None:
    """Write a step's transformed weights at an address: `step.weight_bytes` bytes, zero before."""
    shadow = Step(step.name, step.kind, (), (), (), settings=step.settings)
    for (target, source, offset, size, conversion), values in zip(step.slots, folded(shadow, raw), strict=True):
        written = address + offset
        if conversion < 0:
            ctypes.memmove(written, values.ctypes.data, size)
            continue
        primitive, described = objects.primitive(conversion)
        memories = [
            (constants.ARG_SRC, objects.memory(source, values.ctypes.data)),
            (constants.ARG_DST, objects.memory(target, written)),
        ]
        scratch = objects.scratchpad(described)
        if scratch is not None:
            memories.append((constants.ARG_SCRATCHPAD, scratch[0]))
        arguments = (ExecArg * len(memories))(*[ExecArg(*pair) for pair in memories])
        if status := dnnl.execute(primitive, stream.value, len(memories), arguments):
            dnnl.check(status, "dnnl_primitive_execute")
