"""Ranges of output channels: a step cut into several that each compute a part of its output, from a part of its weights.

At batch 1 a range of channels is a dense tensor at an offset in the layouts `nchw` and `blocked16` (whole blocks), and so is a
range of columns of one row. A part is an ordinary step over such tensors, run by the same kernels; nothing is copied. Columns
of several rows lie apart: such a part has the setting `written`, the sizes and then the strides, in elements, of its output.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import structs

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Shape
from edgeplan.graph.shapes import free
from edgeplan.graph.steps import Lowered, PostOp, Step
from edgeplan.runtime.layouts import NHWC

_FLOAT_BYTES = 4
_SPATIAL_RANK = 4
#: Columns of a fully connected layer are cut at multiples of the first of these that divides them.
_COLUMNS = (16, 8, 4)


@dataclass(frozen=True, slots=True)
class TensorPart:
    """A part of an activation: `whole`, from a byte on."""

    whole: str
    offset: int


@dataclass(frozen=True, slots=True)
class WeightPart:
    """A part of an initialiser: `whole`, the places `start` to `stop` along an axis."""

    whole: str
    axis: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Ranged:
    """Steps, some of them cut into parts, which follow each other.

    `tensors` and `weights` are parts of activations and of initialisers, and where they come from; `origin` is of each step the
    number of the step that it is (a part of).
    """

    lowered: Lowered
    tensors: Mapping[str, TensorPart]
    weights: Mapping[str, WeightPart]
    origin: tuple[int, ...]


def cut_ranges(lowered: Lowered, layouts: Mapping[str, str], block: int, limit: Callable[[Step], int]) -> Ranged:
    """Cut steps whose weights are large into parts of the same size, but for rounding to blocks of the layout `blocked16`.

    A part of a step should have at most `limit` bytes of weights; a step has at most as many parts as blocks.
    """
    cutter = _Cutter(lowered, layouts, block)
    return cutter.ranged([cutter.even_ends(step, limit(step)) for step in lowered.steps])


def cut_at(lowered: Lowered, layouts: Mapping[str, str], block: int, ends: Sequence[Sequence[int]]) -> Ranged:
    """Cut steps at given channels, at which parts end but for the last, multiples of `block`; none to leave a step whole."""
    cutter = _Cutter(lowered, layouts, block)
    for step, inner in zip(lowered.steps, ends, strict=True):
        channels = channels_of(lowered, step) if inner else 0
        why = cutter.obstacle(step) if inner else ""
        if not why and any(end % block for end in inner):
            why = f"its parts end at {list(inner)}, not at blocks of {block} channels"
        if not why and list(inner) != sorted({*inner} & set(range(1, channels))):
            why = f"its parts end at {list(inner)}, not between 0 and {channels}"
        if why:
            raise ModelError(f"step {step.name!r} cannot be cut: {why}", where=lowered.name, next_step="plan it whole")
    return cutter.ranged(ends)


def why_not_split(lowered: Lowered, layouts: Mapping[str, str], block: int, step: Step) -> str:
    """Why a step cannot be cut at a block of channels, in words; "" if it can."""
    return _Cutter(lowered, layouts, block).obstacle(step)


def channels_of(lowered: Lowered, step: Step) -> int:
    """Channels of a step's output, or columns of a linear layer's: what its ranges are of."""
    shape = lowered.shapes[step.outputs[0]]
    return shape[_axis(step, shape)]


def _axis(step: Step, shape: Shape) -> int:
    """Return the axis of an output's channels."""
    return 1 if step.kind == "conv" else len(shape) - 1


class _Cutter:
    """The parts of one model's steps."""

    def __init__(self, lowered: Lowered, layouts: Mapping[str, str], block: int) -> None:
        self._lowered, self._given, self._layouts, self._block = lowered, lowered.shapes, layouts, block
        self.shapes: dict[str, Shape] = {}
        self.tensors: dict[str, TensorPart] = {}
        self.weights: dict[str, WeightPart] = {}

    def ranged(self, ends: Sequence[Sequence[int]]) -> Ranged:
        """The steps, each cut at the given channels."""
        lowered = self._lowered
        steps, origin = list[Step](), list[int]()
        for number, (step, inner) in enumerate(zip(lowered.steps, ends, strict=True)):
            bounds = itertools.pairwise((0, *inner, channels_of(lowered, step))) if inner else ()
            parts = [self._part(step, start, stop) for start, stop in bounds] or [step]
            steps += parts
            origin += [number] * len(parts)
        shapes = MappingProxyType({**lowered.shapes, **self.shapes})
        cut_steps = structs.replace(lowered, steps=tuple(steps), shapes=shapes)
        return Ranged(cut_steps, MappingProxyType(self.tensors), MappingProxyType(self.weights), tuple(origin))

    def even_ends(self, step: Step, limit: int) -> Sequence[int]:
        """Where parts of about the same size end but for the last; none for a step that stays whole."""
        unit = self._unit(step)
        if not unit:
            return ()
        units = channels_of(self._lowered, step) // unit
        weight_bytes = sum(_FLOAT_BYTES * math.prod(self._given[name]) for name in step.weights.values())
        count = min(-(-weight_bytes // max(1, limit)), units)
        return [unit * (units * k // count) for k in range(1, count)]

    def obstacle(self, step: Step) -> str:
        """Why a step cannot be cut at a block of channels; "" if it can."""
        if step.kind not in ("conv", "fc"):
            return "neither a convolution nor a linear layer"
        why = self._uneven(step) if step.kind == "conv" else ""
        if not why and len(self._given[step.inputs[0]]) == _SPATIAL_RANK and self._given[step.outputs[0]][0] > 1:
            why = "of more than one image"
        if not why and channels_of(self._lowered, step) <= self._block:
            why = "one block of channels"
        if not why and not all(self._follows(step, post) for post in step.post_ops):
            why = "what it adds is not dense by channels"
        return why

    def _uneven(self, step: Step) -> str:
        """Why a range of a convolution's channels is not a convolution with a dense output; "" if it is."""
        groups = step.integer("groups")
        if len(self._given[step.outputs[0]]) != _SPATIAL_RANK:
            return "its output has no height and width"
        if groups > 1:
            return "depthwise" if groups == self._given[step.inputs[0]][1] else "of several groups"
        return "its output is not dense by channels" if self._layouts[step.outputs[0]] == NHWC else ""

    def _unit(self, step: Step) -> int:
        """Channels that cannot be cut apart without changing how much is computed; 0 for a step that stays whole."""
        shape = self._given[step.outputs[0]]
        if step.kind == "conv":
            return self._block if not self.obstacle(step) and channels_of(self._lowered, step) % self._block == 0 else 0
        if step.kind != "fc" or not all(self._follows(step, post) for post in step.post_ops):
            return 0
        if math.prod(shape[:-1]) > 1:
            return _COLUMNS[0]  # the last part is as wide as it has to be
        return next((unit for unit in _COLUMNS if shape[-1] % unit == 0), 0)

    def _follows(self, step: Step, post: PostOp) -> bool:
        """Tell whether the operand of a post-operation has a dense part for each part of the output."""
        if not post.tensor:
            return True
        shape = self._given[post.tensor]
        axis = _axis(step, self._given[step.outputs[0]])
        same = shape == self._given[step.outputs[0]]
        per_channel = len(shape) > axis and math.prod(shape) == shape[axis] == self._given[step.outputs[0]][axis]
        return (same or per_channel) and self._layouts[post.tensor] != NHWC

    def _part(self, step: Step, start: int, stop: int) -> Step:
        whole_shape = self._given[step.outputs[0]]
        axis, name = _axis(step, whole_shape), f"{step.name}[{start}:{stop}]"
        posts = tuple(
            structs.replace(post, tensor=self._tensor(post.tensor, axis, start, stop)) if post.tensor else post
            for post in step.post_ops
        )
        weights = {role: self._weight(step, role, whole, start, stop) for role, whole in step.weights.items()}
        settings, rows = step.settings, math.prod(whole_shape[:axis])
        if step.kind == "fc" and rows > 1:
            settings = MappingProxyType({**settings, "written": (rows, stop - start, whole_shape[axis], 1)})
        return structs.replace(
            step,
            name=name,
            outputs=(self._tensor(step.outputs[0], axis, start, stop),),
            weights=MappingProxyType(weights),
            settings=settings,
            post_ops=posts,
        )

    def _tensor(self, whole: str, axis: int, start: int, stop: int) -> str:
        name, shape = free(f"{whole}[{start}:{stop}]", self._given), self._given[whole]
        self.shapes[name] = (*shape[:axis], stop - start, *shape[axis + 1 :])
        self.tensors[name] = TensorPart(whole, _FLOAT_BYTES * start * math.prod(shape[axis + 1 :]))
        return name

    def _weight(self, step: Step, role: str, whole: str, start: int, stop: int) -> str:
        shape = self._given[whole]
        if math.prod(shape) == 1 and role != "weight":  # one value may stand for all channels
            return whole
        axis = shape.index(channels_of(self._lowered, step))
        if role == "weight":
            axis = 1 if step.kind == "fc" and not step.integer("transposed") else 0
        name = free(f"{whole}[{start}:{stop}]", self._given)
        self.shapes[name] = (*shape[:axis], stop - start, *shape[axis + 1 :])
        self.weights[name] = WeightPart(whole, axis, start, stop)
        return name
