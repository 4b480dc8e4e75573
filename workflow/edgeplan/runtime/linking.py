"""Linking: the C calls that creating a program's steps makes, written down as tables."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from edgeplan.errors import DeviceError
from edgeplan.graph.steps import Step
from edgeplan.runtime import constants, linked
from edgeplan.runtime.creation import Call, Created, Creator, Implementation, KernelCall
from edgeplan.runtime.dnnl import Dnnl, Handle, Mask, Unsupported
from edgeplan.runtime.linked import Tables
from edgeplan.runtime.program import Program
from edgeplan.runtime.signatures import STATUS

Row = tuple[Any, ...]
_LOG = logging.getLogger(__name__)


class _Rows:
    """A table without repeated rows."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self._positions: dict[Hashable, int] = {}

    def add(self, row: Row) -> int:
        if row not in self._positions:
            self._positions[row] = len(self.rows)
            self.rows.append(row)
        return self._positions[row]


class Recorder(Dnnl):
    """The library, with everything that is made kept alive and remembered by its address."""

    def __init__(self) -> None:
        self.made: dict[int, Row] = {}
        self.asked: dict[int, tuple[int, int, int]] = {}
        self._alive: list[Handle] = []
        super().__init__()

    def make(self, kind: str, function: str, *arguments: Any, keep: object = None) -> Handle:
        """Make a handle and remember what it was made from."""
        handle = super().make(kind, function, *arguments, keep=keep)
        self._alive.append(handle)  # addresses of freed handles would be given out again
        self.made[handle.value] = (function, *arguments)
        return handle

    def submemory(self, parent: Handle, shape: Sequence[int], offsets: Sequence[int]) -> Handle:
        """Make a view of a part and remember what it was made from."""
        handle = super().submemory(parent, shape, offsets)
        self._alive.append(handle)
        self.made[handle.value] = ("submemory", parent.value, tuple(shape), tuple(offsets))
        return handle

    def append(self, post_ops: Handle, kind: str, *arguments: Any) -> None:
        """Append a post-operation and remember it."""
        super().append(post_ops, kind, *arguments)
        self.made[post_ops.value] += ((kind, *arguments),)

    def attributes(self, post_ops: Handle | None = None, masks: Sequence[Mask] = ()) -> Handle:
        """Make attributes and remember their post-operations and masks."""
        handle = super().attributes(post_ops, masks)
        self.made[handle.value] = (*(self.made[post_ops.value][1:] if post_ops is not None else ()), *map(tuple, masks))
        return handle

    def queried(self, descriptor: Handle, what: int, index: int = 0) -> int:
        """Ask for a memory descriptor and remember of what."""
        address = super().queried(descriptor, what, index)
        if address:
            self.asked[address] = (descriptor.value, what, index)
        return address


class TableWriter:
    """Collects the tables of what is made with a library that records it.

    Args:
        recorder: the library.
    """

    def __init__(self, recorder: Recorder) -> None:
        self._dnnl = recorder
        self._descriptors, self._attributes, self._primitives, self._memories = _Rows(), _Rows(), _Rows(), _Rows()
        self._kernels = _Rows()
        self._threads = 1  # of the step at hand

    def tables(self) -> Tables:
        """The tables of all that was asked for."""
        rows = (self._descriptors, self._attributes, self._primitives, self._memories, self._kernels)
        return Tables(*(tuple(table.rows) for table in rows))

    def unbound(self, created: Created, threads: int) -> tuple[tuple[int, ...], ...]:
        """The calls of a step that is bound to memory later, made by so many threads.

        Returns:
            Of each call its primitive, then pairs of argument number and descriptor; of a compiled kernel -1 - its row, then 0
            for each operand.
        """
        self._threads = threads
        return tuple(map(self._unbound, created.calls))

    def _unbound(self, call: Call | KernelCall) -> tuple[int, ...]:
        if isinstance(call, KernelCall):
            return (-1 - self._kernels.add((call.kernel, call.block)), *[0] * len(call.places))
        pairs = ((argument.number, self._descriptor(argument.descriptor)) for argument in call.arguments)
        return (self._primitive(call.descriptor.value, self._threads), *(number for pair in pairs for number in pair))

    def _primitive(self, address: int, threads: int) -> int:
        function, *given = self._dnnl.made[address]
        types = STATUS[function][1:]
        attributes = self._attributes.add(self._posts(given[-1]))
        arguments = tuple(self._argument(kind, value) for kind, value in zip(types[:-1], given[:-1], strict=True))
        implementation = self._dnnl.implementation_at(address)
        return self._primitives.add((function, implementation, attributes, threads, arguments))

    def _posts(self, address: int) -> Row:
        def portable(post: Row) -> Row:
            return (*post[:-1], self._descriptor(post[-1])) if post[0] == "binary" else post

        return tuple(portable(post) for post in self._dnnl.made[address])

    def _argument(self, kind: Any, value: Any) -> linked.Argument:
        if kind is ctypes.c_void_p:
            return self._pointer(value)
        if isinstance(value, ctypes.Array):
            values = tuple(value)
            return tuple(self._pointer(v) for v in values) if value._type_ is ctypes.c_void_p else values
        return value  # type: ignore[no-any-return]

    def _pointer(self, value: int | None) -> int:
        if not value:
            return linked.NOTHING
        return linked.ENGINE if value == self._dnnl.engine.value else self._descriptor(value)

    def _descriptor(self, address: int) -> int:
        if address in self._dnnl.asked:
            of, what, index = self._dnnl.asked[address]
            return self._descriptors.add((linked.ASKED, self._primitive(of, self._threads), what, index))
        function, *given = self._dnnl.made[address]
        if function == "dnnl_memory_desc_create_with_tag":
            return self._descriptors.add(_by_tag(*given))
        if function == "dnnl_memory_desc_create_with_strides":
            rank, shape, kind, strides = given
            row = (linked.BY_STRIDES, tuple(shape[:rank]), tuple(strides[:rank]))
            return self._descriptors.add(row if kind == constants.F32 else (*row, kind))
        if function == "submemory":
            parent, shape, offsets = given
            return self._descriptors.add((linked.PART, self._descriptor(parent), shape, offsets))
        parent, axes = given
        return self._descriptors.add((linked.RENAMED, self._descriptor(parent), tuple(axes)))


class Linker(TableWriter):
    """Collects the tables of one program.

    Args:
        recorder: the library that the program's descriptors are recorded with.
        program: implementations and buffers.
        threads: the most that execute.
    """

    def __init__(self, recorder: Recorder, program: Program, threads: int) -> None:
        super().__init__(recorder)
        self._most, self._program = threads, program
        self._creator = Creator(recorder, program.shapes, program.layouts, program.offsets, program.types)
        self._files = _Rows()
        self.scratch_bytes = 0

    def step(self, step: Step, choice: Implementation, source: str, threads: int) -> tuple[dict[str, Any], Created]:
        """The row of a step under an implementation, executed by so many threads; places and checksum are left 0.

        Some implementations are offered for some numbers of threads only: then the step is made for another.
        """
        created = self._created(step, choice, threads)
        self.scratch_bytes = max(self.scratch_bytes, created.scratch_bytes)
        row = {
            "name": step.name,
            "implementation": choice.name,
            "source": source if created.slots else "none",
            "calls": tuple(self._call(call, created) for call in created.calls),
            "slots": tuple(self._slots(created)),
            "weight_bytes": created.weight_bytes,
            "raw": tuple(row for role, name in step.weights.items() for row in self._raw(role, name)),
            "kind": step.kind,
            "settings": {k: v for k, v in step.settings.items() if created.slots},
            "place": 0,
            "segment": 0,
            "checksum": 0,
        }
        return row, created

    def _created(self, step: Step, choice: Implementation, wanted: int) -> Created:
        failure: Exception | None = None
        for threads in dict.fromkeys((wanted, *range(1, self._most + 1))):
            self._dnnl.set_threads(threads)
            self._threads = threads
            try:
                created = self._creator.create(step, choice, generate=False)
            except (DeviceError, Unsupported) as error:
                failure = failure or error
                continue
            finally:
                self._dnnl.set_threads(1)
            if threads != wanted:
                _LOG.warning("step %s: %s is offered for %d threads, not for %d", step.name, choice.name, threads, wanted)
            return created
        raise failure or AssertionError

    def same_weights(self, one: Created, other: Created) -> bool:
        """Tell whether two implementations of a step read the same bytes as their weights."""
        pairs = zip(one.slots, other.slots, strict=True)
        return all(a.offset == b.offset and self._dnnl.equal(a.target, b.target) for a, b in pairs)

    @property
    def files(self) -> tuple[str, ...]:
        """Files of weights, relative to the model's folder."""
        return tuple(row[0] for row in self._files.rows)

    def _raw(self, role: str, name: str) -> Iterator[dict[str, Any]]:
        for end, part in self._program.weights[name].parts:
            yield {
                "role": role + end,
                "file": self._files.add((part.file,)),
                "offset": part.offset,
                "size": part.size,
                "shape": (part.count,) if end else self._program.shapes[name],
                "stride": part.stride,
                "dtype": part.dtype,
                "axis": part.axis,
            }

    def _call(self, call: Call | KernelCall, created: Created) -> tuple[int, ...]:
        slots = {slot.offset: position for position, slot in enumerate(created.slots)}
        if isinstance(call, KernelCall):
            starts = {"arena": 0, "scratch": self._program.scratch_offset}
            places = (
                -1 - slots[place.offset] if place.region == "weights" else starts[place.region] + place.offset
                for place in call.places
            )
            return (-1 - self._kernels.add((call.kernel, call.block)), *places)
        row = [self._primitive(call.descriptor.value, self._threads)]
        bases = {"arena": 0, "scratch": self._program.scratch_offset}
        for argument in call.arguments:
            place = argument.place
            if place.region == "weights":
                row += (argument.number, -1 - slots[place.offset])
            else:
                memory = (self._descriptor(argument.descriptor), bases[place.region] + place.offset)
                row += (argument.number, self._memories.add(memory))
        return tuple(row)

    def _slots(self, created: Created) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for slot in created.slots:
            conversion = -1
            if not self._dnnl.equal(slot.source.value, slot.target):
                conversion = self._primitive(self._dnnl.reorder(slot.source.value, slot.target).value, 1)
            source, target = self._descriptor(slot.source.value), self._descriptor(slot.target)
            found.append((target, source, slot.offset, slot.size, conversion))
        return found


def _by_tag(rank: int, shape: Sequence[int], kind: int, tag: int) -> tuple[int, ...]:
    """Return the row of a descriptor that was made by a tag."""
    if kind == constants.F32:
        return linked.BY_TAG, tag, *shape[:rank]
    if kind == constants.U8 and rank == 1:
        return linked.BYTES, shape[0]
    return linked.OF_TYPE, kind, tag, *shape[:rank]
