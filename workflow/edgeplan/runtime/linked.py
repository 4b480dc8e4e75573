"""A linked program: what a cold start executes, decided when it is planned, before it is packed into program.bin.

Linking (`linking.py`) writes tables of the C calls, from which the tape is made. Whatever equal steps share (descriptors,
attributes, primitives, memories) is one row, so it is made once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from edgeplan.runtime.program_file import Border

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
    dtype: str = "float32"
    axis: Count = 0


class LinkedStep(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
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
    calls: tuple[Numbers, ...]

    @property
    def cached(self) -> bool:
        """Tell whether the step's transformed weights lie in the cache."""
        return self.source.startswith("cached")


class ModelFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the raw model: its path when the plan was built, and what tells whether it is still the same.

    Attributes:
        stamp: what the file system said of it when its contents were known to be these (`support.stamps`).
        checksum: of its contents, which decide where the stamp is another one.
    """

    path: str
    size: Count
    stamp: Numbers
    checksum: int = 0


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
        """Return the lengths of the tables of objects."""
        return len(self.descriptors), len(self.attributes), len(self.primitives), len(self.memories)

    @property
    def kernel_names(self) -> tuple[str, ...]:
        """Return the names of the compiled kernels, each once."""
        return tuple(sorted({name for name, _ in self.kernels}))


class LinkedProgram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A program says what a cold start runs; its steps stand beside it (`Linked`).

    Attributes:
        model: name.
        threads: cores that execute.
        layout: home layout.
        equal_cores, little_ratio, main, queues, widen_from: the schedule, as in the plan.
        inputs, outputs: at the border.
        arena_bytes: activations and scratch; weights_bytes: transformed weights that are not mapped, behind them.
        cache_bytes: of the weight cache; 0 without one.
        files: of the model.
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
    inputs: tuple[Border, ...]
    outputs: tuple[Border, ...]
    arena_bytes: Count
    weights_bytes: Count
    cache_bytes: Count = 0
    files: tuple[ModelFile, ...] = ()
    cache_stamp: Numbers = ()

    def __post_init__(self) -> None:
        prepared = sorted([*self.main, *(k for queue in self.queues for k in queue)])
        if prepared != list(range(len(prepared))):
            raise ValueError("main, queues: each step is prepared once")
        if self.widen_from > len(prepared):
            raise ValueError("widen_from: no more steps than there are")
        if max((b.offset + b.size for b in (*self.inputs, *self.outputs)), default=0) > self.arena_bytes:
            raise ValueError("inputs, outputs: outside the arena")

    @property
    def step_count(self) -> int:
        """Return the number of steps."""
        return len(self.main) + sum(map(len, self.queues))


class Linked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A linked program that no folder holds yet: its head, the tables of its calls, and its steps.

    Attributes:
        program, tables: see there.
        steps: in order of execution.
        later: for each step how later runs execute it, on all cores; None where the cold start does the same.
    """

    program: LinkedProgram
    tables: Tables
    steps: tuple[LinkedStep, ...]
    later: tuple[LinkedStep | None, ...] = ()

    def __post_init__(self) -> None:
        if len(self.steps) != self.program.step_count or len(self.later) not in (0, len(self.steps)):
            raise ValueError("steps, later: one for each that is prepared")


def linked_of(
    head: Mapping[str, Any], tables: Tables, steps: Sequence[Mapping[str, Any]], later: Sequence[Mapping[str, Any] | None] = ()
) -> Linked:
    """A program from plain values: the fields of its head, its tables, its steps and those of later runs; checked."""
    return Linked(
        msgspec.convert(head, LinkedProgram),
        tables,
        msgspec.convert(steps, tuple[LinkedStep, ...]),
        msgspec.convert(later, tuple[LinkedStep | None, ...]),
    )


def converted(document: Mapping[str, Any]) -> LinkedStep:
    """A step from plain values, checked."""
    return msgspec.convert(document, LinkedStep)
