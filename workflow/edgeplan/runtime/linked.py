"""A linked program: what a cold start executes, decided when it was planned; the C calls themselves stand on its tape.

Linking (`linking.py`) writes tables of these calls, from which the tape is made. Whatever equal steps share (descriptors,
attributes, primitives, memories) is one row, so it is made once.

The documents are structs of msgspec, not pydantic models: a cold start waits for them, and they are checked as strictly, in a
tenth of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from edgeplan.graph.ir import BYTES_PER_ELEMENT

#: Stand for the engine and for no handle among the arguments of a primitive descriptor.
ENGINE, NOTHING = -2, -1
#: Kinds of memory descriptors: by tag, by strides, a part of another, another with its axes renamed, asked of a primitive,
#: bytes, by tag and of another type than f32.
BY_TAG, BY_STRIDES, PART, RENAMED, ASKED, BYTES, OF_TYPE = range(7)
#: Kinds of what attributes hold besides post-operations: of scales or zero points the argument and the axes of several.
MASKS = frozenset({"scales", "zero_points"})
_FLOAT_BYTES = 4
AGAIN = "plan the model again: edgeplan plan cold-start"

Count = Annotated[int, msgspec.Meta(ge=0)]
Numbers = tuple[int, ...]
Argument = int | float | Numbers | None
ElementType = Literal["float32", "int32", "int64", "int8", "uint8", "bool"]
StoredType = Literal[ElementType, "float16"]


class RawWeight(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bytes of one weight in a file of the model (its position in `LinkedProgram.files`): little-endian, row-major.

    From one value to the next it is `stride` bytes. The role of scales is that of the bytes that they are of, along an axis,
    with an end of its own (`transform.widened`).
    """

    role: str
    file: Count
    offset: Count
    size: Count
    shape: tuple[Count, ...]
    stride: Annotated[int, msgspec.Meta(ge=1)] = _FLOAT_BYTES
    dtype: StoredType = "float32"
    axis: Count = 0


class LinkedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One step under one implementation.

    Attributes:
        name: of the step.
        implementation: its candidate's name.
        source: "raw", "cached_read", "cached_mmap" or "none"; for later runs also "shared": what the cold start used.
        calls: for each C call its primitive, then pairs of argument number and memory: a row of `memories`, or -1 - s for
            slot s. Of a compiled kernel -1 - its row of `kernels`, then the place of each operand: an offset in the arena, or
            -1 - s. A plan folder has them on its tape alone.
        slots: weights as the primitives read them: descriptor there, descriptor in the file's order, offset among the step's
            transformed weights, size, primitive that converts (-1: same bytes).
        weight_bytes: size of the transformed weights.
        raw: what they are made from.
        kind, settings: how they are made (`transform.folded`).
        place: offset of the transformed weights in the memory of the session.
        segment: their offset in the cache.
        checksum: of the transformed weights, for those in the cache.
    """

    name: str
    implementation: str
    source: Literal["raw", "cached_read", "cached_mmap", "none", "shared"]
    slots: tuple[tuple[int, int, int, int, int], ...]
    weight_bytes: Count
    raw: tuple[RawWeight, ...]
    kind: str
    settings: dict[str, int | float | str | Numbers]
    place: Count
    segment: Count
    checksum: Count
    calls: tuple[Numbers, ...] = ()

    @property
    def cached(self) -> bool:
        """Tell whether the step's transformed weights lie in the cache."""
        return self.source.startswith("cached")


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the raw model: its path when the plan was built, and what tells whether it is still the same.

    Attributes:
        stamp: what the file system said of it when its contents were known to be these (`weight_cache.stamp`).
    """

    path: str
    size: Count
    stamp: Numbers
    sha256: str


class Border(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """An input or output: row-major at an offset in the arena.

    Attributes:
        below: what integers of an input stay below, 2 where no axis is known that they pick places of.
    """

    name: str
    shape: tuple[Count, ...]
    offset: Count
    dtype: ElementType = "float32"
    below: Count = 2

    @property
    def size(self) -> int:
        """Return the size in bytes."""
        return BYTES_PER_ELEMENT[self.dtype] * prod(self.shape)


class Tables(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These tables hold the parts of a program's calls.

    Attributes:
        descriptors: memory descriptors: kind, then by kind (tag, *shape), (shape, strides) and the type if it is not f32,
            (of, shape, offsets), (of, permutation), (primitive, what, index), (count,), (type, tag, *shape).
        attributes: post-operations of each set of attributes: (kind, arguments); a binary's last argument is a descriptor.
            Then masks (`MASKS`).
        primitives: function that describes it, implementation, attributes, threads, arguments between the result and the
            attributes. Many kernels keep the number of threads they were made for, and some choose layouts of weights by it.
        memories: of activations and scratch: descriptor, offset in the arena.
        kernels: compiled kernels: name, block (`graph.blocks`).
    """

    descriptors: tuple[tuple[int | Numbers, ...], ...]
    attributes: tuple[tuple[tuple[str | int | float, ...], ...], ...]
    primitives: tuple[tuple[str, str, Count, Count, tuple[Argument, ...]], ...]
    memories: tuple[tuple[Count, Count], ...]
    kernels: tuple[tuple[str, Numbers], ...]

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Return the lengths of the tables."""
        return len(self.descriptors), len(self.attributes), len(self.primitives), len(self.memories)


class LinkedProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A program says what a cold start runs. What is called, its tape says; its steps stand in the reserve.

    Attributes:
        model: name.
        threads: cores that execute.
        layout: home layout.
        equal_cores, little_ratio, main, queues, widen_from: the schedule, as in the plan.
        counts: of objects and steps: descriptors, attributes, primitives, memories, steps.
        sources: of the steps, each once.
        first_segment: where the first of the cached weights begin.
        inputs, outputs: at the border.
        arena_bytes: activations and scratch; weights_bytes: transformed weights that are not mapped, behind them.
        cache_key, cache_bytes: digest of the first bytes of the cache, and its size; 0 without a cache.
        kernels: names of the compiled kernels, each once.
        files: of the raw model; like the next one they stand in the schedule, which is written again where they change.
        cache_stamp: what the file system said of the cache when it had been written: whether it was touched since.
    """

    model: str
    threads: Annotated[int, msgspec.Meta(ge=1)]
    layout: str
    equal_cores: bool
    little_ratio: Annotated[float, msgspec.Meta(ge=1)]
    main: tuple[Count, ...]
    queues: tuple[tuple[Count, ...], ...]
    widen_from: Count
    counts: tuple[Count, Count, Count, Count, Count]
    sources: tuple[str, ...]
    first_segment: Count
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    arena_bytes: Count
    weights_bytes: Count
    cache_key: str
    cache_bytes: Count
    kernels: tuple[str, ...] = ()
    files: tuple[ModelFile, ...] = ()
    cache_stamp: Numbers = ()

    def __post_init__(self) -> None:
        if sorted([*self.main, *(k for queue in self.queues for k in queue)]) != list(range(self.step_count)):
            raise ValueError("main, queues: each step is prepared once")
        if self.widen_from > self.step_count:
            raise ValueError("widen_from: no more steps than there are")
        if max((b.offset + b.size for b in (*self.inputs, *self.outputs)), default=0) > self.arena_bytes:
            raise ValueError("inputs, outputs: outside the arena")

    @property
    def step_count(self) -> int:
        """Return the number of steps."""
        return self.counts[-1]


class Stamps(msgspec.Struct, frozen=True):
    """Stamps tell whether the files of a model and the cache were touched; they stand in a plan's schedule."""

    files: tuple[ModelFile, ...] = ()
    cache_stamp: Numbers = ()


class Reserve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reserve holds what a cold start does without, as long as nothing is wrong: kept apart, since reading it takes time.

    Attributes:
        steps: in order of execution.
        later: for each step how later runs execute it, on all cores; None where the cold start does the same.
    """

    steps: tuple[LinkedStep, ...]
    later: tuple[LinkedStep | None, ...]

    def without_calls(self) -> Reserve:
        """Return it as a plan folder holds it, with all calls on its tape."""
        steps = tuple(msgspec.structs.replace(step, calls=()) for step in self.steps)
        return Reserve(steps, tuple(step and msgspec.structs.replace(step, calls=()) for step in self.later))


class Linked(msgspec.Struct, frozen=True):
    """A linked program that no folder holds yet: its head, the tables of its calls, and its steps."""

    program: LinkedProgram
    tables: Tables
    reserve: Reserve


def linked_of(document: Mapping[str, Any]) -> Linked:
    """A program from plain values, its tables, steps and later steps among them, checked."""
    of_tables, of_reserve = Tables.__struct_fields__, Reserve.__struct_fields__
    tables = converted({name: document[name] for name in of_tables}, Tables)
    reserve = converted({"later": (), **{name: document[name] for name in of_reserve if name in document}}, Reserve)
    head = {name: value for name, value in document.items() if name not in (*of_tables, *of_reserve)}
    segments = [step.segment for step in reserve.steps if step.cached]
    told = {
        "counts": (*tables.counts, len(reserve.steps)),
        "sources": tuple(sorted({step.source for step in reserve.steps})),
        "first_segment": min(segments, default=0),
        "kernels": tuple(sorted({name for name, _ in tables.kernels})),
    }
    return Linked(msgspec.convert({**head, **told}, LinkedProgram), tables, reserve)


Row = TypeVar("Row", Tables, Reserve, LinkedStep)


def converted(document: dict[str, Any], kind: type[Row]) -> Row:
    """A document from plain values, checked."""
    return msgspec.convert(document, kind)
