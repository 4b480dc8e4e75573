"""The steps of one operator, being put together."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from edgeplan.graph import blocks
from edgeplan.graph.axis_matrices import taps
from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import BYTES_PER_ELEMENT, Operator, Shape
from edgeplan.graph.names import free
from edgeplan.graph.steps import Setting

#: Stands behind an operator's output in the names of activations between its steps, which are of the type that it writes.
INNER = ":inner"
#: Elements of a matrix that mixes places along an axis; along longer ones a compiled kernel does.
_LARGEST_MATRIX = 1 << 16
#: Pieces of an axis that are cut out and joined one by one.
_MOST_RUNS = 32
#: Where places of an axis begin (-1: none), and how many there are.
_Run = tuple[int, int]
#: What kernels that move elements take them for.
MOVED = MappingProxyType({1: "int8", 4: "int32", 8: "int64"})


def moved(dtype: str) -> str:
    """Return the type by which a kernel moves elements of another type."""
    return MOVED[BYTES_PER_ELEMENT[dtype]]


def bits(value: float, dtype: str) -> int:
    """Return a value as an integer of an element's size."""
    return int(np.array([value], dtype).view(moved(dtype))[0])


class Part(NamedTuple):
    """A part starts a step; it has the fields of `runtime.lowering.Draft`."""

    name: str
    kind: str
    members: list[str]
    inputs: list[str]
    outputs: list[str]
    weights: dict[str, str]
    settings: dict[str, Setting]


def inner(output: str, shape: Shape, shapes: dict[str, Shape], told: str = "") -> str:
    """Add an activation between the steps of the operator that writes an output; its name."""
    name = free(f"{output}{INNER}{told}", shapes)
    shapes[name] = shape
    return name


def part(op: Operator, kind: str, roles: Sequence[str], settings: Mapping[str, Setting]) -> Part:
    """Return the one step of an operator, whose weights have these roles."""
    weights = dict(zip(roles, op.weights, strict=False))
    return Part(op.name, kind, [op.name], list(op.inputs), list(op.outputs), weights, dict(settings))


class Chain:
    """A chain consists of several steps one after the other.

    Args:
        op: the operator.
        shapes: shape of every tensor; those between the steps are added.
        place: of the operator's outputs, which one these steps write; those of the first stand for the operator.
    """

    def __init__(self, op: Operator, shapes: dict[str, Shape], place: int = 0) -> None:
        self._op, self._shapes = op, shapes
        self._output, self._first = op.outputs[place], place == 0
        self._parts: list[Part] = []

    def step(
        self,
        kind: str,
        reads: Sequence[str],
        shape: Shape,
        settings: Mapping[str, Setting] | None = None,
        weights: Mapping[str, str] | None = None,
    ) -> str:
        """Add a step; the name of what it writes. The first one that is no reshape stands for the operator."""
        written = inner(self._output, shape, self._shapes, str(len(self._parts)))
        first = self._first and kind != "reshape" and not any(p.members for p in self._parts)
        name = self._op.name if self._first else self._output
        name = name if first else f"{name}:{len(self._parts)}"
        members = [self._op.name] if first else []
        self._parts.append(Part(name, kind, members, list(reads), [written], dict(weights or {}), dict(settings or {})))
        return written

    def reshaped(self, tensor: str, shape: Shape) -> str:
        """Return an activation in another shape, itself if it has that one."""
        return tensor if self._shapes[tensor] == shape else self.step("reshape", [tensor], shape)

    def raised(self, tensor: str, rank: int) -> str:
        """Return an activation with axes of size 1 before its own, as many axes as wanted in all."""
        shape = self._shapes[tensor]
        return self.reshaped(tensor, (1,) * (rank - len(shape)) + shape)

    def kernel(
        self,
        kernel: str,
        reads: Sequence[str],
        shape: Shape,
        block: tuple[int, ...],
        settings: Mapping[str, Setting] | None = None,
    ) -> str:
        """Return a compiled kernel; with a `form` among the settings it reads the tables of that, too."""
        return self.step("compiled", reads, shape, {"kernel": kernel, "block": block, **(settings or {})})

    def mixed(self, tensor: str, axis: int, out: int, settings: Mapping[str, Setting]) -> str:
        """Return an activation whose places along one axis are mixed into `out` ones (`axis_matrices`)."""
        shape = self._shapes[tensor]
        before, size, after = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
        if size * out > _LARGEST_MATRIX and out > 1:
            block, out_shape = blocks.mixed(before, size, after, out, taps(settings)), (*shape[:axis], out, *shape[axis + 1 :])
            return self.kernel(f"mixed_{FLOAT32}", [tensor], out_shape, block, {**settings, "size": size, "out": out})
        side = "left" if after > 1 else "right"
        flat = (before, size, after) if after > 1 else (before, size)
        written = (before, out, after) if after > 1 else (before, out)
        own: dict[str, Setting] = {**settings, "side": side, "size": size, "out": out}
        mixed = self.step("mix", [self.reshaped(tensor, flat)], written, own)
        return self.reshaped(mixed, (*shape[:axis], out, *shape[axis + 1 :]))

    def linear(self, tensor: str, factor: float, summand: float = 0.0) -> str:
        """Return an activation times a number, plus another."""
        return self.eltwise(tensor, "linear", factor, summand)

    def eltwise(self, tensor: str, algorithm: str, alpha: float = 0.0, beta: float = 0.0) -> str:
        """Return an element-wise operation of oneDNN."""
        return self.step("eltwise", [tensor], self._shapes[tensor], {"algorithm": algorithm, "alpha": alpha, "beta": beta})

    def transposed(self, tensor: str, permutation: tuple[int, ...]) -> str:
        """Return an activation with its axes in another order."""
        shape = self._shapes[tensor]
        return self.step("transpose", [tensor], tuple(shape[axis] for axis in permutation), {"permutation": permutation})

    def picked(self, tensor: str, axis: int, places: tuple[int, ...], dtype: str = FLOAT32, fill: int = 0) -> str:
        """Return an activation with some of the places along an axis, in any order and as often as wanted; -1: a value.

        Args:
            tensor: the activation.
            axis: of the places.
            places: which.
            dtype: its element type.
            fill: the value as an integer of an element's size.
        """
        shape, out = self._shapes[tensor], len(places)
        runs = _runs(places)
        if dtype == FLOAT32 and not fill and len(runs) <= _MOST_RUNS and shape[axis] > 1:
            return self._of_runs(tensor, axis, runs)
        block = blocks.picked(math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :]), dtype, out)
        settings: dict[str, Setting] = {"form": "pick", "places": places, "fill": fill, "dtype": moved(dtype)}
        return self.kernel(f"picked_{moved(dtype)}", [tensor], (*shape[:axis], out, *shape[axis + 1 :]), block, settings)

    def _of_runs(self, tensor: str, axis: int, runs: Sequence[_Run]) -> str:
        """Places side by side are cut out and joined."""
        size, parts = self._shapes[tensor][axis], dict[_Run, str]()
        wanted: list[_Run] = []
        for start, count in runs:
            whole, rest = divmod(count, size)  # as many zeros as there are places, again and again
            wanted += [(start, count)] if start >= 0 else [(-1, size)] * whole + [(-1, rest)] * bool(rest)
        for run in dict.fromkeys(wanted):
            start, count = run
            part = tensor if count == size else self.cut(tensor, axis, max(start, 0), count)
            parts[run] = part if start >= 0 else self.eltwise(part, "clip")  # to 0, whatever it holds
        out = sum(count for _, count in wanted)
        shape = (*self._shapes[tensor][:axis], out, *self._shapes[tensor][axis + 1 :])
        reads = [parts[run] for run in wanted]
        return reads[0] if len(reads) == 1 else self.step("concat", reads, shape, {"axis": axis})

    def repeated(self, tensor: str, out: Shape) -> str:
        """Return an activation in a shape whose sizes are multiples of its own, repeated along these axes."""
        tensor = self.raised(tensor, len(out))
        for axis, wanted in enumerate(out):
            size = self._shapes[tensor][axis]
            if size != wanted:
                tensor = self.picked(tensor, axis, tuple(i % size for i in range(wanted)))
        return tensor

    def cut(self, tensor: str, axis: int, start: int, count: int) -> str:
        """Return an activation with the places along an axis that lie side by side from one on."""
        shape = self._shapes[tensor]
        cut = (*shape[:axis], count, *shape[axis + 1 :])
        return self.step("split", [tensor], cut, {"axis": axis, "start": start})

    def finished(self, tensor: str) -> tuple[Part, ...]:
        """Return all steps, of which the last writes the operator's output `tensor`, in the operator's shape."""
        if not self._parts or self._shapes[tensor] != self._shapes[self._output] or self._parts[-1].outputs != [tensor]:
            tensor = self.step("reshape", [tensor], self._shapes[self._output])
        last = self._parts.pop()
        return (*self._parts, last._replace(outputs=[self._output]))


def _runs(places: Sequence[int]) -> list[_Run]:
    """Return places that follow each other, and those that there are none of, together."""
    found: list[_Run] = []
    for place in places:
        start, count = found[-1] if found else (0, 0)
        if count and place == (start + count if start >= 0 else -1):
            found[-1] = start, count + 1
        else:
            found.append((place, 1))
    return found
