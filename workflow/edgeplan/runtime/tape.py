"""Tapes: the tables of a linked program as a list of C calls, which compiled code (`native`) works off.

Operations that make one object are a group: a memory descriptor, attributes, a primitive with its descriptor, a memory.
Groups are made in the order of need, each once, by whichever thread needs it first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from edgeplan.runtime import constants, linked
from edgeplan.runtime.linked import LinkedStep, Tables
from edgeplan.runtime.native import words
from edgeplan.runtime.program_file import Section
from edgeplan.runtime.signatures import DIMS_BYTES, OTHER, STATUS, Dims

#: Functions by the number that stands for them on a tape.
THREADS = "omp_set_num_threads"
FUNCTIONS = (*STATUS, *OTHER, THREADS)
NUMBER_OF = {name: number for number, name in enumerate(FUNCTIONS)}
_SOURCES = {
    "none": words.NO_WEIGHTS,
    "cached_read": words.COPIED,
    "cached_mmap": words.MAPPED,
    "raw": words.RAW,
    "shared": words.SHARED,
}
_WORD = 8
#: Primitives that fill tables with all their threads when they are generated. That starts a team while the cores are taken,
#: which costs several slices of the scheduler; what one thread generates is the same. (An LSTM's is not.)
_TABLES_IN_PARALLEL = frozenset({"dnnl_shuffle_forward_primitive_desc_create"})


class Given(NamedTuple):
    """An integer argument: its kind (`words.NUMBER` and so on) and value."""

    role: int
    value: int


@dataclass(frozen=True, slots=True)
class Layout:
    """Which numbers stand for a program's objects, in the order descriptors, attributes, primitives, memories.

    An attribute has two handles (itself, its post-operations), a primitive too (itself, its descriptor).
    """

    descriptors: int
    attributes: int
    primitives: int
    memories: int

    @property
    def groups(self) -> int:
        """Return the number of groups."""
        return self.descriptors + self.attributes + self.primitives + self.memories

    def attribute(self, row: int) -> tuple[int, int]:
        """Group and first handle of an attribute."""
        return self.descriptors + row, self.descriptors + 2 * row

    def primitive(self, row: int) -> tuple[int, int]:
        """Group of a primitive, and its handle; its descriptor's is the next."""
        return self.descriptors + self.attributes + row, self.descriptors + 2 * self.attributes + 2 * row

    def memory(self, row: int) -> tuple[int, int]:
        """Group and handle of a memory."""
        group = self.descriptors + self.attributes + self.primitives + row
        return group, self.descriptors + 2 * self.attributes + 2 * self.primitives + row


@dataclass
class Compiled:
    """A tape that is not tied to addresses yet, and what was learned on the way.

    Attributes:
        layout: numbers of objects.
        operations: kind, function, handle made, integer arguments, floats.
        starts: first operation of each group.
        needs: for each group those that it is made from, in the order of need.
        constants: bytes that operations point to.
        scratch: words that arrays of handles are put together in.
        kernels: of each row of kernels the number of its name, and where its block begins among the constants.
        kernel_names: names of the compiled kernels, by these numbers.
    """

    layout: Layout
    kernel_names: tuple[str, ...]
    operations: list[tuple[int, int, int, list[Given], list[float]]] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    needs: dict[int, tuple[int, ...]] = field(default_factory=dict)
    constants: bytearray = field(default_factory=bytearray)
    scratch: int = 0
    kernels: list[tuple[int, int]] = field(default_factory=list)


class Compiler:
    """Writes the operations of a program's objects.

    Args:
        tables: of the program.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self.layout = Layout(*tables.counts)
        self.result = Compiled(self.layout, tables.kernel_names)
        self._direct: dict[int, list[int]] = {}
        self._places: dict[bytes, int] = {}

    def compiled(self) -> Compiled:
        """Return all groups, and the groups that each is made from."""
        layout = self.layout
        makers = (
            *((self._describe, row, row) for row in range(layout.descriptors)),
            *((self._attribute, row, layout.attribute(row)[0]) for row in range(layout.attributes)),
            *((self._primitive, row, layout.primitive(row)[0]) for row in range(layout.primitives)),
            *((self._memory, row, layout.memory(row)[0]) for row in range(layout.memories)),
        )
        for make, row, group in makers:
            self.result.starts.append(len(self.result.operations))
            self._needed: list[int] = []
            make(row)
            self._direct[group] = self._needed
        self.result.starts.append(len(self.result.operations))
        for group in range(layout.groups):
            self._resolve(group)
        for name, numbers in self._tables.kernels:
            block = self._constant(np.array(numbers, np.int64).tobytes())
            self.result.kernels.append((self.result.kernel_names.index(name), block.value))
        return self.result

    def _resolve(self, group: int) -> tuple[int, ...]:
        known = self.result.needs.get(group)
        if known is None:
            self.result.needs[group] = ()  # tables that refer to themselves fail when they are made
            found: dict[int, None] = {}
            for other in self._direct[group]:
                found |= dict.fromkeys((*self._resolve(other), other))
            known = self.result.needs[group] = tuple(found)
        return known

    # Operations

    def _add(self, kind: int, function: str, given: Iterable[Given], floats: Sequence[float] = (), made: int = -1) -> None:
        self.result.operations.append((kind, NUMBER_OF.get(function, 0), made, list(given), list(floats)))

    def _call(self, function: str, *given: Given) -> None:
        self._add(words.CALL, function, given)

    def _constant(self, content: bytes) -> Given:
        place = self._places.get(content)
        if place is None:
            place = self._places[content] = len(self.result.constants)
            self.result.constants += content.ljust(-(-len(content) // _WORD) * _WORD, b"\0")
        return Given(words.CONSTANT, place)

    def _dims(self, values: Sequence[int]) -> Given:
        return self._constant(bytes(Dims(*values)))

    def _need(self, descriptor: int) -> Given:
        self._needed.append(descriptor)
        return Given(words.HANDLE, descriptor)

    def _describe(self, row: int) -> None:
        kind, *given = self._tables.descriptors[row]
        values: Any = given
        result = Given(words.RESULT, row)
        if kind == linked.BY_TAG:
            tag, *shape = values
            rank, dims = _number(len(shape)), self._dims(shape)
            self._call("dnnl_memory_desc_create_with_tag", result, rank, dims, _number(constants.F32), _number(tag))
        elif kind == linked.BYTES:
            given_tag = (_number(constants.U8), _number(constants.PLAIN_TAGS[1]))
            self._call("dnnl_memory_desc_create_with_tag", result, _number(1), self._dims(values), *given_tag)
        elif kind == linked.OF_TYPE:
            dtype, tag, *shape = values
            given_tag = (_number(dtype), _number(tag))
            self._call("dnnl_memory_desc_create_with_tag", result, _number(len(shape)), self._dims(shape), *given_tag)
        elif kind == linked.BY_STRIDES:
            shape, strides, *dtype = values
            given_type = _number(dtype[0] if dtype else constants.F32)
            rank, dims = _number(len(shape)), self._dims(shape)
            self._call("dnnl_memory_desc_create_with_strides", result, rank, dims, given_type, self._dims(strides))
        elif kind == linked.PART:
            parent, shape, offsets = values
            function = "dnnl_memory_desc_create_submemory"
            self._call(function, result, self._need(parent), self._dims(shape), self._dims(offsets))
        elif kind == linked.RENAMED:
            parent, axes = values
            order = self._constant(bytes((ctypes.c_int * len(axes))(*axes)))
            self._call("dnnl_memory_desc_permute_axes", result, self._need(parent), order)
        else:
            primitive, what, index = values
            group, handle = self.layout.primitive(primitive)
            self._needed.append(group)
            asked = (Given(words.HANDLE, handle + 1), _number(what), _number(index))
            self._add(words.ASK, "dnnl_primitive_desc_query_md", asked, made=row)

    def _attribute(self, row: int) -> None:
        _, handle = self.layout.attribute(row)
        attribute, operations = Given(words.HANDLE, handle), Given(words.HANDLE, handle + 1)
        self._call("dnnl_primitive_attr_create", Given(words.RESULT, handle))
        self._call("dnnl_primitive_attr_set_scratchpad_mode", attribute, _number(constants.SCRATCHPAD_USER))
        rows = self._tables.attributes[row]
        if posts := [post for post in rows if post[0] not in linked.MASKS]:
            self._call("dnnl_post_ops_create", Given(words.RESULT, handle + 1))
            for kind, *given in posts:
                values: list[Any] = list(given)
                if kind == "binary":
                    values[-1] = self._need(int(values[-1]))
                function = f"dnnl_post_ops_append_{kind}"
                self._add(words.CALL, function, *self._sorted([operations], STATUS[function][1:], values))
            self._call("dnnl_primitive_attr_set_post_ops", attribute, operations)
        for kind, *numbers in rows[len(posts) :]:
            self._call(f"dnnl_primitive_attr_set_{kind}_mask", attribute, *(_number(int(number)) for number in numbers))

    def _primitive(self, row: int) -> None:
        function, implementation, attributes, threads, given = self._tables.primitives[row]
        _, handle = self.layout.primitive(row)
        group, attribute = self.layout.attribute(attributes)
        self._needed.append(group)
        described = Given(words.HANDLE, handle + 1)
        integers, floats = self._sorted([Given(words.RESULT, handle + 1)], STATUS[function][1:-1], given)
        if threads > 1:
            self._threads(threads)
        self._add(words.CALL, function, [*integers, Given(words.HANDLE, attribute)], floats)
        self._add(words.WALK, "", [described, self._constant(implementation.encode() + b"\0")])
        if threads > 1 and function in _TABLES_IN_PARALLEL:
            self._threads(1)
        self._call("dnnl_primitive_create", Given(words.RESULT, handle), described)
        if threads > 1:
            self._threads(1)

    def _threads(self, count: int) -> None:
        self._add(words.TELL, THREADS, [_number(count)])

    def _memory(self, row: int) -> None:
        descriptor, offset = self._tables.memories[row]
        _, handle = self.layout.memory(row)
        place = (Given(words.ENGINE, 0), Given(words.MEMORY, offset))
        self._call("dnnl_memory_create", Given(words.RESULT, handle), self._need(descriptor), *place)

    def _sorted(self, first: list[Given], types: Sequence[Any], values: Sequence[Any]) -> tuple[list[Given], list[float]]:
        """Arguments of declared types, integers and floats apart."""
        integers, floats = list(first), list[float]()
        for declared, value in zip(types, values, strict=True):
            if declared is ctypes.c_float:
                floats.append(float(value))
            elif isinstance(value, Given):
                integers.append(value)
            elif declared is ctypes.c_void_p:
                integers.append(self._pointer(value))
            elif declared is Dims:
                integers.append(self._dims(value))
            elif isinstance(value, tuple):
                integers.append(self._array(value))
            else:
                integers.append(_number(0 if value is None else int(value)))
        return integers, floats

    def _pointer(self, value: int) -> Given:
        if value == linked.ENGINE:
            return Given(words.ENGINE, 0)
        return _number(0) if value == linked.NOTHING else self._need(value)

    def _array(self, values: Sequence[int]) -> Given:
        start = self.result.scratch
        self.result.scratch += len(values)
        for position, value in enumerate(values):
            self._add(words.COPY, "", [_number(start + position), self._pointer(value)])
        return Given(words.SCRATCH, start)


def _number(value: int) -> Given:
    return Given(words.NUMBER, value)


class _Needed:
    """The groups that a record needs, in the order of need."""

    def __init__(self, compiled: Compiled) -> None:
        self._compiled = compiled
        self.groups: dict[int, None] = {}

    def add(self, group: int) -> None:
        """A group and what it is made from."""
        self.groups.update(dict.fromkeys((*self._compiled.needs[group], group)))

    def primitive(self, row: int) -> int:
        """The handle of a primitive, which is needed."""
        group, handle = self._compiled.layout.primitive(row)
        self.add(group)
        return handle

    def memory(self, row: int) -> int:
        """The handle of a memory, which is needed."""
        group, handle = self._compiled.layout.memory(row)
        self.add(group)
        return handle


def record(compiled: Compiled, step: LinkedStep) -> list[int]:
    """A step as words: its head (`words.HEAD_...`), the groups it needs, its slots, its calls.

    Args:
        compiled: the tape of its program.
        step: the step.
    """
    needed, body = _Needed(compiled), list[int]()
    for target, _, offset, _, _ in step.slots:  # what converts raw weights is made with them
        needed.add(target)
        body += target, offset
    for primitive, *pairs in step.calls:
        if primitive < 0:
            name, start = compiled.kernels[-1 - primitive]
            body += -1 - name, len(pairs), start, *pairs
            continue
        body += needed.primitive(primitive), len(pairs) // 2
        for number, memory in zip(pairs[::2], pairs[1::2], strict=True):
            body += number, needed.memory(memory) if memory >= 0 else memory
    source = _SOURCES[step.source] if step.slots else words.NO_WEIGHTS
    head = (source, step.segment, step.weight_bytes, step.place, len(needed.groups), len(step.slots), len(step.calls))
    return [*head, *needed.groups, *body]


def unbound_record(compiled: Compiled, calls: Sequence[Sequence[int]]) -> list[int]:
    """A kernel that is bound to memory later as words: its head, the groups it needs, its calls.

    Args:
        compiled: the tape of its program.
        calls: as `linking.TableWriter.unbound` tells them.
    """
    needed, body = _Needed(compiled), list[int]()
    for primitive, *pairs in calls:
        if primitive < 0:
            name, start = compiled.kernels[-1 - primitive]
            body += -1 - name, len(pairs), start
            continue
        body += needed.primitive(primitive), len(pairs) // 2, *pairs
        for descriptor in pairs[1::2]:  # whose handles have the numbers of their rows
            needed.add(descriptor)
    return [words.NO_WEIGHTS, 0, 0, 0, len(needed.groups), 0, len(calls), *needed.groups, *body]


def tape_facts(compiled: Compiled) -> dict[str, int]:
    """Sections of a program file that hold a tape."""
    counted = compiled.layout
    names = ("descriptors", "attributes", "primitives", "memories")
    return {name: getattr(counted, name) for name in names} | {"scratch": compiled.scratch}


def tape_sections(compiled: Compiled) -> dict[Section, Any]:
    """A tape as sections of a program file."""
    count = len(compiled.operations)
    roles, values = np.zeros((count, words.INTEGERS), np.int8), np.zeros((count, words.INTEGERS), np.int64)
    floats = np.zeros((count, words.FLOATS), np.float32)
    used = sorted({function for kind, function, *_ in compiled.operations if kind in (words.CALL, words.ASK, words.TELL)})
    numbers = {function: number for number, function in enumerate(used)}
    for row, (_, _, _, integers, given) in enumerate(compiled.operations):
        if integers:
            roles[row, : len(integers)], values[row, : len(integers)] = zip(*integers, strict=True)
        floats[row, : len(given)] = given
    return {
        Section.FUNCTIONS: [FUNCTIONS[function] for function in used],
        Section.KERNELS: list(compiled.kernel_names),
        Section.KINDS: [kind for kind, *_ in compiled.operations],
        Section.FUNCTION_OF: [numbers.get(function, 0) for _, function, *_ in compiled.operations],
        Section.MADE: [handle for _, _, handle, *_ in compiled.operations],
        Section.ROLES: roles,
        Section.VALUES: values,
        Section.FLOATS: floats,
        Section.STARTS: compiled.starts,
        Section.CONSTANTS: bytes(compiled.constants) + bytes(DIMS_BYTES),  # arrays of dimensions are read whole
    }
