"""Sections: a step cut in two or more over its batch, its rows, its elements or its channels (EOP, table 2).

EOP's *batchsize* is `batch`; its *HW* is `rows` of images, or `elements` of matrices; its *HW1W2* is `rows` or `channels`
(columns) of a product, never the dimension that is summed over.

* A range of the batch is dense at an offset in every layout; weights are whole on both sides. Where several matrices are
  multiplied, the first axis of more than one (heads of an attention) is their batch.
* Rows of an image are dense in NHWC at batch 1, and where an image has one block of channels. Elsewhere a row lies apart from
  the next in each block, where oneDNN has reference kernels alone, so a section copies its rows out (`cut_rows`), and to their
  place (`paste_rows`), 1 to 2 % of a convolution's time.
* Steps that compute each element for itself take any range of elements, whole cache lines, so that the processors do not share
  one.
* Channels are those of `runtime.ranges`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from msgspec.structs import replace

from edgeplan.errors import ModelError
from edgeplan.graph.blocks import dense
from edgeplan.graph.ir import Shape
from edgeplan.graph.shapes import free
from edgeplan.graph.steps import Lowered, PostOp, Setting, Step
from edgeplan.runtime import ranges
from edgeplan.runtime.bands import Range, clipped_rows, local, needed_rows, window_settings
from edgeplan.runtime.layouts import BLOCKED, NCHW, NHWC, size_bytes
from edgeplan.runtime.ranges import Ranged, TensorPart

_FLOAT_BYTES = 4
_IMAGE_RANK = 4
_LINE = 16  # elements of a cache line

#: Kinds that compute the items of a batch each for itself.
_OF_ITEMS = frozenset({"conv", "deconv", "fc", "pool", "lrn", "shuffle", "resize", "scale", "eltwise", "binary"}) | frozenset(
    {"concat", "softmax", "layer_norm", "matmul", "transpose", "split"}
)
#: Kinds that compute rows of a matrix, all axes but the last one, each for itself.
_OF_ROWS = frozenset({"fc", "softmax", "layer_norm", "matmul"})
_OF_ELEMENTS = frozenset({"eltwise", "binary"})
_CONSTANT = {"compiled": "a compiled kernel, whose sizes are fixed", "reshape": "it moves nothing, or all of it at once"}
_RECURRENT = frozenset({"lstm", "gru", "lbr_gru", "rnn"})


class Dimension(StrEnum):
    """A dimension is an axis that a step can be cut over."""

    batch = "batch"
    rows = "rows"
    elements = "elements"
    channels = "channels"


@dataclass(frozen=True, slots=True)
class Cut:
    """Where the parts of a step end but for the last: items, rows, elements or channels."""

    dimension: Dimension
    ends: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Extent:
    """An extent is a step's length in a dimension, and the unit of its parts."""

    size: int
    unit: int

    def nearest(self, share: float) -> int:
        """The end of a first part whose share is nearest to one, between the ends."""
        last = (self.size - 1) // self.unit
        return self.unit * min(max(round(share * self.size / self.unit), 1), last)


@dataclass(frozen=True, slots=True)
class Sections:
    """Steps, some of them in parts that follow each other, copies of rows around the part that they are of.

    `part` is the number of the part of each sub-step; layouts are of parts of activations, and of copies of their rows.
    """

    ranged: Ranged
    part: tuple[int, ...]
    layouts: Mapping[str, str]


def why_not_cut(lowered: Lowered, layouts: Mapping[str, str], block: int, step: Step, dimension: Dimension) -> str:
    """Why a step cannot be cut over a dimension, in words; "" if it can."""
    if dimension == Dimension.channels:
        return _why_no_columns(lowered, layouts, block, step)
    if step.kind in _CONSTANT:
        return _CONSTANT[step.kind]
    if step.kind in _RECURRENT:
        return "a recurrent layer, whose states follow each other"
    if any(t in lowered.types for t in (*step.reads, *step.outputs)):
        return "not of float32"
    return _WHY_NOT[dimension](lowered, layouts, block, step)


def extent(lowered: Lowered, block: int, step: Step, dimension: Dimension) -> Extent:
    """Return the extent of a step in a dimension that it can be cut over."""
    shape = _written(lowered.shapes, step)
    if dimension == Dimension.batch:
        return Extent(shape[_batch_axis(shape, step)], 1)
    if dimension == Dimension.elements:
        return Extent(math.prod(shape), _LINE)
    if dimension == Dimension.rows:
        image = len(shape) == _IMAGE_RANK and step.kind not in _OF_ROWS
        return Extent(shape[2] if image else shape[-2] if step.kind == "matmul" else math.prod(shape[:-1]), 1)
    channels = shape[-1] if step.kind == "matmul" else ranges.channels_of(lowered, step)
    return Extent(channels, block)


def cut_sections(lowered: Lowered, layouts: Mapping[str, str], block: int, cuts: Sequence[Cut | None]) -> Sections:
    """Cut steps into sections at given ends; None leaves a step whole."""
    for step, wanted in zip(lowered.steps, cuts, strict=True):
        if wanted is not None:
            _check(lowered, layouts, block, step, wanted)
    by_range = [
        wanted is not None and wanted.dimension == Dimension.channels and step.kind != "matmul"
        for step, wanted in zip(lowered.steps, cuts, strict=True)
    ]
    ends = [c.ends if ranged and c is not None else () for c, ranged in zip(cuts, by_range, strict=True)]
    ranged = ranges.cut_at(lowered, layouts, block, ends)
    cutter = _Cutter(lowered, layouts, block)
    steps: list[Step] = []
    origin: list[int] = []
    part: list[int] = []
    for step, number in zip(ranged.lowered.steps, ranged.origin, strict=True):
        wanted = cuts[number]
        if wanted is None or by_range[number]:
            steps.append(step)
            part.append(part[-1] + 1 if origin and origin[-1] == number else 0)
            origin.append(number)
            continue
        size = extent(lowered, block, step, wanted.dimension).size
        for k, bounds in enumerate(itertools.pairwise((0, *wanted.ends, size))):
            made = cutter.part(step, wanted.dimension, bounds)
            steps += made
            origin += [number] * len(made)
            part += [k] * len(made)
    shapes = MappingProxyType({**ranged.lowered.shapes, **cutter.shapes})
    found = Ranged(
        replace(lowered, steps=tuple(steps), shapes=shapes),
        MappingProxyType({**ranged.tensors, **cutter.tensors}),
        ranged.weights,
        tuple(origin),
    )
    by_channels = {name: layouts[tensor.whole] for name, tensor in ranged.tensors.items()}
    return Sections(found, tuple(part), MappingProxyType({**by_channels, **cutter.layouts}))


def _check(lowered: Lowered, layouts: Mapping[str, str], block: int, step: Step, wanted: Cut) -> None:
    why = why_not_cut(lowered, layouts, block, step, wanted.dimension)
    if not why:
        whole = extent(lowered, block, step, wanted.dimension)
        if list(wanted.ends) != sorted({*wanted.ends} & set(range(1, whole.size))):
            why = f"its parts end at {list(wanted.ends)}, not between 0 and {whole.size}"
        elif any(end % whole.unit for end in wanted.ends):
            why = f"its parts end at {list(wanted.ends)}, not at multiples of {whole.unit}"
    if why:
        raise ModelError(
            f"step {step.name!r} cannot be cut over its {wanted.dimension}: {why}",
            where=lowered.name,
            next_step="plan it whole, or over another dimension",
        )


def _why_no_columns(lowered: Lowered, layouts: Mapping[str, str], block: int, step: Step) -> str:
    if step.kind != "matmul":
        return ranges.why_not_split(lowered, layouts, block, step)
    if step.weights or step.post_ops:
        return "a product with a constant, or with more behind it"
    return "one block of columns" if _written(lowered.shapes, step)[-1] <= block else _plain(lowered, layouts, step)


def _plain(lowered: Lowered, layouts: Mapping[str, str], step: Step) -> str:
    images = [t for t in (*step.reads, *step.outputs) if len(lowered.shapes[t]) == _IMAGE_RANK]
    return "" if all(layouts[t] not in (BLOCKED, NHWC) for t in images) else "it is not row-major"


def _written(shapes: Mapping[str, Shape], step: Step) -> Shape:
    """Shape of what a step writes: of a product as its view is."""
    output = step.outputs[0]
    return view_of(step, "written", shapes[output])[0] if step.kind == "matmul" else shapes[output]


def _batch_axis(shape: Shape, step: Step) -> int:
    """Return the batch axis of an output of a shape."""
    leading = shape[:-2] if step.kind == "matmul" else ()
    return next((axis for axis, size in enumerate(leading) if size > 1), 0)


def _why_no_batch(lowered: Lowered, layouts: Mapping[str, str], _block: int, step: Step) -> str:
    shapes = lowered.shapes
    if step.kind == "matmul":
        return _why_no_matrices(lowered, layouts, step)
    if step.kind not in _OF_ITEMS:
        return f"a step of kind {step.kind}"
    shape = shapes[step.outputs[0]]
    if not shape or shape[0] == 1:
        return "a batch of 1"
    if any(shapes[t][:1] != shape[:1] for t in (*step.reads, *step.outputs)):
        return "what it reads has another batch"
    constant = shapes[step.weights["operand"]] if step.kind == "binary" and "operand" in step.weights else ()
    if (len(constant) == len(shape) and constant[0] != 1) or (step.kind == "concat" and step.weights):
        return "its constant has a value for each item"
    along = step.settings.get("axis") == 0 or (step.kind == "transpose" and step.sizes("permutation")[0] != 0)
    return "it runs along the batch" if along else ""


def _why_no_matrices(lowered: Lowered, layouts: Mapping[str, str], step: Step) -> str:
    shape = _written(lowered.shapes, step)
    if math.prod(shape[:-2]) == 1:
        return "a batch of 1"
    if step.post_ops or step.weights:
        return "a product with a constant, or with more behind it"
    axis = _batch_axis(shape, step)
    batched = {view_of(step, key, lowered.shapes[t])[0][axis] for key, t in _sides(step)} == {shape[axis]}
    return _plain(lowered, layouts, step) if batched else "what it reads has no batch"


def _why_no_rows(lowered: Lowered, layouts: Mapping[str, str], _block: int, step: Step) -> str:
    shapes = lowered.shapes
    shape = _written(shapes, step)
    if step.kind == "matmul":
        if step.post_ops or "left" in step.weights:
            return "a product with a constant before it, or with more behind it"
        return "one row" if shape[-2] == 1 else _plain(lowered, layouts, step)
    if step.kind in _OF_ROWS:
        return _why_no_matrix_rows(lowered, layouts, step)
    if len(shape) != _IMAGE_RANK:
        return "no image, nor a product"
    if not local(step, shapes):
        return "rows of what it writes need others of what it reads"
    return "one row" if shape[2] == 1 else ""


def _why_no_matrix_rows(lowered: Lowered, layouts: Mapping[str, str], step: Step) -> str:
    shapes = lowered.shapes
    shape = shapes[step.outputs[0]]
    if len(shapes[step.inputs[0]]) != len(shape) or len(shape) < 2:  # flattened here
        return "its rows are images"
    if step.kind == "softmax" and step.integer("axis") != len(shape) - 1:
        return "it runs along its rows"
    if any(shapes[post.tensor] != shape for post in step.post_ops if post.tensor):
        return "what it adds has no rows"
    return "one row" if math.prod(shape[:-1]) == 1 else _plain(lowered, layouts, step)


def _why_no_elements(lowered: Lowered, layouts: Mapping[str, str], block: int, step: Step) -> str:
    shapes = lowered.shapes
    shape = shapes[step.outputs[0]]
    tensors = [*step.reads, *step.outputs]
    if step.kind not in _OF_ELEMENTS:
        return f"a {step.kind} does not compute each element for itself"
    if any(shapes[t] != shape for t in tensors) or len({layouts[t] for t in tensors}) > 1:
        return "what it reads has other elements"
    if any(math.prod(shapes[name]) != 1 for name in step.weights.values()):
        return "its constant has a value for each channel"
    if len(shape) == _IMAGE_RANK and layouts[step.outputs[0]] == BLOCKED and shape[1] % block:
        return "its channels are padded"
    return "one cache line" if math.prod(shape) <= _LINE else ""


_WHY_NOT = {Dimension.batch: _why_no_batch, Dimension.rows: _why_no_rows, Dimension.elements: _why_no_elements}


def _sides(step: Step) -> tuple[tuple[str, str], ...]:
    """Operands of a product of activations: the settings of their views, and the activations."""
    return (*((f"read_{place}", tensor) for place, tensor in enumerate(step.inputs)), ("written", step.outputs[0]))


def view_of(step: Step, key: str, shape: Shape) -> tuple[Shape, Shape]:
    """Return sizes and strides (in elements) of an operand of a product, which has a shape where nothing views it."""
    if key not in step.settings:
        return shape, dense(shape)
    axes = step.sizes(key)
    return axes[: len(axes) // 2], axes[len(axes) // 2 :]


class _Cutter:
    """The parts of one model's steps, but for those of channels."""

    def __init__(self, lowered: Lowered, layouts: Mapping[str, str], block: int) -> None:
        self._given, self._layouts, self._block = lowered.shapes, layouts, block
        self.shapes: dict[str, Shape] = {}
        self.tensors: dict[str, TensorPart] = {}
        self.layouts: dict[str, str] = {}

    def part(self, step: Step, dimension: Dimension, bounds: Range) -> list[Step]:
        """One part, with the copies of rows around it."""
        if step.kind == "matmul":
            return [self._product(step, dimension, bounds)]
        if dimension == Dimension.rows and step.kind not in _OF_ROWS:
            return self._band(step, bounds)
        return [self._dense(step, dimension, bounds)]

    def _dense(self, step: Step, dimension: Dimension, bounds: Range) -> Step:
        """A part whose tensors are each dense at an offset."""
        names = {t: self._dense_tensor(step, t, dimension, bounds) for t in (*step.reads, *step.outputs)}
        settings: dict[str, Setting] = dict(step.settings)
        if dimension != Dimension.batch and step.kind == "softmax":
            settings["axis"] = 1
        if dimension == Dimension.elements and step.weights:
            settings["shape"] = (1, 1)
        return self._renamed(step, dimension, bounds, names, settings)

    def _dense_tensor(self, step: Step, whole: str, dimension: Dimension, bounds: Range) -> str:
        shape, (start, stop) = self._given[whole], bounds
        count = stop - start
        new = {Dimension.batch: (count, *shape[1:]), Dimension.rows: (count, shape[-1]), Dimension.elements: (1, count)}[
            dimension
        ]
        bytes_of = size_bytes(shape, self._layouts[whole], self._block)
        lengths = {Dimension.batch: shape[0], Dimension.rows: math.prod(shape[:-1]), Dimension.elements: math.prod(shape)}
        return self._named(step, whole, dimension, bounds, new, bytes_of // lengths[dimension] * start)

    def _named(
        self, step: Step, whole: str, dimension: Dimension, bounds: Range, shape: Shape, offset: int, operand: str = ""
    ) -> str:
        """A part of an activation, named by who touches it: another may take it for a tensor of other axes."""
        name = free(f"{whole}[{dimension} {bounds[0]}:{bounds[1]} of {step.name}{operand and f', {operand}'}]", self._given)
        same_rank = len(shape) == len(self._given[whole])
        self.shapes[name], self.tensors[name] = shape, TensorPart(whole, offset)
        self.layouts[name] = self._layouts[whole] if same_rank else NCHW
        return name

    @staticmethod
    def _renamed(
        step: Step, dimension: Dimension, bounds: Range, names: Mapping[str, str], settings: Mapping[str, Setting]
    ) -> Step:
        return replace(
            step,
            name=f"{step.name}[{dimension} {bounds[0]}:{bounds[1]}]",
            inputs=tuple(names[t] for t in step.inputs),
            outputs=tuple(names[t] for t in step.outputs),
            settings=MappingProxyType(dict(settings)),
            post_ops=tuple(replace(post, tensor=names[post.tensor]) if post.tensor else post for post in step.post_ops),
        )

    def _product(self, step: Step, dimension: Dimension, bounds: Range) -> Step:
        """A part of a product of activations: views of them, which a product reads and writes at no cost."""
        parts: dict[str, str] = {}  # by operand: a product may read a tensor twice, in different parts
        settings: dict[str, Setting] = dict(step.settings)
        shape = _written(self._given, step)
        rank = len(shape)
        cut_axis = {
            Dimension.batch: dict.fromkeys(("read_0", "read_1", "written"), _batch_axis(shape, step)),
            Dimension.rows: {"read_0": rank - 2, "written": rank - 2},
            Dimension.channels: {"read_1": rank - 1, "written": rank - 1},
        }[dimension]
        for key, tensor in _sides(step):
            if key not in cut_axis:
                parts[key] = tensor
                continue
            sizes, strides = view_of(step, key, self._given[tensor])
            axis = cut_axis[key]
            new = (*sizes[:axis], bounds[1] - bounds[0], *sizes[axis + 1 :])
            settings[key] = (*new, *strides)
            offset = _FLOAT_BYTES * bounds[0] * strides[axis]
            parts[key] = self._named(step, tensor, dimension, bounds, new, offset, key)
        reads = tuple(parts[key] for key, _ in _sides(step)[:-1])
        names = {**dict(zip(step.inputs, reads, strict=True)), step.outputs[0]: parts["written"]}
        renamed = self._renamed(step, dimension, bounds, names, settings)
        return replace(renamed, inputs=reads)

    def _band(self, step: Step, rows: Range) -> list[Step]:
        """Rows of images: what is dense is read and written where it lies, else copied."""
        height = self._given[step.inputs[0]][2]
        window = needed_rows(step, rows)
        before: list[Step] = []
        names: dict[str, str] = {}
        for tensor in dict.fromkeys(step.inputs):
            names[tensor] = self._rows(step, tensor, clipped_rows(window, height), before)
        operands = {t: self._rows(step, t, rows, before) for t in dict.fromkeys(p.tensor for p in step.post_ops if p.tensor)}
        output = step.outputs[0]
        dense = self._dense_rows(output)
        written = self._rows(step, output, rows, [])
        posts = tuple(self._post(post, operands, dense=dense) for post in step.post_ops)
        inputs = tuple(names[t] for t in step.inputs)
        settings = window_settings(step, window, height)
        name = f"{step.name}[rows {rows[0]}:{rows[1]}]"
        main = replace(step, name=name, inputs=inputs, outputs=(written,), settings=settings, post_ops=posts)
        start: dict[str, Setting] = {"start": rows[0]}
        after = [] if dense else [Step(f"rows of {written}", "paste_rows", (), (written,), (output,), settings=start)]
        return [*before, main, *after]

    @staticmethod
    def _post(post: PostOp, operands: Mapping[str, str], *, dense: bool) -> PostOp:
        """An operation behind; a copy of rows does not lie where its operand lies, so it adds what it reads."""
        if not post.tensor:
            return post
        kind, algorithm = ("binary", "add") if post.kind == "sum" and not dense else (post.kind, post.algorithm)
        return PostOp(kind, algorithm, post.alpha, post.beta, operands[post.tensor])

    def _dense_rows(self, tensor: str) -> bool:
        items, channels, *_ = self._given[tensor]
        layout = self._layouts[tensor]
        return items == 1 and (layout == NHWC or channels <= (self._block if layout == BLOCKED else 1))

    def _rows(self, step: Step, tensor: str, rows: Range, copies: list[Step]) -> str:
        """Rows of an activation: it itself where they are all, a part where they are dense, else a copy."""
        items, channels, height, width = self._given[tensor]
        shape = (items, channels, rows[1] - rows[0], width)
        if rows == (0, height):
            return tensor
        if self._dense_rows(tensor):
            row = size_bytes((1, channels, 1, width), self._layouts[tensor], self._block)
            return self._named(step, tensor, Dimension.rows, rows, shape, rows[0] * row)
        name = free(f"{tensor}[rows {rows[0]}:{rows[1]} of {step.name}]", self._given)
        if name not in self.shapes:  # it may be read twice
            settings: dict[str, Setting] = {"start": rows[0]}
            copies.append(Step(f"rows of {name}", "cut_rows", (), (tensor,), (name,), settings=settings))
        self.shapes[name], self.layouts[name] = shape, self._layouts[tensor]
        return name
