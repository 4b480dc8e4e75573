"""Tapes: the C calls that made a program's objects, written down for native code to repeat (`native/src/loops`).

Operations that make one object are a group: a memory descriptor, attributes, a primitive with its descriptor, a memory.
Whatever equal steps share is one group. Groups are made in the order of need, each once, by whichever thread needs it first.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from edgeplan.runtime import constants, loops
from edgeplan.runtime.creation import Argument, Call, Created, KernelCall, Place
from edgeplan.runtime.dnnl import DIMS_BYTES, OTHER, STATUS, Dnnl, Handle, Mask, dims
from edgeplan.runtime.program_file import Section

_THREADS = "omp_set_num_threads"
#: Functions in the order in which a program lists those that it uses.
_FUNCTIONS = (*STATUS, *OTHER, _THREADS)
_WORD = 8
#: Primitives that fill tables with all their threads when they are generated. That starts a team while the cores are taken,
#: which costs several slices of the scheduler; what one thread generates is the same. (An LSTM's is not.)
_TABLES_IN_PARALLEL = frozenset({"dnnl_shuffle_forward_primitive_desc_create"})
#: Tables of objects; the object of the row at hand.
DESCRIPTORS, ATTRIBUTES, PRIMITIVES, MEMORIES, _AT_HAND = range(5)
#: Handles of an object, by tables: itself; attributes have post-operations besides, primitives their descriptor.
_HANDLES, _SECOND = (1, 2, 2, 1), 1
_NO_WEIGHTS = (loops.NO_WEIGHTS, 0, 0, 0)

Numbers = tuple[int, ...]


class Object(NamedTuple):
    """An object: its table, its row there, and which of its handles is meant."""

    table: int
    row: int
    handle: int = 0


class Given(NamedTuple):
    """An argument that is no float: its kind (`loops.NUMBER` and so on), and its value.

    That of a constant is its bytes, of a handle an object, of a scratch word the objects whose handles lie there in a row.
    """

    role: int
    value: Any


class Operation(NamedTuple):
    """An operation: its kind (`loops.CALL` and so on), its function and arguments."""

    kind: int
    function: str
    given: tuple[Given | float, ...]


ENGINE, _SELF, _RESULT = Given(loops.ENGINE, 0), Object(_AT_HAND, 0), Given(loops.RESULT, 0)
_ONE_THREAD = Operation(loops.TELL, _THREADS, (Given(loops.NUMBER, 1),))


def number(value: int) -> Given:
    """A number as an argument."""
    return Given(loops.NUMBER, value)


def handle(table: int, row: int, which: int = 0) -> Given:
    """A handle of an object as an argument."""
    return Given(loops.HANDLE, Object(table, row, which))


class Recorder(Dnnl):
    """The library, with everything that is made kept alive and remembered by its address."""

    def __init__(self) -> None:
        self.made: dict[int, tuple[Any, ...]] = {}
        self.asked: dict[int, tuple[int, int, int]] = {}
        self._alive: list[Handle] = []
        super().__init__()

    def _remember(self, handle: Handle, *made: Any) -> Handle:
        self._alive.append(handle)  # addresses of freed handles would be given out again
        self.made[handle.value] = made
        return handle

    def make(self, kind: str, function: str, *arguments: Any, keep: object = None) -> Handle:
        """Make a handle and remember what it was made from."""
        return self._remember(super().make(kind, function, *arguments, keep=keep), function, *arguments)

    def submemory(self, parent: Handle, shape: Sequence[int], offsets: Sequence[int]) -> Handle:
        """Make a view of a part and remember what it was made from."""
        made = ("dnnl_memory_desc_create_submemory", parent.value, dims(shape), dims(offsets))
        return self._remember(super().submemory(parent, shape, offsets), *made)

    def append(self, post_ops: Handle, kind: str, *arguments: Any) -> None:
        """Append a post-operation and remember it."""
        super().append(post_ops, kind, *arguments)
        self.made[post_ops.value] += ((f"dnnl_post_ops_append_{kind}", *arguments),)

    def attributes(self, post_ops: Handle | None = None, masks: Sequence[Mask] = ()) -> Handle:
        """Make attributes and remember their post-operations and masks."""
        handle = super().attributes(post_ops, masks)
        return self._remember(handle, self.made[post_ops.value][1:] if post_ops is not None else (), masks)

    def queried(self, descriptor: Handle, what: int, index: int = 0) -> int:
        """Ask for a memory descriptor and remember of what."""
        address = super().queried(descriptor, what, index)
        if address:
            self.asked[address] = (descriptor.value, what, index)
        return address


class Tape:
    """Operations of a program's objects, as they are asked for.

    `tables` are rows of objects, by what makes them, `needs` what each object is made from, in the order of need, `kernels`
    rows of compiled kernels: name, block (`graph.blocks`).
    """

    def __init__(self) -> None:
        self.tables: tuple[dict[tuple[Operation, ...], int], ...] = tuple({} for _ in _HANDLES)
        self.needs: dict[Object, tuple[Object, ...]] = {}
        self.kernels: dict[tuple[str, Numbers], int] = {}

    def _add(self, table: int, made: Iterable[Operation], needs: Iterable[Object]) -> int:
        rows = self.tables[table]
        row = rows.setdefault(tuple(made), len(rows))
        found = (one for need in needs for one in (*self.needs[need], need))
        self.needs.setdefault(Object(table, row), tuple(dict.fromkeys(found)))
        return row

    def descriptor(self, function: str, *given: Given | float) -> int:
        """The row of a memory descriptor that a function makes."""
        return self._add(DESCRIPTORS, [Operation(loops.CALL, function, (_RESULT, *given))], _objects(given))

    def asked(self, primitive: int, what: int, index: int) -> int:
        """The row of a memory descriptor that a primitive is asked for."""
        given = (handle(PRIMITIVES, primitive, _SECOND), number(what), number(index))
        return self._add(DESCRIPTORS, [Operation(loops.ASK, "dnnl_primitive_desc_query_md", given)], _objects(given))

    def attributes(self, posts: Sequence[tuple[str, Sequence[Given | float]]] = (), masks: Sequence[Mask] = ()) -> int:
        """The row of attributes by functions that append post-operations, and what they are given, and masks of scales."""
        own, operations = Given(loops.HANDLE, _SELF), Given(loops.HANDLE, _SELF._replace(handle=_SECOND))
        made: list[tuple[str, tuple[Given | float, ...]]] = [
            ("dnnl_primitive_attr_create", (_RESULT,)),
            ("dnnl_primitive_attr_set_scratchpad_mode", (own, number(constants.SCRATCHPAD_USER))),
        ]
        if posts:
            made.append(("dnnl_post_ops_create", (Given(loops.RESULT, _SECOND),)))
            made += [(function, (operations, *given)) for function, given in posts]
            made.append(("dnnl_primitive_attr_set_post_ops", (own, operations)))
        made += [(mask.function, (own, number(mask.argument), number(mask.axes))) for mask in masks]
        needs = _objects(one for _, given in posts for one in given)
        return self._add(ATTRIBUTES, [Operation(loops.CALL, *call) for call in made], needs)

    def primitive(
        self, function: str, implementation: str, attributes: int, threads: int, given: Sequence[Given | float]
    ) -> int:
        """The row of a primitive, by the function that describes it and its arguments between the result and the attributes.

        Many kernels keep the number of threads they were made for, and some choose layouts of weights by it.
        """
        described, last = Given(loops.HANDLE, _SELF._replace(handle=_SECOND)), handle(ATTRIBUTES, attributes)
        walk = (described, Given(loops.CONSTANT, implementation.encode() + b"\0"))
        made = [
            Operation(loops.CALL, function, (Given(loops.RESULT, _SECOND), *given, last)),
            Operation(loops.WALK, "", walk),
            *[_ONE_THREAD] * (threads > 1 and function in _TABLES_IN_PARALLEL),
            Operation(loops.CALL, "dnnl_primitive_create", (_RESULT, described)),
        ]
        if threads > 1:
            made = [Operation(loops.TELL, _THREADS, (number(threads),)), *made, _ONE_THREAD]
        arrays = (one.value for one in given if isinstance(one, Given) and one.role == loops.SCRATCH)
        copies = [Operation(loops.COPY, "", tuple(Given(loops.HANDLE, each) for each in array)) for array in arrays]
        return self._add(PRIMITIVES, [*copies, *made], _objects((last, *given)))

    def memory(self, descriptor: int, offset: int) -> int:
        """The row of a memory at an offset in the arena."""
        given = (_RESULT, handle(DESCRIPTORS, descriptor), ENGINE, Given(loops.MEMORY, offset))
        return self._add(MEMORIES, [Operation(loops.CALL, "dnnl_memory_create", given)], _objects(given))

    def kernel(self, name: str, block: Numbers) -> int:
        """The row of a compiled kernel."""
        return self.kernels.setdefault((name, block), len(self.kernels))


def _objects(given: Iterable[Given | float]) -> Iterator[Object]:
    """The objects whose handles are among arguments."""
    for one in given:
        if isinstance(one, Given) and one.role in (loops.HANDLE, loops.SCRATCH):
            found = one.value if one.role == loops.SCRATCH else [one.value]
            yield from (each._replace(handle=0) for each in found)


class RecordedTape(Tape):
    """A tape of what is made with a library that records it, by addresses."""

    def __init__(self, recorder: Recorder) -> None:
        super().__init__()
        self._dnnl = recorder
        self._threads = 1  # of the step at hand

    def calls(self, created: Created, threads: int, at: Callable[[Place], int] | None = None) -> tuple[Numbers, ...]:
        """The calls of a step, made by so many threads.

        Of each call its primitive, then pairs of argument number and memory, or -1 - slot; of a step that is bound later (`at`
        is None) pairs of argument number and descriptor. Of a compiled kernel -1 - its row, then the place of each operand, or
        0. `at` gives the offset in the arena of a place, or -1 - slot of a weight.
        """
        self._threads = threads
        return tuple(self._call(call, at) for call in created.calls)

    def _call(self, call: Call | KernelCall, at: Callable[[Place], int] | None) -> Numbers:
        if isinstance(call, KernelCall):
            return (-1 - self.kernel(call.kernel, call.block), *(at(place) if at else 0 for place in call.places))
        row = [self.primitive_at(call.descriptor.value)]
        for argument in call.arguments:
            row += argument.number, self._operand(argument, at)
        return tuple(row)

    def _operand(self, argument: Argument, at: Callable[[Place], int] | None) -> int:
        if at is None:
            return self.descriptor_at(argument.descriptor)
        if argument.place.region == "weights":
            return at(argument.place)
        return self.memory(self.descriptor_at(argument.descriptor), at(argument.place))

    def primitive_at(self, address: int, threads: int = 0) -> int:
        """The row of a primitive by its descriptor, made by so many threads; 0: those of the step at hand."""
        function, *given = self._dnnl.made[address]
        posts, masks = self._dnnl.made[given[-1]]
        attributes = self.attributes([(post, self._given(post, values)) for post, *values in posts], masks)
        arguments = self._given(function, given[:-1])
        implementation = self._dnnl.implementation(address)
        return self.primitive(function, implementation, attributes, threads or self._threads, arguments)

    def descriptor_at(self, address: int) -> int:
        """The row of a memory descriptor."""
        if address in self._dnnl.asked:
            of, what, index = self._dnnl.asked[address]
            return self.asked(self.primitive_at(of), what, index)
        function, *given = self._dnnl.made[address]
        return self.descriptor(function, *self._given(function, given))

    def _given(self, function: str, values: Sequence[Any]) -> list[Given | float]:
        """Arguments of a function, behind the first."""
        return [self._argument(declared, value) for declared, value in zip(STATUS[function][1:], values, strict=False)]

    def _argument(self, declared: Any, value: Any) -> Given | float:
        if declared is ctypes.c_float:
            return float(value)
        if declared is ctypes.c_void_p:
            return self._pointer(value)
        if not isinstance(value, ctypes.Array):
            return number(0 if value is None else int(value))
        if value._type_ is not ctypes.c_void_p:
            return Given(loops.CONSTANT, bytes(value))
        return Given(loops.SCRATCH, tuple(self._pointer(one).value for one in value))

    def _pointer(self, value: int | None) -> Given:
        if not value:
            return number(0)
        return ENGINE if value == self._dnnl.engine.value else handle(DESCRIPTORS, self.descriptor_at(value))


class Written:
    """A tape as a program holds it: its objects have numbers, those of a table behind those of the one before."""

    def __init__(self, tape: Tape) -> None:
        self._tape, self._constants, self._places, self._scratch = tape, bytearray(), dict[bytes, int](), 0
        self._operations: list[tuple[int, str, int, list[tuple[int, int]], list[float]]] = []
        counts = [len(rows) for rows in tape.tables]
        self._groups = [0, *accumulate(counts)]
        self._handles = [0, *accumulate(count * width for count, width in zip(counts, _HANDLES, strict=True))]
        self._starts = []
        for table, rows in enumerate(tape.tables):
            for row, operations in enumerate(rows):
                self._starts.append(len(self._operations))
                for operation in operations:
                    self._write(Object(table, row), operation)
        self._starts.append(len(self._operations))
        self._names = sorted({name for name, _ in tape.kernels})
        self._kernels = [
            (self._names.index(name), self._constant(np.array(block, np.int64).tobytes())) for name, block in tape.kernels
        ]
        names = ("descriptors", "attributes", "primitives", "memories")
        self.facts = dict(zip(names, counts, strict=True)) | {"scratch": self._scratch}

    def _group(self, one: Object) -> int:
        return self._groups[one.table] + one.row

    def _handle(self, one: Object) -> int:
        return self._handles[one.table] + _HANDLES[one.table] * one.row + one.handle

    def _constant(self, content: bytes) -> int:
        if content not in self._places:
            self._places[content] = len(self._constants)
            self._constants += content.ljust(-(-len(content) // _WORD) * _WORD, b"\0")
        return self._places[content]

    def _write(self, made: Object, operation: Operation) -> None:
        kind, function, given = operation
        integers = [self._integer(made, *one) for one in given if isinstance(one, Given)]
        if kind == loops.COPY:  # one for each handle
            self._operations += [
                (kind, "", -1, [(loops.NUMBER, at), one], []) for at, one in enumerate(integers, self._scratch)
            ]
            return
        floats = [one for one in given if not isinstance(one, Given)]
        self._operations.append((kind, function, self._handle(made) if kind == loops.ASK else -1, integers, floats))

    def _integer(self, made: Object, role: int, value: Any) -> tuple[int, int]:
        if role == loops.RESULT:
            return role, self._handle(made._replace(handle=value))
        if role == loops.HANDLE:
            return role, self._handle(made._replace(handle=value.handle) if value.table == _AT_HAND else value)
        if role == loops.CONSTANT:
            return role, self._constant(value)
        if role == loops.SCRATCH:
            self._scratch += len(value)
            return role, self._scratch - len(value)
        return role, value

    @property
    def sections(self) -> dict[Section, Any]:
        """Return the sections of the program that hold the tape."""
        count = len(self._operations)
        roles, values = np.zeros((count, loops.INTEGERS), np.int8), np.zeros((count, loops.INTEGERS), np.int64)
        floats = np.zeros((count, loops.FLOATS), np.float32)
        for row, (_, _, _, integers, given) in enumerate(self._operations):
            roles[row, : len(integers)], values[row, : len(integers)] = zip(*integers, strict=True)
            floats[row, : len(given)] = given
        called = {function for _, function, *_ in self._operations}
        used = {function: k for k, function in enumerate(name for name in _FUNCTIONS if name in called)}
        return {
            Section.FUNCTIONS: list(used),
            Section.KERNELS: self._names,
            Section.KINDS: [kind for kind, *_ in self._operations],
            Section.FUNCTION_OF: [used.get(function, 0) for _, function, *_ in self._operations],
            Section.MADE: [made for _, _, made, *_ in self._operations],
            Section.ROLES: roles,
            Section.VALUES: values,
            Section.FLOATS: floats,
            Section.STARTS: self._starts,
            Section.CONSTANTS: bytes(self._constants) + bytes(DIMS_BYTES),  # arrays of dimensions are read whole
        }

    def record(
        self,
        calls: Sequence[Numbers],
        weights: Numbers = _NO_WEIGHTS,
        slots: Sequence[tuple[int, int]] = (),
        *,
        bound: bool = True,
    ) -> list[int]:
        """A step as words: its head (`loops.HEAD_...`), the groups it needs, its slots, its calls.

        `weights` are source, segment, size and place, `slots` of each weight its descriptor and its offset among them. Calls
        are those of `RecordedTape.calls`; bound ones name memories.
        """
        needed, body = dict[Object, None](), list[int]()

        def need(table: int, row: int) -> int:
            one = Object(table, row)
            needed.update(dict.fromkeys((*self._tape.needs[one], one)))
            return self._handle(one)

        for target, offset in slots:  # what converts raw weights is made with them
            body += need(DESCRIPTORS, target), offset
        for primitive, *pairs in calls:
            if primitive < 0:
                name, start = self._kernels[-1 - primitive]
                body += -1 - name, len(pairs), start, *(pairs if bound else ())
                continue
            body += need(PRIMITIVES, primitive), len(pairs) // 2
            for argument, row in zip(pairs[::2], pairs[1::2], strict=True):
                body += argument, need(MEMORIES if bound else DESCRIPTORS, row) if row >= 0 else row
        return [*weights, len(needed), len(slots), len(calls), *map(self._group, needed), *body]


def record_sections(records: Sequence[Sequence[int]]) -> dict[Section, Any]:
    """The sections of a program that hold its records."""
    starts = [0, *accumulate(map(len, records))][:-1]
    return {Section.RECORDS: [word for record in records for word in record], Section.RECORD_STARTS: starts}
