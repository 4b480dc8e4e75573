"""Bands of rows: some steps that follow each other run on a few rows of the last one's output at a time, depth first.

The activations between them are then a band high instead of an image. A band's rows are computed from as many rows of its
input as they need; what two bands both need is computed twice. FlexNN cuts weights alone; this cuts activations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType

from msgspec import structs

from edgeplan.graph.ir import Shape
from edgeplan.graph.shapes import free
from edgeplan.graph.steps import Lowered, PostOp, Setting, Step
from edgeplan.runtime.creation import aligned
from edgeplan.runtime.layouts import size_bytes

_ROWS_AXIS, _SPATIAL_RANK = 2, 4
_WINDOWED = frozenset({"conv", "pool"})
#: Kinds whose rows of output need the same rows of input, or a window of them.
_LOCAL = _WINDOWED | {"eltwise", "binary", "scale", "lrn", "concat"}
_FLOAT_BYTES = 4
_HEIGHTS = (1, 2, 4, 7, 8, 14, 16, 28)
_LONGEST, _MOST_REGIONS = 16, 8  # steps of a region, regions of a model
_AS_LOW = 1.02  # a peak that is no higher than so many times the lowest counts as low
_WORTH = 0.93  # a region has to cut the peak to this share
_RECOMPUTED = 1.35  # a region may compute so much more than its steps do

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Region:
    """Steps `first` to `last` of a model, run in bands of `rows` rows of the last one's output."""

    first: int
    last: int
    rows: int


@dataclass(frozen=True, slots=True)
class Banded:
    """Steps, some regions of which run in bands.

    `origin` is of each step the number of the step that it is, or is a band of (copies of rows have that of their reader),
    `region` the number of the region that it is in; -1: none.
    """

    lowered: Lowered
    origin: tuple[int, ...]
    region: tuple[int, ...]


#: Bytes of activations that are alive in each step.
_Live = Callable[[Banded], list[int]]


def banded(lowered: Lowered, regions: Sequence[Region]) -> Banded:
    """Divide regions of steps into bands of rows; they are `possible`, apart from each other, in order."""
    rows: list[tuple[Step, int, int]] = []  # each step, its number or that of the step that it is a band of, its region
    shapes: dict[str, Shape] = dict(lowered.shapes)
    at = 0
    for number, region in enumerate(regions):
        rows += [(lowered.steps[k], k, -1) for k in range(at, region.first)]
        rows += [(step, k, number) for step, k in _bands(lowered, region, shapes)]
        at = region.last + 1
    rows += [(lowered.steps[k], k, -1) for k in range(at, len(lowered.steps))]
    changed = structs.replace(lowered, steps=tuple(step for step, _, _ in rows), shapes=MappingProxyType(shapes))
    return Banded(changed, tuple(k for _, k, _ in rows), tuple(number for _, _, number in rows))


def possible(lowered: Lowered, first: int, last: int) -> bool:
    """Tell whether steps can run in bands: local, reading one activation from elsewhere, the last one alone read there."""
    steps = lowered.steps[first : last + 1]
    made = {t for step in steps for t in step.outputs}
    given = {t for step in steps for t in step.reads} - made
    inner = made - set(steps[-1].outputs)
    outside = (step for k, step in enumerate(lowered.steps) if not first <= k <= last)
    read = {t for step in outside for t in step.reads} | set(lowered.outputs)
    return len(given) == 1 and not inner & read and all(local(step, lowered.shapes) for step in steps)


def local(step: Step, shapes: Mapping[str, Shape]) -> bool:
    """Tell whether rows of a step's output need the same rows of its inputs, or a window of them."""
    tensors = [*step.reads, *step.outputs]
    if step.kind == "concat" and (step.integer("axis") != 1 or step.weights):
        return False
    if step.kind not in _LOCAL or len(step.outputs) != 1 or any(len(shapes[t]) != _SPATIAL_RANK for t in tensors):
        return False
    out = shapes[step.outputs[0]]
    same = [*(p.tensor for p in step.post_ops if p.tensor), *(step.inputs if step.kind not in _WINDOWED | {"concat"} else ())]
    if any(shapes[t] != out for t in same):
        return False
    operand = shapes[step.weights["operand"]] if "operand" in step.weights else ()
    return math.prod(operand[-2:]) == 1 if len(operand) > 1 else True


def needed_rows(step: Step, rows: Range) -> Range:
    """Rows of the input that rows of the output need; those before the first and behind the last are padding."""
    if step.kind not in _WINDOWED:
        return rows
    stride, dilation, kernel = (step.sizes(key)[0] for key in ("strides", "dilations", "kernel"))
    start = rows[0] * stride - step.sizes("pads_before")[0]
    return start, (rows[1] - 1) * stride - step.sizes("pads_before")[0] + (kernel - 1) * dilation + 1


def clipped_rows(rows: Range, height: int) -> Range:
    """Clip a range of rows to the image."""
    return max(0, rows[0]), min(height, rows[1])


def _height(shapes: Mapping[str, Shape], tensor: str) -> int:
    return shapes[tensor][_ROWS_AXIS]


def _computed(steps: Sequence[Step], shapes: Mapping[str, Shape], rows: Range) -> dict[str, Range]:
    """Rows of every activation that a band needs."""
    needed = {steps[-1].outputs[0]: rows}

    def need(tensor: str, rows: Range) -> None:
        first, end = needed.get(tensor, rows)
        needed[tensor] = min(first, rows[0]), max(end, rows[1])

    for step in reversed(steps):
        mine = needed[step.outputs[0]]
        for tensor in step.reads:
            own = tensor in step.inputs
            need(tensor, clipped_rows(needed_rows(step, mine), _height(shapes, tensor)) if own else mine)
            if own and step.inputs.count(tensor) + sum(p.tensor == tensor for p in step.post_ops) > 1:
                need(tensor, mine)
    return needed


def ends(height: int, rows: int) -> list[Range]:
    """Rows of each band: about as many, so that few kernels differ."""
    return [(start, min(height, start + rows)) for start in range(0, height, rows)]


def _bands(lowered: Lowered, region: Region, shapes: dict[str, Shape]) -> Iterator[tuple[Step, int]]:
    steps = lowered.steps[region.first : region.last + 1]
    output = steps[-1].outputs[0]
    for rows in ends(_height(shapes, output), region.rows):
        yield from _Band(steps, region.first, lowered.shapes, shapes, rows).steps()
        yield _pasted(output, rows, lowered.shapes), region.last


def _part(tensor: str, rows: Range, given: Mapping[str, Shape]) -> str:
    return free(f"{tensor}@{rows[0]}:{rows[1]}", given)


def _pasted(output: str, rows: Range, given: Mapping[str, Shape]) -> Step:
    part = _part(output, rows, given)
    settings: dict[str, Setting] = {"start": rows[0]}
    return Step(f"rows of {part}", "paste_rows", (), (part,), (output,), settings=MappingProxyType(settings))


class _Band:
    """The steps of one band."""

    def __init__(
        self, steps: Sequence[Step], first: int, given: Mapping[str, Shape], shapes: dict[str, Shape], rows: Range
    ) -> None:
        self._steps, self._first, self._given, self._shapes = steps, first, given, shapes
        self._rows = _computed(steps, given, rows)
        self._made = {t for step in steps for t in step.outputs}

    def steps(self) -> Iterator[tuple[Step, int]]:
        """In order, with the numbers of the steps that they are bands of."""
        known: set[str] = set()
        for k, step in enumerate(self._steps, start=self._first):
            out = self._rows[step.outputs[0]]
            height = _height(self._given, step.inputs[0])
            window = needed_rows(step, out)
            wanted = {t: clipped_rows(window, height) if t in step.inputs else out for t in step.reads}
            own = {tensor: self._name(tensor, wanted[tensor]) for tensor in step.inputs}
            posts = []
            for post in step.post_ops:
                if post.tensor:
                    kind, algorithm = ("binary", "add") if post.kind == "sum" else (post.kind, post.algorithm)
                    posts.append(PostOp(kind, algorithm, post.alpha, post.beta, self._name(post.tensor, out)))
                else:
                    posts.append(post)
            operands = [(post.tensor, out) for post in step.post_ops if post.tensor]
            read = dict.fromkeys([*((t, wanted[t]) for t in step.inputs), *operands])
            for tensor, rows in read:
                if (copy := self._copy(tensor, rows)) is not None and copy.outputs[0] not in known:
                    known.add(copy.outputs[0])
                    yield copy, k
            output = self._named(step.outputs[0], out)
            yield (
                structs.replace(
                    step,
                    name=f"{step.name}@{out[0]}:{out[1]}",
                    inputs=tuple(own[t] for t in step.inputs),
                    outputs=(output,),
                    settings=window_settings(step, window, height),
                    post_ops=tuple(posts),
                ),
                k,
            )

    def _named(self, tensor: str, rows: Range) -> str:
        name, shape = _part(tensor, rows, self._given), self._given[tensor]
        self._shapes[name] = (*shape[:_ROWS_AXIS], rows[1] - rows[0], *shape[_ROWS_AXIS + 1 :])
        return name

    def _name(self, tensor: str, rows: Range) -> str:
        """Name the tensor of these rows: the activation itself if it is whole, the band's result, or a copy."""
        whole = rows == (0, _height(self._given, tensor)) and tensor not in self._made
        return tensor if whole else self._named(tensor, rows)

    def _copy(self, tensor: str, rows: Range) -> Step | None:
        """The step that copies rows out of what holds more of them."""
        if tensor in self._made:
            source, start = _part(tensor, self._rows[tensor], self._given), self._rows[tensor][0]
        else:
            source, start = tensor, 0
        target = self._name(tensor, rows)
        if target == source:
            return None
        settings: dict[str, Setting] = {"start": rows[0] - start}
        return Step(f"rows of {target}", "cut_rows", (), (source,), (target,), settings=MappingProxyType(settings))


def window_settings(step: Step, window: Range, height: int) -> Mapping[str, Setting]:
    """Settings of a step over rows of an input so high, padding among them: the padding that its window still meets."""
    if step.kind not in _WINDOWED:
        return step.settings
    before, after = max(0, -window[0]), max(0, window[1] - height)
    pads_before = (before, *step.sizes("pads_before")[1:])
    pads_after = (after, *step.sizes("pads_after")[1:])
    return MappingProxyType({**step.settings, "pads_before": pads_before, "pads_after": pads_after})


def live_bytes(lowered: Lowered, layouts: Mapping[str, str], block: int) -> list[int]:
    """Bytes of activations alive in each step."""
    steps = lowered.steps
    first: dict[str, int] = dict.fromkeys(lowered.inputs, 0)
    last: dict[str, int] = {}
    for k, step in enumerate(steps):
        for tensor in (*step.reads, *step.outputs):
            first.setdefault(tensor, k)
            last[tensor] = k
    last |= dict.fromkeys(lowered.outputs, len(steps) - 1)
    change = [0] * (len(steps) + 1)
    for tensor, begin in first.items():
        size = aligned(size_bytes(lowered.shapes[tensor], layouts[tensor], block))
        change[begin] += size
        change[last.get(tensor, begin) + 1] -= size
    return list(accumulate(change[:-1]))


def regions_by_peak(lowered: Lowered, layouts: Mapping[str, str], home: str, block: int) -> list[tuple[Region, ...]]:
    """Sets of at most eight regions, each with a lower peak of activations than the one before; the first is empty.

    Each time the step of the peak gets the region that cuts it most, with the weights that the region keeps counted.
    """

    def live(plan: Banded) -> list[int]:
        tensors = {t for step in plan.lowered.steps for t in (*step.reads, *step.outputs)}
        return live_bytes(plan.lowered, {**dict.fromkeys(tensors, home), **layouts}, block)

    found: list[tuple[Region, ...]] = [()]
    for _ in range(_MOST_REGIONS):
        chosen = found[-1]
        plan = banded(lowered, chosen)
        peaks = live(plan)
        at = max(range(len(peaks)), key=peaks.__getitem__)
        if plan.region[at] >= 0:
            break
        best = _best_region(lowered, chosen, plan.origin[at], peaks[at], live)
        regions = () if best is None else tuple(sorted((*chosen, best), key=lambda region: region.first))
        if not regions or _peak(lowered, regions, live) >= peaks[at]:
            break
        found.append(regions)
    return [_taller(lowered, regions, live) for regions in found]


def _taller(lowered: Lowered, regions: tuple[Region, ...], live: _Live) -> tuple[Region, ...]:
    """The same in bands as tall as leave the peak as low: taller ones compute less twice."""
    lowest = _peak(lowered, regions, live)
    chosen = list(regions)
    for k, region in enumerate(regions):
        for rows in sorted((rows for rows in _HEIGHTS if rows > region.rows), reverse=True):
            tried = [*chosen[:k], replace(region, rows=rows), *chosen[k + 1 :]]
            if _peak(lowered, tried, live) <= _AS_LOW * lowest:
                chosen = tried
                break
    return tuple(chosen)


def _best_region(lowered: Lowered, chosen: Sequence[Region], at: int, peak: int, live: _Live) -> Region | None:
    """The region around a step whose own peak is the lowest, or nothing worth it."""
    taken = {k for region in chosen for k in range(region.first, region.last + 1)}
    best: tuple[float, Region] | None = None
    for first in range(max(0, at - _LONGEST), at + 1):
        for last in range(at, min(len(lowered.steps), first + _LONGEST)):
            if taken & set(range(first, last + 1)) or last == first or not possible(lowered, first, last):
                continue
            height = _height(lowered.shapes, lowered.steps[last].outputs[0])
            for rows in _HEIGHTS:
                region = Region(first, last, rows)
                if 2 * rows > height or recomputed(lowered, region) > _RECOMPUTED:
                    continue
                plan = banded(lowered, [region])
                inside = (bytes_ for bytes_, where in zip(live(plan), plan.region, strict=True) if where == 0)
                own = max(inside) + kept_bytes(lowered, region)
                if own <= _WORTH * peak and (best is None or own < best[0]):
                    best = own, region
    return best[1] if best else None


def _peak(lowered: Lowered, regions: Sequence[Region], live: _Live) -> int:
    """The peak of all steps, with the weights that a region keeps."""
    regions = sorted(regions, key=lambda region: region.first)
    if any(2 * r.rows > _height(lowered.shapes, lowered.steps[r.last].outputs[0]) for r in regions):
        return 1 << 62
    plan = banded(lowered, regions)
    kept = [kept_bytes(lowered, region) for region in regions]
    return max(peak + (kept[where] if where >= 0 else 0) for peak, where in zip(live(plan), plan.region, strict=True))


def kept_bytes(lowered: Lowered, region: Region) -> int:
    """Bytes of the weights that stay in memory while a region runs, as in the file."""
    names = {name for step in lowered.steps[region.first : region.last + 1] for name in step.weights.values()}
    return sum(_FLOAT_BYTES * math.prod(lowered.shapes[name]) for name in names)


def recomputed(lowered: Lowered, region: Region) -> float:
    """Return the ratio of rows that a region's steps compute to those they have, weighted by the cost of a row."""
    steps = lowered.steps[region.first : region.last + 1]
    whole = done = 0.0
    output = steps[-1].outputs[0]
    bands = [_computed(steps, lowered.shapes, rows) for rows in ends(_height(lowered.shapes, output), region.rows)]
    for step in steps:
        shape = lowered.shapes[step.outputs[0]]
        cost = shape[1] * shape[3] * math.prod(lowered.shapes[step.weights["weight"]][1:] if "weight" in step.weights else (1,))
        whole += cost * shape[_ROWS_AXIS]
        done += cost * sum(rows[step.outputs[0]][1] - rows[step.outputs[0]][0] for rows in bands)
    return done / whole
