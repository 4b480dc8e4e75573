"""Linking: what a program's steps are in its file, decided when it is planned."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from edgeplan.errors import DeviceError
from edgeplan.graph.steps import Setting, Step
from edgeplan.runtime.creation import Created, Creator, Implementation, Place
from edgeplan.runtime.dnnl import Unsupported
from edgeplan.runtime.program import Program
from edgeplan.runtime.tape import Numbers, RecordedTape, Recorder

_LOG = logging.getLogger(__name__)
_FLOAT_BYTES = 4


class RawWeight(NamedTuple):
    """Bytes of one weight in a file of the model (its position among `Linker.files`): little-endian, row-major.

    From one value to the next it is `stride` bytes. The role of scales is that of the bytes that they are of, along an axis,
    with an end of its own (`transform.widened`).
    """

    role: str
    file: int
    offset: int
    size: int
    shape: tuple[int, ...]
    stride: int = _FLOAT_BYTES
    dtype: str = "float32"
    axis: int = 0


class LinkedStep(msgspec.Struct):
    """One step under one implementation.

    Attributes:
        name: of the step.
        source: "raw", "cached_read", "cached_mmap" or "none"; for later runs also "shared": what the cold start used.
        calls: see `RecordedTape.calls`.
        slots: weights as the primitives read them: descriptor there, descriptor in the file's order, offset among the step's
            transformed weights, size, primitive that converts (-1: same bytes).
        weight_bytes: size of the transformed weights.
        raw: what they are made from.
        kind, settings: how they are made (`transform.folded`).
        place: offset of the transformed weights in the memory of the session.
        segment: their offset in the cache.
        checksum: of the transformed weights, for those in the cache.
    """

    name: str
    source: str
    calls: tuple[Numbers, ...]
    slots: tuple[tuple[int, int, int, int, int], ...]
    weight_bytes: int
    raw: tuple[RawWeight, ...]
    kind: str
    settings: dict[str, Setting]
    place: int = 0
    segment: int = 0
    checksum: int = 0

    @property
    def cached(self) -> bool:
        """Tell whether the step's transformed weights lie in the cache."""
        return self.source.startswith("cached")


class Linker:
    """Links the steps of one program.

    Args:
        recorder: the library that the program's descriptors are recorded with.
        program: implementations and buffers.
        threads: the most that execute.

    Attributes:
        tape: what the steps' calls need.
        files: of weights, relative to the model's folder.
        scratch_bytes: that any of the steps needs.
    """

    def __init__(self, recorder: Recorder, program: Program, threads: int) -> None:
        self._dnnl, self._most, self._program = recorder, threads, program
        self._creator = Creator(recorder, program.shapes, program.layouts, program.offsets, program.types)
        self.tape, self.files, self.scratch_bytes = RecordedTape(recorder), list[str](), 0

    def step(self, step: Step, choice: Implementation, source: str, threads: int) -> tuple[LinkedStep, Created]:
        """A step under an implementation, executed by so many threads; places and checksum are left 0.

        Some implementations are offered for some numbers of threads only: then the step is made for another.
        """
        created, threads = self._created(step, choice, threads)
        self.scratch_bytes = max(self.scratch_bytes, created.scratch_bytes)
        slots = {slot.offset: position for position, slot in enumerate(created.slots)}

        def at(place: Place) -> int:
            if place.region == "weights":
                return -1 - slots[place.offset]
            return place.offset + (self._program.scratch_offset if place.region == "scratch" else 0)

        linked = LinkedStep(
            step.name,
            source if slots else "none",
            self.tape.calls(created, threads, at),
            tuple(self._slots(created)),
            created.weight_bytes,
            tuple(row for role, name in step.weights.items() for row in self._raw(role, name)),
            step.kind,
            dict(step.settings) if slots else {},
        )
        return linked, created

    def _created(self, step: Step, choice: Implementation, wanted: int) -> tuple[Created, int]:
        failure: Exception | None = None
        for threads in dict.fromkeys((wanted, *range(1, self._most + 1))):
            self._dnnl.set_threads(threads)
            try:
                created = self._creator.create(step, choice, generate=False)
            except (DeviceError, Unsupported) as error:
                failure = failure or error
                continue
            finally:
                self._dnnl.set_threads(1)
            if threads != wanted:
                _LOG.warning("step %s: %s is offered for %d threads, not for %d", step.name, choice.name, threads, wanted)
            return created, threads
        raise failure or AssertionError

    def same_weights(self, one: Created, other: Created) -> bool:
        """Tell whether two implementations of a step read the same bytes as their weights."""
        pairs = zip(one.slots, other.slots, strict=True)
        return all(a.offset == b.offset and self._dnnl.equal(a.target, b.target) for a, b in pairs)

    def _raw(self, role: str, name: str) -> Iterator[RawWeight]:
        for end, part in self._program.weights[name].parts:
            if part.file not in self.files:
                self.files.append(part.file)
            shape = (part.count,) if end else tuple(self._program.shapes[name])
            file = self.files.index(part.file)
            yield RawWeight(role + end, file, part.offset, part.size, shape, part.stride, part.dtype, part.axis)

    def _slots(self, created: Created) -> Iterator[tuple[int, int, int, int, int]]:
        for slot in created.slots:
            conversion = -1
            if not self._dnnl.equal(slot.source.value, slot.target):
                conversion = self.tape.primitive_at(self._dnnl.reorder(slot.source.value, slot.target).value, 1)
            source, target = map(self.tape.descriptor_at, (slot.source.value, slot.target))
            yield target, source, slot.offset, slot.size, conversion
