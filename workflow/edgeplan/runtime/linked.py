"""A linked program: the C calls of a plan as tables of numbers, so that a cold start interprets them and decides nothing.

Linking (`linking.py`) happens when the plan folder is built. Whatever equal steps share (descriptors, attributes, primitives,
memories) is one row, so it is made once.

The documents are structs of msgspec, not pydantic models: a cold start waits for them, and they are checked as strictly, in a
tenth of the time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from edgeplan.errors import FormatError
from edgeplan.graph.ir import BYTES_PER_ELEMENT

#: Stand for the engine and for no handle among the arguments of a primitive descriptor.
ENGINE, NOTHING = -2, -1
#: Kinds of memory descriptors: by tag, by strides, a part of another, another with its axes renamed, asked of a primitive,
#: bytes.
BY_TAG, BY_STRIDES, PART, RENAMED, ASKED, BYTES = range(6)
_FLOAT_BYTES = 4
AGAIN = "plan the model again: edgeplan plan cold-start"

Count = Annotated[int, msgspec.Meta(ge=0)]
Numbers = tuple[int, ...]
Argument = int | float | Numbers | None
ElementType = Literal["float32", "int32", "int64", "int8", "uint8", "bool"]


class RawWeight(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Bytes of one weight in a file of the model (its position in `LinkedProgram.files`): little-endian, row-major.

    From one value to the next it is `stride` bytes.
    """

    role: str
    file: Count
    offset: Count
    size: Count
    shape: tuple[Count, ...]
    stride: Annotated[int, msgspec.Meta(ge=1)] = _FLOAT_BYTES
    dtype: ElementType = "float32"


class LinkedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One step under one implementation.

    Attributes:
        name: of the step.
        implementation: its candidate's name.
        source: "raw", "cached_read", "cached_mmap" or "none"; for later runs also "shared": what the cold start used.
        calls: for each C call its primitive, then pairs of argument number and memory: a row of `memories`, or -1 - s for
            slot s. Of a compiled kernel -1 - its row of `kernels`, then the place of each operand: an offset in the arena, or
            -1 - s.
        slots: weights as the primitives read them: descriptor there, descriptor in the file's order, offset among the step's
            transformed weights, size, primitive that converts (-1: same bytes).
        weight_bytes: size of the transformed weights.
        raw: what they are made from; for cached weights it stands in `Reserve`.
        kind, settings: how they are made (`transform.folded`).
        place: offset of the transformed weights in the memory of the session.
        segment: their offset in the cache.
        checksum: of the transformed weights, for those in the cache.
    """

    name: str
    implementation: str
    source: Literal["raw", "cached_read", "cached_mmap", "none", "shared"]
    calls: tuple[Numbers, ...]
    slots: tuple[tuple[int, int, int, int, int], ...]
    weight_bytes: Count
    raw: tuple[RawWeight, ...]
    kind: str
    settings: dict[str, int | float | str | Numbers]
    place: Count
    segment: Count
    checksum: Count

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
        descriptors: memory descriptors: kind, then by kind (tag, *shape), (shape, strides), (of, shape, offsets),
            (of, permutation), (primitive, what, index), (count,).
        attributes: post-operations of each set of attributes: (kind, arguments); a binary's last argument is a descriptor.
        primitives: function that describes it, implementation, attributes, threads, arguments between the result and the
            attributes. Many kernels keep the number of threads they were made for, and some choose layouts of weights by it.
        memories: of activations and scratch: descriptor, offset in the arena.
        steps: in order of execution.
        kernels: compiled kernels: name, block (`graph.blocks`).
    """

    descriptors: tuple[tuple[int | Numbers, ...], ...]
    attributes: tuple[tuple[tuple[str | int | float, ...], ...], ...]
    primitives: tuple[tuple[str, str, Count, Count, tuple[Argument, ...]], ...]
    memories: tuple[tuple[Count, Count], ...]
    steps: tuple[LinkedStep, ...]
    kernels: tuple[tuple[str, Numbers], ...] = ()

    @property
    def counts(self) -> tuple[int, int, int, int, int]:
        """Return the lengths of the tables."""
        return len(self.descriptors), len(self.attributes), len(self.primitives), len(self.memories), len(self.steps)


#: Stands for tables that are elsewhere.
NO_TABLES = msgspec.Raw(b"null")
#: Made once, when this module is imported: this builds the schema.
_TABLES = msgspec.json.Decoder(Tables)


class LinkedProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A plan's calls, and what they hold for.

    A cold start reads the head only. The tables are decoded when they are first needed, which is where something is not as
    usual: what is called, the tape says.

    Attributes:
        model: name; model_sha256: hash of its files.
        library_version, isa, machine, threads: what the tables hold for.
        plan_sha256: hash of the plan document they were linked from.
        layout: home layout.
        equal_cores, little_ratio, main, queues, widen_from: the schedule, as in the plan.
        files: of the raw model.
        counts: of the tables: descriptors, attributes, primitives, memories, steps.
        sources: of the steps, each once.
        first_segment: where the first of the cached weights begin.
        tables_json, tables_sha256: the tables, and their digest where they came from a file ("" otherwise).
        reserve_sha256: hash of the reserve.
        inputs, outputs: at the border.
        arena_bytes: activations and scratch; weights_bytes: transformed weights that are not mapped, behind them.
        cache_key, cache_bytes: digest of the first bytes of the cache, and its size; 0 without a cache.
        tape_sha256: hash of the tape beside the program; "" where there is none.
        kernels: names of the compiled kernels, each once.
        cache_stamp: what the file system said of the cache when it had been written: whether it was touched since.
    """

    model: str
    model_sha256: str
    library_version: str
    isa: str
    machine: str
    threads: Annotated[int, msgspec.Meta(ge=1)]
    plan_sha256: str
    layout: str
    equal_cores: bool
    little_ratio: Annotated[float, msgspec.Meta(ge=1)]
    main: tuple[Count, ...]
    queues: tuple[tuple[Count, ...], ...]
    widen_from: Count
    files: tuple[ModelFile, ...]
    counts: tuple[Count, Count, Count, Count, Count]
    sources: tuple[str, ...]
    first_segment: Count
    reserve_sha256: str
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    arena_bytes: Count
    weights_bytes: Count
    cache_key: str
    cache_bytes: Count
    cache_stamp: Numbers = ()
    tape_sha256: str = ""
    kernels: tuple[str, ...] = ()
    tables_json: msgspec.Raw = NO_TABLES
    tables_sha256: str = ""

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

    @cached_property
    def tables(self) -> Tables:
        """Return the tables of the program.

        Raises:
            FormatError: they do not fit.
        """
        if self.tables_sha256 and hashlib.sha256(self.tables_json).hexdigest() != self.tables_sha256:
            raise FormatError("the program was changed after it was written", where=f"model {self.model}", next_step=AGAIN)
        try:
            found: Tables = _TABLES.decode(self.tables_json)
        except msgspec.DecodeError as error:
            raise FormatError(f"the program does not fit: {error}", where=f"model {self.model}", next_step=AGAIN) from error
        return found

    @property
    def steps(self) -> tuple[LinkedStep, ...]:
        """Return the steps in order of execution."""
        return self.tables.steps

    def with_steps(self, steps: Sequence[LinkedStep]) -> LinkedProgram:
        """The same with other steps."""
        tables = msgspec.structs.replace(self.tables, steps=tuple(steps))
        encoded = msgspec.Raw(msgspec.json.encode(tables))
        return msgspec.structs.replace(self, **_told(tables.steps), tables_json=encoded, tables_sha256="")


def _told(steps: Sequence[LinkedStep]) -> dict[str, Any]:
    """Summarise the steps for the head of the document."""
    segments = [step.segment for step in steps if step.cached]
    return {"sources": tuple(sorted({step.source for step in steps})), "first_segment": min(segments, default=0)}


def kernel_names(tables: Tables) -> tuple[str, ...]:
    """Names of the compiled kernels that tables are of, each once."""
    return tuple(sorted({name for name, _ in tables.kernels}))


def linked_program(document: Mapping[str, Any]) -> LinkedProgram:
    """A program from plain values, its tables among them, checked.

    Raises:
        msgspec.ValidationError: they do not fit.
    """
    names = Tables.__struct_fields__
    tables = converted({name: document[name] for name in names if name in document}, Tables)
    head = {name: value for name, value in document.items() if name not in names}
    encoded = msgspec.Raw(msgspec.json.encode(tables))
    told = {"counts": tables.counts, **_told(tables.steps), "kernels": kernel_names(tables)}
    return msgspec.convert({**head, **told, "tables_json": encoded}, LinkedProgram)


class Reserve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reserve holds what a cold start does without, as long as nothing is wrong: kept apart, since reading it takes time.

    Attributes:
        raw: for each step what its cached weights are made from.
        later: for each step how later runs execute it, on all cores; None where the cold start does the same.
    """

    raw: tuple[tuple[RawWeight, ...], ...]
    later: tuple[LinkedStep | None, ...]


Row = TypeVar("Row", Tables, Reserve, LinkedStep)


def converted(document: dict[str, Any], kind: type[Row]) -> Row:
    """A document from plain values, checked.

    Raises:
        msgspec.ValidationError: it does not fit.
    """
    return msgspec.convert(document, kind)
