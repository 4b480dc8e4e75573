"""The file of a program's weights: segments of whole pages as kernels read them, whole or rounded to half their bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgeplan.graph.shapes import FLOAT32
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.creation import aligned
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Buffer, WeightValues, Worker, allocate, transformed
from edgeplan.runtime.ranges import WeightPart
from edgeplan.runtime.streaming.build import Built
from edgeplan.runtime.streaming.schedules import BF16, F16, HALF_BYTES, VALUE_BYTES, Stored
from edgeplan.runtime.weights import locate_weights

_SIGN, _INFINITE = 0x7FFFFFFF, 0x7F800000  # of the bits of a float32: all but the sign; above which there are no numbers
_ROUNDED_AT_ONCE = 1 << 20
_INFINITE_HALF = {BF16: 0x7F80, F16: 0x7C00}


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
    with _opened(model, lowered, built.ranged.weights) as values:
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
    with _opened(model, lowered, {}) as values:
        return frozenset(name for name in names if stay_finite(values.whole(name), kind))


def _opened(model: Path, lowered: Lowered, parts: Mapping[str, WeightPart]) -> WeightValues:
    return WeightValues(model.parent, locate_weights(model, lowered), lowered.shapes, parts)


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
    flat, infinite = values.reshape(-1), _INFINITE_HALF[kind]
    parts = (flat[at : at + _ROUNDED_AT_ONCE] for at in range(0, flat.size, _ROUNDED_AT_ONCE))
    return not any((np.isfinite(part) & (rounded(part, kind) & 0x7FFF == infinite)).any() for part in parts)
