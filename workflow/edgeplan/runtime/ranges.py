"""Ranges of output channels: a step cut into several that each compute a part of its output, from a part of its weights.

At batch 1 a range of channels is a dense tensor at an offset in the layouts `nchw` and `blocked16` (whole blocks), and so is a
range of columns of one row. A part is an ordinary step over such tensors, run by the same kernels. Columns of many rows are
written where they belong, a row's length apart, by a product of matrices (`written`); nothing is copied either way.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from edgeplan.graph.ir import Shape
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
    """Steps, some of them cut into parts.

    Attributes:
        lowered: the steps in order; parts of a step follow each other.
        tensors: part of an activation -> where it lies.
        weights: part of an initialiser -> where it comes from.
        origin: for each step, the number of the step that it is (a part of).
    """

    lowered: Lowered
    tensors: Mapping[str, TensorPart]
    weights: Mapping[str, WeightPart]
    origin: tuple[int, ...]


def cut(
    lowered: Lowered, layouts: Mapping[str, str], block: int, limit: Callable[[Step], int], most: int | None = None
) -> Ranged:
    """Cut steps whose weights are large into parts of the same size, but for rounding to blocks.

    Args:
        lowered: the steps.
        layouts: layout of every activation.
        block: channels of a block in the layout `blocked16`.
        limit: the most bytes of weights that a part of a step should have.
        most: parts of one step; None: as many as there are blocks.
    """
    cutter = _Cutter(lowered, layouts, block)
    steps: list[Step] = []
    origin: list[int] = []
    for number, step in enumerate(lowered.steps):
        parts = cutter.parts(step, limit(step), most)
        steps += parts
        origin += [number] * len(parts)
    shapes = MappingProxyType({**lowered.shapes, **cutter.shapes})
    ranged = replace(lowered, steps=tuple(steps), shapes=shapes)
    return Ranged(ranged, MappingProxyType(cutter.tensors), MappingProxyType(cutter.weights), tuple(origin))


def weight_bytes(step: Step, shapes: Mapping[str, Shape]) -> int:
    """Bytes of a step's weights as they lie in the file."""
    return sum(_FLOAT_BYTES * math.prod(shapes[name]) for name in step.weights.values())


class _Cutter:
    """The parts of one model's steps."""

    def __init__(self, lowered: Lowered, layouts: Mapping[str, str], block: int) -> None:
        self._given, self._layouts, self._block = lowered.shapes, layouts, block
        self.shapes: dict[str, Shape] = {}
        self.tensors: dict[str, TensorPart] = {}
        self.weights: dict[str, WeightPart] = {}

    def parts(self, step: Step, limit: int, most: int | None) -> Sequence[Step]:
        """A step, or its parts."""
        unit = self._unit(step)
        if not unit:
            return (step,)
        channels = self._given[step.outputs[0]][self._axis(step)]
        units = channels // unit
        wanted = -(-weight_bytes(step, self._given) // max(1, limit))
        count = min(wanted, units, most or units)
        if count < 2:  # noqa: PLR2004  nothing to cut
            return (step,)
        ends = [unit * (units * k // count) for k in range(count)] + [channels]
        return [self._part(step, start, stop) for start, stop in itertools.pairwise(ends)]

    def _axis(self, step: Step) -> int:
        return 1 if step.kind == "conv" else len(self._given[step.outputs[0]]) - 1

    def _unit(self, step: Step) -> int:
        """Channels that cannot be cut apart; 0 for a step that cannot be cut at all."""
        shape = self._given[step.outputs[0]]
        if step.kind == "conv":
            dense = len(shape) == _SPATIAL_RANK and shape[0] == 1 and self._layouts[step.outputs[0]] != NHWC
            fits = dense and step.integer("groups") == 1 and shape[1] % self._block == 0
            return self._block if fits and all(self._follows(step, post) for post in step.post_ops) else 0
        if step.kind != "fc" or not all(self._follows(step, post) for post in step.post_ops):
            return 0
        if self._rows(step) > 1:
            return _COLUMNS[0]  # the last part is as wide as it has to be
        return next((unit for unit in _COLUMNS if shape[-1] % unit == 0), 0)

    def _rows(self, step: Step) -> int:
        """Rows of a fully connected layer's output."""
        return math.prod(self._given[step.outputs[0]][:-1]) if step.kind == "fc" else 1

    def _follows(self, step: Step, post: PostOp) -> bool:
        """Whether the operand of a post-operation has a dense part for each part of the output."""
        if not post.tensor:
            return True
        shape, axis = self._given[post.tensor], self._axis(step)
        same = shape == self._given[step.outputs[0]] and self._rows(step) == 1
        per_channel = len(shape) > axis and math.prod(shape) == shape[axis] == self._given[step.outputs[0]][axis]
        return (same or per_channel) and self._layouts[post.tensor] != NHWC

    def _part(self, step: Step, start: int, stop: int) -> Step:
        axis, name = self._axis(step), f"{step.name}[{start}:{stop}]"
        posts = tuple(
            replace(post, tensor=self._tensor(post.tensor, axis, start, stop)) if post.tensor else post
            for post in step.post_ops
        )
        weights = {role: self._weight(step, role, whole, start, stop) for role, whole in step.weights.items()}
        settings = step.settings
        if (rows := self._rows(step)) > 1:
            written = (rows, stop - start, self._given[step.outputs[0]][-1], 1)
            settings = MappingProxyType({**settings, "written": written})
        return replace(
            step,
            name=name,
            outputs=(self._tensor(step.outputs[0], axis, start, stop),),
            weights=MappingProxyType(weights),
            settings=settings,
            post_ops=posts,
        )

    def _tensor(self, whole: str, axis: int, start: int, stop: int) -> str:
        name, shape = f"{whole}[{start}:{stop}]", self._given[whole]
        self.shapes[name] = (*shape[:axis], stop - start, *shape[axis + 1 :])
        self.tensors[name] = TensorPart(whole, _FLOAT_BYTES * start * math.prod(shape[axis + 1 :]))
        return name

    def _weight(self, step: Step, role: str, whole: str, start: int, stop: int) -> str:
        shape = self._given[whole]
        if math.prod(shape) == 1 and role == "bias":  # one value may stand for all columns
            return whole
        axis = 0
        if step.kind == "fc":
            axis = len(shape) - 1 if role == "bias" or not step.integer("transposed") else 0
        name = f"{whole}[{start}:{stop}]"
        self.shapes[name] = (*shape[:axis], stop - start, *shape[axis + 1 :])
        self.weights[name] = WeightPart(whole, axis, start, stop)
        return name
