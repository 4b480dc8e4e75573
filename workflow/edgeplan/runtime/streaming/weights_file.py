"""The file of a program's weights: segments of whole pages as kernels read them, whole or rounded to half their bytes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Shape
from edgeplan.graph.shapes import FLOAT16, FLOAT32
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.creation import aligned
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Buffer, Worker, allocate, transformed
from edgeplan.runtime.ranges import Ranged
from edgeplan.runtime.streaming.build import Built
from edgeplan.runtime.streaming.schedules import BF16, F16, HALF_BYTES, VALUE_BYTES, Stored
from edgeplan.runtime.transform import Array, values_of, widened
from edgeplan.runtime.weights import WeightLocation, locate_weights

_SIGN, _INFINITE = 0x7FFFFFFF, 0x7F800000  # of the bits of a float32: all but the sign; above which there are no numbers
_TOO_LARGE = 0x7F7F8000  # from here on a finite number is nearer to infinity than to the largest half
_ROUNDED_AT_ONCE = 1 << 20
_LARGEST_FLOAT16 = 65520  # from here on a number is nearer to infinity than to the largest float16


def write_weights(dnnl: Dnnl, model: Path, lowered: Lowered, built: Built, target: Path) -> None:
    """Write the weights of all steps, each a segment of whole pages as its kernel reads it, in order of execution."""
    with target.open("wb") as file:
        for at, content in contents(dnnl, model, lowered, built):
            file.seek(at)
            file.write(content)
        file.truncate(built.program.weights_bytes)
        file.flush()
        os.fsync(file.fileno())


def contents(dnnl: Dnnl, model: Path, lowered: Lowered, built: Built) -> Iterator[tuple[int, memoryview]]:
    """The weights of all steps, each once: where in the file they lie, and their bytes; see `write_weights`."""
    worker, written = Worker(dnnl, built.program.threads), set[int]()
    with _Values(model, lowered, built.ranged) as values:
        for table in built.tables:
            yield table.at, values.whole(table.weight).data
        for segment, executed in zip(built.segments, built.program.steps, strict=True):
            if segment is None or executed.weights_at in written:
                continue
            written.add(executed.weights_at)
            halved = executed.stored_bytes < executed.weight_bytes
            for step, created, at in segment.parts:
                raw = {role: values.of(name) for role, name in step.weights.items()}
                begin = executed.weights_at + (HALF_BYTES * at // VALUE_BYTES if halved else at)
                if created is not None:
                    made = transformed(dnnl, step, created, raw, worker).data[: created.weight_bytes]
                    halves = built.program.halves
                    yield begin, rounded(made.view(np.float32), halves).view(np.uint8).data if halved else made.data
                    continue
                for value in raw.values():
                    yield begin, value.reshape(-1).view(np.uint8).data
                    begin += aligned(value.nbytes)


def made_weights(dnnl: Dnnl, model: Path, lowered: Lowered, built: Built) -> Buffer:
    """The weights of a program as its file holds them, which is not written: a session needs it once."""
    found = allocate(built.program.weights_bytes)
    for at, content in contents(dnnl, model, lowered, built):
        found.data[at : at + len(content)] = content
    return found


def halvable(model: Path, lowered: Lowered, kind: Stored = BF16) -> frozenset[str]:
    """Names of the weights that can be stored in half their bytes: float32, and none becomes infinite by that.

    Masks of attention hold numbers that would.
    """
    names = {name for step in lowered.steps for name in step.weights.values() if lowered.types.get(name, FLOAT32) == FLOAT32}
    with _Values(model, lowered, Ranged(lowered, {}, {}, ())) as values:
        return frozenset(name for name in names if stay_finite(values.whole(name), kind))


class _Values:
    """Values of weights and of parts of them, copied out of the mapped model."""

    def __init__(self, model: Path, lowered: Lowered, ranged: Ranged) -> None:
        self._folder, self._ranged, self._shapes = model.parent, ranged, lowered.shapes
        self._locations: Mapping[str, WeightLocation] = locate_weights(model, lowered)
        self._maps: dict[str, mmap.mmap] = {}
        self._widened: dict[str, Array] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._maps.clear()

    def of(self, name: str) -> Array:
        """The values of a weight, or of a part of one, row-major and the caller's own."""
        part = self._ranged.weights.get(name)
        if part is None:
            return self.whole(name).copy()
        index = (slice(None),) * part.axis + (slice(part.start, part.stop),)
        return np.ascontiguousarray(self.whole(part.whole)[index]).copy()

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
        data = np.frombuffer(self._map(location.file), np.uint8, location.size, location.offset)
        if location.stride != np.dtype(location.dtype).itemsize:
            return values_of(data, location.stride, location.dtype).reshape(shape)
        return np.ndarray(shape, location.dtype, data.data)

    def _map(self, file: str) -> mmap.mmap:
        if file not in self._maps:
            path = self._folder / file
            try:
                with path.open("rb") as opened:
                    self._maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise ModelError(f"cannot read the weights: {error}", where=str(path), next_step="check the path") from error
        return self._maps[file]


def rounded(values: npt.NDArray[np.float32], kind: Stored = BF16) -> npt.NDArray[np.uint16]:
    """The nearest halves of some values, the even one of two as near; what is no number stays none.

    A finite value whose magnitude is above 3.396e38, as float16 above 65520, becomes infinite.
    """
    if kind == F16:
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    flat = np.ascontiguousarray(values).reshape(-1).view(np.uint32)
    found = np.empty(flat.size, np.uint16)
    for at in range(0, flat.size, _ROUNDED_AT_ONCE):
        bits = flat[at : at + _ROUNDED_AT_ONCE]
        upper = bits >> 16
        nearest = (bits + (np.uint32(0x7FFF) + (upper & np.uint32(1)))) >> 16
        found[at : at + bits.size] = np.where((bits & np.uint32(_SIGN)) > _INFINITE, upper | np.uint32(0x40), nearest)
    return found.reshape(values.shape)


def stay_finite(values: npt.NDArray[np.float32], kind: Stored = BF16) -> bool:
    """Tell whether no finite value becomes infinite when it is rounded."""
    flat = values.reshape(-1)
    for at in range(0, flat.size, _ROUNDED_AT_ONCE):
        if kind == F16:
            sizes = np.abs(flat[at : at + _ROUNDED_AT_ONCE])
            if ((sizes >= _LARGEST_FLOAT16) & np.isfinite(sizes)).any():
                return False
            continue
        bits = np.ascontiguousarray(flat[at : at + _ROUNDED_AT_ONCE]).view(np.uint32) & np.uint32(_SIGN)
        if ((bits >= _TOO_LARGE) & (bits < _INFINITE)).any():
            return False
    return True
