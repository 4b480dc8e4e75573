"""From a model to a program that streams: steps cut into ranges, kernels chosen, buffers named, weights laid out."""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np

from edgeplan.errors import ModelError
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.candidates import default
from edgeplan.runtime.creation import Created, Creator, Implementation, aligned
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Worker, transformed
from edgeplan.runtime.layouts import size_bytes
from edgeplan.runtime.memory import floats
from edgeplan.runtime.program import activation_layouts, shared_buffers, signature, step_candidates
from edgeplan.runtime.ranges import Ranged, cut
from edgeplan.runtime.streaming.program import (
    PAGE_BYTES,
    WEIGHTS,
    Border,
    Buffer,
    Executed,
    Kernel,
    Operand,
    StreamProgram,
)
from edgeplan.runtime.transform import Array
from edgeplan.runtime.weights import WeightLocation, locate_weights

_SHIFT = 40  # a token names a buffer above this bit, and an offset in it below


@dataclass(frozen=True, slots=True)
class Built:
    """A program, with what its weights are made from.

    Attributes:
        program: what is executed.
        steps: its steps as lowered.
        created: the same, with their descriptors.
        ranged: how steps were cut.
        origin: for each step of the program, the number of the lowered step that it is (a part of).
    """

    program: StreamProgram
    steps: tuple[Step, ...]
    created: tuple[Created, ...]
    ranged: Ranged
    origin: tuple[int, ...]


def build(
    dnnl: Dnnl,
    lowered: Lowered,
    home: str,
    limit: Callable[[Step], int],
    threads: int = 1,
    choose: Callable[[tuple[Implementation, ...]], Implementation] = default,
) -> Built:
    """Build a program.

    Args:
        dnnl: the library.
        lowered: the model's steps.
        home: layout of 4-D activations inside the model.
        limit: the most bytes of weights that a part of a step should have.
        threads: of each kernel.
        choose: picks among a step's candidates.

    Raises:
        ModelError: oneDNN offers no implementation of a step.
    """
    dnnl.set_threads(threads)
    whole = activation_layouts(lowered, home)
    ranged = cut(lowered, whole, dnnl.info.block, limit)
    layouts = {**whole, **{part: whole[found.whole] for part, found in ranged.tensors.items()}}
    places = _Places(lowered, ranged, layouts, dnnl.info.block)
    creator = Creator(dnnl, ranged.lowered.shapes, layouts, places.tokens)
    offered = step_candidates(dnnl, ranged.lowered, home, layouts)
    chosen = [_frugal(creator, step, choices, choose) for step, choices in zip(ranged.lowered.steps, offered, strict=True)]
    made = [creator.create(step, choice, generate=False) for step, choice in zip(ranged.lowered.steps, chosen, strict=True)]
    run = [k for k, created in enumerate(made) if created.calls]  # views take no time
    steps = tuple(ranged.lowered.steps[k] for k in run)
    created = tuple(made[k] for k in run)
    buffers = places.buffers(steps, created)
    kernels, numbers = _kernels(creator, steps, [chosen[k] for k in run], created)
    executed, end = _executed(steps, created, numbers, places)
    used = {t for kernel in kernels for t in (*kernel.step.reads, *kernel.step.outputs)}
    named = used | {name for kernel in kernels for name in kernel.step.weights.values()}
    program = StreamProgram(
        lowered.name,
        threads,
        (dnnl.info.version, dnnl.info.commit, dnnl.info.isa),
        kernels,
        executed,
        buffers,
        tuple(Border(name, lowered.shapes[name], places.operand(places.tokens[name])) for name in lowered.inputs),
        tuple(Border(name, lowered.shapes[name], places.operand(places.tokens[name])) for name in lowered.outputs),
        MappingProxyType({name: ranged.lowered.shapes[name] for name in sorted(named)}),
        MappingProxyType({name: layouts[name] for name in sorted(used)}),
        end,
    )
    return Built(program, steps, created, ranged, tuple(ranged.origin[k] for k in run))


def _frugal(
    creator: Creator,
    step: Step,
    offered: tuple[Implementation, ...],
    choose: Callable[[tuple[Implementation, ...]], Implementation],
) -> Implementation:
    """The choice among the candidates that need least memory besides: conversions take copies of inputs and outputs."""
    scratch = {c: creator.create(step, c, generate=False).scratch_bytes for c in offered}
    least = min(scratch.values())
    wanted = choose(offered)
    if scratch[wanted] <= least:
        return wanted
    frugal = tuple(c for c in offered if scratch[c] == least)
    return choose(frugal) if not frugal[0].kernel.startswith("ref") else wanted


class _Places:
    """The buffer of every activation, and tokens that stand for places in them until there are addresses."""

    def __init__(self, lowered: Lowered, ranged: Ranged, layouts: Mapping[str, str], block: int) -> None:
        self._lowered, self._ranged = lowered, ranged
        whole = {tensor: layout for tensor, layout in layouts.items() if tensor not in ranged.tensors}
        root = shared_buffers(lowered, whole, block)
        self._sizes: dict[str, int] = {}
        for tensor, buffer in root.items():
            size = aligned(size_bytes(lowered.shapes[tensor], layouts[tensor], block))
            self._sizes[buffer] = max(self._sizes.get(buffer, 0), size)
        self._names = list(self._sizes)
        numbers = {name: number for number, name in enumerate(self._names)}
        self._root = root
        tokens = {tensor: numbers[buffer] << _SHIFT for tensor, buffer in root.items()}
        parts = {name: tokens[part.whole] + part.offset for name, part in ranged.tensors.items()}
        self.tokens: Mapping[str, int] = {**tokens, **parts}
        self._scratch: dict[int, int] = {}
        self._order: dict[int, int] = {}

    def operand(self, token: int) -> Operand:
        """What a token stands for."""
        return Operand(self._order[token >> _SHIFT], token & ((1 << _SHIFT) - 1))

    def buffers(self, steps: Sequence[Step], created: Sequence[Created]) -> tuple[Buffer, ...]:
        """All buffers in use, with their lifetimes; then the scratch of each step that needs any."""
        lives: dict[str, list[int]] = {}
        parts = self._ranged.tensors
        uses = [(t, 0) for t in self._lowered.inputs] + [(t, len(steps) - 1) for t in self._lowered.outputs]
        uses += [(t, k) for k, step in enumerate(steps) for t in (*step.reads, *step.outputs)]
        for tensor, when in uses:
            lives.setdefault(self._root[parts[tensor].whole if tensor in parts else tensor], []).append(when)
        found: list[Buffer] = []
        for number, name in enumerate(self._names):
            if name in lives:
                self._order[number] = len(found)
                found.append(Buffer(name, self._sizes[name], min(lives[name]), max(lives[name]) + 1))
        for k, made in enumerate(created):
            if made.scratch_bytes:
                self._scratch[k] = len(found)
                found.append(Buffer(f"scratch of {steps[k].name}", aligned(made.scratch_bytes), k, k + 1))
        return tuple(found)

    def scratch(self, step: int) -> int:
        """The number of a step's scratch among the buffers."""
        return self._scratch[step]


def _kernels(
    creator: Creator, steps: Sequence[Step], chosen: Sequence[Implementation], created: Sequence[Created]
) -> tuple[tuple[Kernel, ...], list[int]]:
    """The distinct kernels, and which one each step runs."""
    known: dict[object, int] = {}
    kernels: list[Kernel] = []
    numbers = []
    for step, choice, made in zip(steps, chosen, created, strict=True):
        shape = tuple(tuple(a.number for a in call.arguments) for call in made.calls)
        key = (signature(creator, step), choice, shape)
        if key not in known:
            known[key] = len(kernels)
            kernels.append(Kernel(step, choice))
        numbers.append(known[key])
    return tuple(kernels), numbers


def _executed(
    steps: Sequence[Step], created: Sequence[Created], kernels: Sequence[int], places: _Places
) -> tuple[tuple[Executed, ...], int]:
    """The steps, and the size of the file of their weights."""
    found: list[Executed] = []
    at = 0
    for k, (step, made, kernel) in enumerate(zip(steps, created, kernels, strict=True)):

        def operand(region: str, offset: int, k: int = k) -> Operand:
            if region == "weights":
                return Operand(WEIGHTS, offset)
            return places.operand(offset) if region == "arena" else Operand(places.scratch(k), offset)

        calls = tuple(tuple(operand(a.place.region, a.place.offset) for a in call.arguments) for call in made.calls)
        size = -(-made.weight_bytes // PAGE_BYTES) * PAGE_BYTES
        found.append(Executed(step.name, kernel, calls, at, size))
        at += size
    return tuple(found), at


def write_weights(dnnl: Dnnl, model: Path, lowered: Lowered, built: Built, target: Path) -> None:
    """Write the weights of all steps, each a segment of whole pages in the layout that its kernel reads, in order of execution.

    Args:
        dnnl: the library.
        model: the ONNX file.
        lowered: its steps, before they were cut.
        built: the program.
        target: the file to write.

    Raises:
        ModelError: the weights cannot be read.
        OSError: the file cannot be written.
    """
    worker = Worker(dnnl, built.program.threads)
    with _Values(model, lowered, built.ranged) as values, target.open("wb") as file:
        for step, created, executed in zip(built.steps, built.created, built.program.steps, strict=True):
            if not executed.weight_bytes:
                continue
            raw = {role: values.of(name) for role, name in step.weights.items()}
            made = transformed(dnnl, step, created, raw, worker)
            file.write(made.data[: created.weight_bytes].data)
            file.write(bytes(executed.weight_bytes - created.weight_bytes))
        file.flush()
        os.fsync(file.fileno())


class _Values:
    """Values of weights and of parts of them, copied out of the mapped model."""

    def __init__(self, model: Path, lowered: Lowered, ranged: Ranged) -> None:
        self._folder, self._ranged, self._shapes = model.parent, ranged, lowered.shapes
        self._locations: Mapping[str, WeightLocation] = locate_weights(model, lowered)
        self._maps: dict[str, mmap.mmap] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._maps.clear()

    def of(self, name: str) -> Array:
        """The values of a weight, or of a part of one, row-major and the caller's own."""
        part = self._ranged.weights.get(name)
        if part is None:
            return self._whole(name).copy()
        index = (slice(None),) * part.axis + (slice(part.start, part.stop),)
        return np.ascontiguousarray(self._whole(part.whole)[index]).copy()

    def _whole(self, name: str) -> Array:
        location, shape = self._locations[name], self._shapes[name]
        data = np.frombuffer(self._map(location.file), np.uint8, location.size, location.offset)
        if location.stride != np.dtype(np.float32).itemsize:
            return floats(data, location.stride).reshape(shape)
        return np.ndarray(shape, np.float32, data.data)

    def _map(self, file: str) -> mmap.mmap:
        if file not in self._maps:
            path = self._folder / file
            try:
                with path.open("rb") as opened:
                    self._maps[file] = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            except (OSError, ValueError) as error:
                raise ModelError(f"cannot read the weights: {error}", where=str(path), next_step="check the path") from error
        return self._maps[file]
