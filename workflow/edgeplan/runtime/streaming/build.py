"""From a model to a program that streams: steps cut into ranges, kernels chosen, buffers named, weights laid out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import groupby
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from edgeplan.graph import blocks
from edgeplan.graph.ir import BYTES_PER_ELEMENT, Shape
from edgeplan.graph.shapes import FLOAT32
from edgeplan.graph.steps import Lowered, Setting, Step
from edgeplan.runtime.bands import Region, banded
from edgeplan.runtime.candidates import candidates, default
from edgeplan.runtime.creation import (
    PAGE_BYTES,
    Call,
    Created,
    Creator,
    Implementation,
    KernelCall,
    Place,
    aligned,
    paged,
    same_weights,
)
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import NCHW, size_bytes
from edgeplan.runtime.primitives import Variant
from edgeplan.runtime.program import activation_layouts, candidates_key, shared_buffers
from edgeplan.runtime.program_file import Border
from edgeplan.runtime.ranges import Ranged, cut_ranges
from edgeplan.runtime.streaming.program import ELSEWHERE, NOTHING, WEIGHTS, Buffer, Executed, Kernel, Operand, StreamProgram
from edgeplan.runtime.streaming.schedules import BF16, HALF_BYTES, VALUE_BYTES, Stored

_UNCUT = 1 << 62
_FLOAT_BYTES = 4
_IMAGE_RANK = 4
_SHIFT = 40  # a token names a buffer above this bit, and an offset in it below


class Table(msgspec.Struct, frozen=True):
    """A weight that lies in the file as it is: where, how many bytes. Steps read the rows that their indices name, no others.

    An embedding has a row for each word of a vocabulary, of which an inference needs those of its tokens alone.
    """

    weight: str
    at: int
    size: int


@dataclass(frozen=True, slots=True)
class Segment:
    """Weights of one step, or of all that a region keeps: which steps they are of, and where each one's begin.

    Those of a step that was not created here lie as the model holds them, one after the other (`raw_segment`).
    """

    parts: tuple[tuple[Step, Created | None, int], ...]
    size: int


@dataclass(frozen=True, slots=True)
class Built:
    """A program, with what its weights are made from: segments of each step, None without any, and how steps were cut.

    For each step of the program `origin` is the number of the lowered step that it is (a part of); -1 for one that keeps
    weights. Tables are weights that rows are read of, at the beginning of the file.
    """

    program: StreamProgram
    segments: tuple[Segment | None, ...]
    ranged: Ranged
    origin: tuple[int, ...]
    tables: tuple[Table, ...]


@dataclass(slots=True)
class StepInMaking:
    """A step of the program in the making: which lowered step it is, and where its weights lie if it has none itself.

    One that another processor runs has the choice `ELSEWHERE`, and no calls.
    """

    step: Step
    choice: Implementation
    created: Created
    origin: int
    region: int
    segment: Segment | None = None
    kept: int = -1  # where in the kept weights of its region its own begin


def build(
    dnnl: Dnnl,
    lowered: Lowered,
    home: str,
    limit: int,
    threads: int = 1,
    regions: Sequence[Region] = (),
    choose: Callable[[tuple[Implementation, ...]], Implementation] = default,
    known: dict[object, Implementation] | None = None,
    limits: Mapping[str, int] = MappingProxyType({}),
    halved: AbstractSet[str] = frozenset(),
    halves: Stored = BF16,
) -> Built:
    """Build a streamed program from a model's steps, with 4-D activations in the home layout inside the model.

    A part of a step should have at most `limit` bytes of weights, or what `limits` say of single steps, by name; steps in
    regions run in bands of rows and are not cut. `choose` picks among a step's candidates; what is chosen is added to `known`,
    by what tells steps apart: cuts of one model share most of them. Where all weights of a segment are `halved` (see
    `halvable`), they are stored in half their bytes, as `halves`.
    """
    dnnl.set_threads(threads)
    lowered, tables = with_rows(lowered)
    plan = banded(lowered, regions)
    inside = {step.name for step, region in zip(plan.lowered.steps, plan.region, strict=True) if region >= 0}
    whole = activation_layouts(plan.lowered, home)
    ranged = cut_ranges(
        plan.lowered, whole, dnnl.info.block, lambda step: _UNCUT if step.name in inside else limits.get(step.name, limit)
    )
    layouts = {**whole, **{part: whole[found.whole] for part, found in ranged.tensors.items()}}
    places = Places(plan.lowered, ranged, layouts, dnnl.info.block)
    creator = Creator(dnnl, ranged.lowered.shapes, layouts, places.tokens, lowered.types)
    chosen: dict[object, Implementation] = {} if known is None else known
    rows: list[StepInMaking] = []
    for step, k in zip(ranged.lowered.steps, ranged.origin, strict=True):
        key = candidates_key(creator, step)
        if key not in chosen:
            chosen[key] = _frugal(creator, step, candidates(creator, step), choose)
        choice = chosen[key]
        created = creator.create(step, choice, generate=False)
        if created.calls:  # views take no time
            rows.append(StepInMaking(step, choice, created, plan.origin[k], plan.region[k]))
    rows = _with_kept(dnnl, creator, places, rows)
    start = max((table.at + paged(table.size) for table in tables), default=0)

    def is_halved(segment: Segment) -> bool:
        names = {name for step, _, _ in segment.parts for name in step.weights.values()}
        whole = {ranged.weights[name].whole if name in ranged.weights else name for name in names}
        return bool(whole) and whole <= halved  # tables alone have no name, and stay as they are

    program = replace(stream_program(creator, lowered, places, rows, threads, start, is_halved=is_halved), halves=halves)
    return Built(program, tuple(row.segment for row in rows), ranged, tuple(row.origin for row in rows), tables)


def _with_kept(dnnl: Dnnl, creator: Creator, places: Places, rows: Sequence[StepInMaking]) -> list[StepInMaking]:
    """Each step with its segment of weights; those of a region in one, which a step before it copies to where they stay."""
    found: list[StepInMaking] = []
    for number, members in groupby(rows, key=lambda row: row.region):
        region = list(members)
        if number < 0:
            for row in region:
                if row.created.slots:
                    row.segment = Segment(((row.step, row.created, 0),), row.created.weight_bytes)
            found += region
            continue
        parts: list[tuple[Step, Created, int]] = []
        size = 0
        for row in region:
            if not row.created.slots:
                continue
            known = (p for p in parts if p[0].weights == row.step.weights and same_weights(dnnl, p[1], row.created))
            if (part := next(known, None)) is None:
                part = (row.step, row.created, size)
                parts.append(part)
                size += row.created.weight_bytes
            row.kept = part[2]
        if parts:
            found.append(_keeping(creator, places, number, Segment(tuple(parts), size)))
        found += region
    return found


def _keeping(creator: Creator, places: Places, region: int, segment: Segment) -> StepInMaking:
    name = f"weights of region {region}"
    places.add(name, segment.size)
    settings: dict[str, Setting] = {"size": segment.size // _FLOAT_BYTES}
    step = Step(f"keep {name}", "keep", (), (), (name,), settings=MappingProxyType(settings))
    choice = Implementation("reorder", "reorder", Variant(NCHW, NCHW))
    created = creator.create(step, choice, generate=False)
    return StepInMaking(step, choice, created, -1, region, segment)


def stream_program(
    creator: Creator,
    lowered: Lowered,
    places: Places,
    rows: Sequence[StepInMaking],
    threads: int,
    start: int = 0,
    lanes: int = 1,
    is_halved: Callable[[Segment], bool] = lambda _: False,
) -> StreamProgram:
    """Put a program together from its steps.

    Weights of steps begin at `start` in the file; `is_halved` tells whether a segment may be stored in half its bytes.
    """
    dnnl = creator.dnnl
    buffers = places.buffers(lowered, rows)
    kernels, numbers = _kernels(creator, rows)
    executed, end = _executed(dnnl, rows, numbers, places, start, is_halved)
    used = {t for kernel in kernels for t in (*kernel.step.reads, *kernel.step.outputs)}
    named = used | {name for kernel in kernels for name in kernel.step.weights.values()}

    def border(names: Sequence[str]) -> tuple[Border, ...]:
        operands = (places.operand(places.tokens[name]) for name in names)
        return tuple(
            Border(
                name, lowered.shapes[name], at.offset, lowered.types.get(name, FLOAT32), lowered.limits.get(name, 2), at.buffer
            )
            for name, at in zip(names, operands, strict=True)
        )

    return StreamProgram(
        lanes,
        lowered.name,
        threads,
        (dnnl.info.version, dnnl.info.commit, dnnl.info.isa),
        kernels,
        executed,
        buffers,
        border(lowered.inputs),
        border(lowered.outputs),
        MappingProxyType({name: creator.shapes[name] for name in sorted(named) if name in creator.shapes}),
        MappingProxyType({name: creator.layouts.get(name, NCHW) for name in sorted(used)}),
        MappingProxyType({name: lowered.types[name] for name in sorted(named) if name in lowered.types}),
        end,
    )


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


class Places:
    """The buffer of every activation, and tokens that stand for places in them until there are addresses.

    `buffers` is asked first; `Creator` takes tokens for offsets.
    """

    def __init__(self, lowered: Lowered, ranged: Ranged, layouts: Mapping[str, str], block: int) -> None:
        self._parts = ranged.tensors
        whole = {tensor: layout for tensor, layout in layouts.items() if tensor not in ranged.tensors}
        self._root = dict(shared_buffers(lowered, whole, block))
        self._sizes: dict[str, int] = {}
        for tensor, buffer in self._root.items():
            size = aligned(size_bytes(lowered.shapes[tensor], layouts[tensor], block, lowered.types.get(tensor, FLOAT32)))
            self._sizes[buffer] = max(self._sizes.get(buffer, 0), size)
        numbers = {name: number for number, name in enumerate(self._sizes)}
        self.tokens: dict[str, int] = {tensor: numbers[buffer] << _SHIFT for tensor, buffer in self._root.items()}
        self.tokens |= {name: self.tokens[part.whole] + part.offset for name, part in ranged.tensors.items()}
        self._scratch: dict[int, int] = {}
        self._order: dict[int, int] = {}

    def add(self, name: str, size: int) -> None:
        """A buffer of no activation."""
        self.tokens[name] = len(self._sizes) << _SHIFT
        self._root[name], self._sizes[name] = name, size

    def operand(self, token: int) -> Operand:
        """Return the operand that a token stands for."""
        return Operand(self._order[token >> _SHIFT], token & ((1 << _SHIFT) - 1))

    def buffers(self, lowered: Lowered, rows: Sequence[StepInMaking]) -> tuple[Buffer, ...]:
        """Return all buffers in use, with their lifetimes; then the scratch of each step that needs any."""
        lives: dict[str, list[int]] = {}
        uses = [(t, 0) for t in lowered.inputs] + [(t, len(rows) - 1) for t in lowered.outputs]
        keeping = {row.region: row.step.outputs[0] for row in rows if row.step.kind == "keep"}
        for k, row in enumerate(rows):
            uses += [(t, k) for t in (*row.step.reads, *row.step.outputs)]
            if row.kept >= 0:
                uses.append((keeping[row.region], k))
        for tensor, when in uses:
            lives.setdefault(self._root[self._parts[tensor].whole if tensor in self._parts else tensor], []).append(when)
        found: list[Buffer] = []
        for number, (name, size) in enumerate(self._sizes.items()):
            if name in lives:
                self._order[number] = len(found)
                found.append(Buffer(name, size, min(lives[name]), max(lives[name]) + 1))
        for k, row in enumerate(rows):
            if row.created.scratch_bytes:
                self._scratch[k] = len(found)
                found.append(Buffer(f"scratch of {row.step.name}", aligned(row.created.scratch_bytes), k, k + 1))
        return tuple(found)

    def scratch(self, step: int, offset: int) -> Operand:
        """Return a place in the scratch of a step."""
        return Operand(self._scratch[step], offset)


def _kernels(creator: Creator, rows: Sequence[StepInMaking]) -> tuple[tuple[Kernel, ...], list[int]]:
    """The distinct kernels, and which one each step runs."""
    known: dict[object, int] = {}
    kernels: list[Kernel] = []
    numbers = []
    for row in rows:
        step = row.step
        if row.choice is ELSEWHERE:  # it is told its operands by name
            numbers.append(len(kernels))
            kernels.append(Kernel(step, ELSEWHERE))
            continue
        if not row.created.calls:
            numbers.append(NOTHING)
            continue
        arguments = tuple(_form(call) for call in row.created.calls)
        same = step
        if step.kind in ("cut_rows", "paste_rows"):  # which rows is a matter of the place
            same = replace(step, settings=MappingProxyType({}))
        key = (step.name,) if step.kind == "keep" else (candidates_key(creator, same), row.choice, arguments)
        if key not in known:
            known[key] = len(kernels)
            kernels.append(Kernel(step, row.choice))
        numbers.append(known[key])
    return tuple(kernels), numbers


def _form(call: Call | KernelCall) -> tuple[int, ...]:
    """Return a key that tells calls apart besides their step."""
    return call.block if isinstance(call, KernelCall) else tuple(argument.number for argument in call.arguments)


def _places_of(call: Call | KernelCall) -> tuple[Place, ...]:
    """Where the operands of a call lie, in order."""
    return call.places if isinstance(call, KernelCall) else tuple(argument.place for argument in call.arguments)


def _executed(
    dnnl: Dnnl,
    rows: Sequence[StepInMaking],
    kernels: Sequence[int],
    places: Places,
    start: int,
    is_halved: Callable[[Segment], bool],
) -> tuple[tuple[Executed, ...], int]:
    """The steps, and the size of the file, whose first weights begin at `start`; equal segments lie there once."""
    kept = {row.region: row.step.outputs[0] for row in rows if row.step.kind == "keep"}
    found: list[Executed] = []
    stored: dict[object, list[tuple[Segment, int]]] = {}
    at = start
    for k, (row, kernel) in enumerate(zip(rows, kernels, strict=True)):

        def operand(region: str, offset: int, k: int = k, row: StepInMaking = row) -> Operand:
            if region == "arena":
                return places.operand(offset)
            if region == "scratch":
                return places.scratch(k, offset)
            if row.kept < 0:
                return Operand(WEIGHTS, offset)
            return places.operand(places.tokens[kept[row.region]] + row.kept + offset)

        if row.choice is ELSEWHERE:
            operands = tuple(places.operand(places.tokens[tensor]) for tensor in (*row.step.reads, *row.step.outputs))
        else:
            operands = tuple(operand(place.region, place.offset) for call in row.created.calls for place in _places_of(call))
        size, stored_size, begins = 0, 0, at
        if row.segment is not None:
            size = stored_size = paged(row.segment.size)
            if size > PAGE_BYTES and is_halved(row.segment):  # of a page no half can be read
                stored_size = paged(HALF_BYTES * size // VALUE_BYTES)
                size = VALUE_BYTES * stored_size // HALF_BYTES
            same = stored.setdefault(_values_of(row.segment), [])
            known = next((where for segment, where in same if _alike(dnnl, segment, row.segment)), None)
            if known is None:
                same.append((row.segment, at))
                at += stored_size
            else:
                begins = known
        found.append(Executed(row.step.name, kernel, operands, begins, size, stored_size))
    return tuple(found), at


def _values_of(segment: Segment) -> object:
    """Return a key that decides which values a segment holds, though not in which layouts."""
    steps = [step for step, _, _ in segment.parts]
    return tuple((step.kind, tuple(step.weights.items()), repr(dict(step.settings))) for step in steps)


def _alike(dnnl: Dnnl, one: Segment, other: Segment) -> bool:
    """Tell whether two segments of the same values hold the same bytes."""

    def same(a: Created | None, b: Created | None) -> bool:
        return a is b is None or (a is not None and b is not None and same_weights(dnnl, a, b))

    return all(a[2] == b[2] and same(a[1], b[1]) for a, b in zip(one.parts, other.parts, strict=True))


def raw_segment(lowered: Lowered, step: Step) -> Segment:
    """The weights of a step as the model holds them: each where a cache line begins."""
    return Segment(((step, None, 0),), sum(aligned(size) for _, size in raw_sizes(lowered.shapes, lowered.types, step)))


def raw_sizes(shapes: Mapping[str, Shape], types: Mapping[str, str], step: Step) -> list[tuple[str, int]]:
    """The names and bytes of a step's weights, in the order in which they lie in its segment."""
    return [(name, BYTES_PER_ELEMENT[types.get(name, FLOAT32)] * math.prod(shapes[name])) for name in step.weights.values()]


def with_rows(lowered: Lowered) -> tuple[Lowered, tuple[Table, ...]]:
    """Steps that gather whole rows of a weight read them from the file; the tables lie at its beginning."""
    tables: dict[str, Table] = {}
    steps: list[Step] = []
    at = 0
    for step in lowered.steps:
        if not _gathers_rows(step, lowered):
            steps.append(step)
            continue
        weight = step.weights["operand_0"]
        rows, *rest = lowered.shapes[weight]
        row = BYTES_PER_ELEMENT[lowered.types.get(weight, "float32")] * math.prod(rest)
        if weight not in tables:
            tables[weight] = Table(weight, at, rows * row)
            at += paged(rows * row)
        settings = MappingProxyType({"at": tables[weight].at, "rows": rows, "row_bytes": row})
        steps.append(replace(step, kind="rows", weights=MappingProxyType({}), settings=settings))
    return replace(lowered, steps=tuple(steps)), tuple(tables.values())


def _gathers_rows(step: Step, lowered: Lowered) -> bool:
    """Tell whether a step picks slices along the first axis of a weight."""
    if not step.picks_places or [*step.weights] != ["operand_0"]:
        return False
    outer = step.sizes("block")[blocks.AT_DIMS]  # places before the axis that is picked from
    return outer == 1 and len(lowered.shapes[step.outputs[0]]) != _IMAGE_RANK and not step.post_ops
