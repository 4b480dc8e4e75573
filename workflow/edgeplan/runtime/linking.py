"""Linking: what a program's steps are in its file, decided when it is planned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
import numpy as np

from edgeplan.errors import DeviceError
from edgeplan.graph.shapes import FLOAT16, FLOAT32
from edgeplan.graph.steps import Setting, Step
from edgeplan.runtime.creation import Created, Creator, Implementation, Place
from edgeplan.runtime.dnnl import Unsupported
from edgeplan.runtime.program import Program
from edgeplan.runtime.program_file import STORED, Operation
from edgeplan.runtime.tape import Numbers, RecordedTape, Recorder
from edgeplan.runtime.transform import SCALE

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
    """One step under one implementation, with its calls (`RecordedTape.calls`).

    Attributes:
        source: "raw", "cached_read", "cached_mmap" or "none"; for later runs also "shared": what the cold start used.
        slots: weights as the primitives read them: descriptor there, descriptor in the file's order, offset among the step's
            transformed weights, size, primitive that converts (-1: same bytes).
        raw, kind, settings: what the transformed weights are made from, and how (`transform.folded`).
        place, segment: their offsets in the memory of the session, and in the cache, for which the checksum is.
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
    """Links the steps of one program, with the library that records its descriptors, for at most so many threads.

    `tape` is what the steps' calls need, `files` are of weights, relative to the model's folder, `scratch_bytes` what any of
    the steps needs.
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


class Instruction(NamedTuple):
    """A row of `Section.RECIPES`, whose `count` is `values` here; see native/src/program/format.h."""

    operation: int
    file: int = 0
    offset: int = 0
    values: int = 0
    stride: int = 0
    dtype: int = 0
    number: float = 0.0


@dataclass(frozen=True)
class _Values:
    """Values that instructions leave on top of the stack, and how many they are."""

    made: tuple[Instruction, ...]
    count: int

    def then(self, operation: Operation, number: float = 0.0) -> _Values:
        """Each value taken by itself."""
        return _Values((*self.made, Instruction(operation, number=float(np.float32(number)))), self.count)

    def filled(self, count: int) -> _Values:
        """One value that stands for all of them."""
        return self if self.count == count else _Values((*self.made, Instruction(Operation.FILL, values=count)), count)

    def by(self, operation: Operation, other: _Values, inner: int = 1) -> _Values:
        """Each with one of others, which change after so many values."""
        left = self.filled(other.count) if self.count == 1 else self
        return _Values((*left.made, *other.made, Instruction(operation, values=inner)), left.count)


class _Weights:
    """The raw weights of a step, by their roles."""

    def __init__(self, step: LinkedStep) -> None:
        self._raw = {weight.role: weight for weight in step.raw}
        self._settings: Mapping[str, Any] = step.settings
        self.roles = tuple(role for role in self._raw if not role.endswith(SCALE))

    def __contains__(self, role: str) -> bool:
        return role in self._raw

    def number(self, name: str) -> float:
        """A setting, as a float32."""
        return float(np.float32(self._settings[name]))

    def integer(self, name: str) -> int:
        """Number of a setting of the step."""
        return int(self._settings[name])

    def set(self, name: str) -> bool:
        """Tell whether there is a setting."""
        return name in self._settings

    def shape(self, role: str) -> tuple[int, ...]:
        """The shape of a weight."""
        return self._raw[role].shape

    def values(self, role: str) -> _Values:
        """A weight as numbers, as `transform.widened` gives it."""
        weight, scale = self._raw[role], self._raw.get(role + SCALE)
        found = _loaded(weight)
        return found if scale is None else found.by(Operation.MULTIPLY, _loaded(scale), prod(weight.shape[weight.axis + 1 :]))

    def is_numbers(self, role: str) -> bool:
        """Tell whether a weight is read as numbers of float32."""
        return self._raw[role].dtype in (FLOAT32, FLOAT16) or role + SCALE in self._raw

    def as_stored(self, role: str) -> _Values:
        """A weight as the file has it."""
        weight = self._raw[role]
        return _Values((Instruction(Operation.BYTES, weight.file, weight.offset, weight.size),), weight.size)


def _loaded(weight: RawWeight) -> _Values:
    count = prod(weight.shape)
    place = (weight.file, weight.offset, count, weight.stride, STORED.index(weight.dtype))
    return _Values((Instruction(Operation.LOAD, *place),), count)


def can_be_raw(step: Step, types: Mapping[str, str]) -> bool:
    """Tell whether native code can make the weights of a step from the model's file; those of others lie in the cache.

    `types` are those of tensors that are not of float32.
    """
    return step.kind in _RECIPES and (step.kind == "constant" or not any(name in types for name in step.weights.values()))


def recipes_of(step: LinkedStep) -> tuple[tuple[Instruction, ...], ...]:
    """The recipe of each slot of a step that can be raw, as `transform.folded` makes its values."""
    found = _RECIPES[step.kind](_Weights(step))
    if len(found) != len(step.slots):
        raise ValueError(f"step {step.name!r} has {len(step.slots)} weights, {len(found)} are made")
    return tuple(values.made for values in found)


def _scale(raw: _Weights) -> Sequence[_Values]:
    scale = _normalising(raw)
    moved = raw.values("bn_mean").by(Operation.MULTIPLY, scale)
    return scale, raw.values("bn_bias").by(Operation.SUBTRACT, moved)


def _normalising(raw: _Weights) -> _Values:
    root = raw.values("bn_variance").then(Operation.ADD_NUMBER, raw.number("epsilon")).then(Operation.ROOT)
    return raw.values("bn_scale").by(Operation.DIVIDE, root)


def _conv(raw: _Weights) -> Sequence[_Values]:
    weight, channels = raw.values("weight"), raw.shape("weight")[0]
    inner = prod(raw.shape("weight")[1:])
    bias = raw.values("bias") if "bias" in raw else None
    if "bn_scale" in raw:
        scale, mean = _normalising(raw), raw.values("bn_mean")
        weight = weight.by(Operation.MULTIPLY, scale, inner)
        bias = mean.then(Operation.NEGATE) if bias is None else bias.by(Operation.SUBTRACT, mean)
        bias = bias.by(Operation.MULTIPLY, scale).by(Operation.ADD, raw.values("bn_bias"))
    if "factor" in raw:
        factor = raw.values("factor")
        weight = weight.by(Operation.MULTIPLY, factor, inner)
        bias = bias and bias.by(Operation.MULTIPLY, factor)
    return _shifted(raw, weight, bias, channels)


def _deconv(raw: _Weights) -> Sequence[_Values]:
    bias = raw.values("bias") if "bias" in raw else None
    return _shifted(raw, raw.values("weight"), bias, raw.shape("weight")[1] * raw.integer("groups"))


def _shifted(raw: _Weights, weight: _Values, bias: _Values | None, channels: int) -> Sequence[_Values]:
    if "summand" in raw:
        summand = raw.values("summand")
        added = summand.then(Operation.ADD_NUMBER) if bias is None else bias.by(Operation.ADD, summand)
        bias = added.filled(channels)
    return (weight,) if bias is None else (weight, bias)


def _fc(raw: _Weights) -> Sequence[_Values]:
    weight, alpha, beta = raw.values("weight"), raw.number("alpha"), raw.number("beta")
    if alpha != 1:
        weight = weight.then(Operation.MULTIPLY_NUMBER, alpha)
    if "bias" not in raw:
        return (weight,)
    bias = raw.values("bias").filled(raw.shape("weight")[0 if raw.integer("transposed") else 1])
    return weight, bias.then(Operation.MULTIPLY_NUMBER, beta) if beta != 1 else bias


def _binary(raw: _Weights) -> Sequence[_Values]:
    operand = raw.values("operand")
    return (operand.then(Operation.MULTIPLY_NUMBER, raw.number("beta")) if raw.set("beta") else operand,)


def _concat(raw: _Weights) -> Sequence[_Values]:
    return [raw.values(role) for role in sorted(raw.roles, key=lambda role: int(role.removeprefix("part_")))]


def _layer_norm(raw: _Weights) -> Sequence[_Values]:
    return [raw.values(role) for role in ("scale", "shift") if role in raw]


def _constant(raw: _Weights) -> Sequence[_Values]:
    return (raw.values("value") if raw.is_numbers("value") else raw.as_stored("value"),)


_RECIPES: Mapping[str, Callable[[_Weights], Sequence[_Values]]] = MappingProxyType(
    {
        "conv": _conv,
        "deconv": _deconv,
        "fc": _fc,
        "scale": _scale,
        "binary": _binary,
        "concat": _concat,
        "layer_norm": _layer_norm,
        "constant": _constant,
    }
)
