"""The library's objects of a linked program, each made once, when first needed, by whichever thread needs it."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

from edgeplan.errors import DeviceError
from edgeplan.runtime import constants, linked
from edgeplan.runtime.dnnl import Dnnl, Unsupported
from edgeplan.runtime.executable import Buffer, allocate
from edgeplan.runtime.linked import LinkedProgram
from edgeplan.runtime.signatures import STATUS, Dims, ExecArg

_Call = tuple[int, int, ctypes.Array[ExecArg]]
#: Primitives that fill tables with all their threads when they are generated. That starts a team while the cores are taken,
#: which costs several slices of the scheduler; what one thread generates is the same. (An LSTM's is not.)
_TABLES_IN_PARALLEL = frozenset({"dnnl_shuffle_forward_primitive_desc_create"})


class Objects:
    """Handles of one linked program, by row of its tables.

    Two threads that need the same primitive: the second waits. Two that need the same descriptor or memory make it twice,
    which costs less than a lock. A thread that makes primitives is left with one thread of execution.

    Args:
        dnnl: the library.
        program: the tables.
        arena: address of the activations.
    """

    def __init__(self, dnnl: Dnnl, program: LinkedProgram, arena: int) -> None:
        self._dnnl, self._program, self._arena = dnnl, program, arena
        self._engine = dnnl.engine.value
        self._descriptors: list[int] = [0] * len(program.descriptors)
        self._memories: list[int] = [0] * len(program.memories)
        self._primitives: list[tuple[int, int]] = [(0, 0)] * len(program.primitives)
        self._locks = [threading.Lock() for _ in program.primitives]
        self._attributes: list[int] = [0] * len(program.attributes)
        self._owned: list[tuple[str, int]] = []  # appending is atomic
        self._new_memory = dnnl.function("dnnl_memory_create", brief=True)
        self._query_md = dnnl.function("dnnl_primitive_desc_query_md", brief=True)
        self._query = dnnl.function("dnnl_primitive_desc_query", brief=True)
        self._new_primitive = dnnl.function("dnnl_primitive_create")

    def close(self) -> None:
        """Free everything. Nothing of it may be used afterwards."""
        while self._owned:
            kind, handle = self._owned.pop()
            self._dnnl.function(f"dnnl_{kind}_destroy", brief=True)(handle)

    def _make(self, kind: str, function: str, *arguments: Any, brief: bool = True) -> int:
        out = ctypes.c_void_p()
        status = self._dnnl.function(function, brief=brief)(ctypes.byref(out), *arguments)
        if status:
            self._dnnl.check(status, function)
        handle = out.value or 0
        self._owned.append((kind, handle))
        return handle

    # Descriptors and attributes

    def descriptor(self, row: int) -> int:
        """A memory descriptor."""
        known = self._descriptors[row]
        if not known:
            known = self._descriptors[row] = self._describe(self._program.descriptors[row])
        return known

    def _describe(self, row: tuple[Any, ...]) -> int:
        kind, *given = row
        make, f32 = self._make, constants.F32
        if kind == linked.BY_TAG:
            tag, *shape = given
            return make("memory_desc", "dnnl_memory_desc_create_with_tag", len(shape), Dims(*shape), f32, tag)
        if kind == linked.BY_STRIDES:
            shape, strides = given
            function = "dnnl_memory_desc_create_with_strides"
            return make("memory_desc", function, len(shape), Dims(*shape), f32, Dims(*strides))
        if kind == linked.PART:
            parent, shape, offsets = given
            function = "dnnl_memory_desc_create_submemory"
            return make("memory_desc", function, self.descriptor(parent), Dims(*shape), Dims(*offsets))
        if kind == linked.RENAMED:
            parent, axes = given
            function = "dnnl_memory_desc_permute_axes"
            return make("memory_desc", function, self.descriptor(parent), (ctypes.c_int * len(axes))(*axes))
        primitive, what, index = given
        return int(self._query_md(self.primitive(primitive)[1], what, index) or 0)

    def _attribute(self, row: int) -> int:
        known = self._attributes[row]
        if not known:
            known = self._make("primitive_attr", "dnnl_primitive_attr_create")
            self._dnnl.function("dnnl_primitive_attr_set_scratchpad_mode", brief=True)(known, constants.SCRATCHPAD_USER)
            if posts := self._program.attributes[row]:
                operations = self._make("post_ops", "dnnl_post_ops_create")
                for kind, *given in posts:
                    arguments = [*given[:-1], self.descriptor(int(given[-1]))] if kind == "binary" else given
                    append = f"dnnl_post_ops_append_{kind}"
                    self._dnnl.check(self._dnnl.function(append, brief=True)(operations, *arguments), append)
                attach = "dnnl_primitive_attr_set_post_ops"
                self._dnnl.check(self._dnnl.function(attach, brief=True)(known, operations), attach)
            self._attributes[row] = known
        return known

    # Primitives

    def primitive(self, row: int) -> tuple[int, int]:
        """A primitive and its descriptor; steps that are equal share one.

        Raises:
            DeviceError: the library does not offer the implementation.
        """
        known = self._primitives[row]
        if known[0]:
            return known
        with self._locks[row]:
            known = self._primitives[row]
            if not known[0]:
                known = self._primitives[row] = self._generate(row)
        return known

    def _generate(self, row: int) -> tuple[int, int]:
        function, implementation, attributes, threads, given = self._program.primitives[row]
        arguments = [self._argument(kind, value) for kind, value in zip(STATUS[function][1:-1], given, strict=True)]
        attribute = self._attribute(attributes)
        if threads > 1:
            self._dnnl.set_threads(threads)
        try:
            described = self._make("primitive_desc", function, *arguments, attribute, brief=False)
            self._walk_to(described, implementation)
            if function in _TABLES_IN_PARALLEL:
                self._dnnl.set_threads(1)
            return self._make("primitive", "dnnl_primitive_create", described, brief=False), described
        except Unsupported as error:
            raise DeviceError(
                f"this oneDNN does not offer {implementation!r}",
                where=f"model {self._program.model}, oneDNN {self._dnnl.info.version} ({self._dnnl.info.isa})",
                next_step=linked.AGAIN,
            ) from error
        finally:
            if threads > 1:
                self._dnnl.set_threads(1)

    def _walk_to(self, described: int, implementation: str) -> None:
        """Found by name: a warm primitive cache repeats implementations in the walk, so positions shift."""
        wanted, text = implementation.encode(), ctypes.c_char_p()
        while True:
            self._dnnl.check(self._query(described, constants.QUERY_IMPL_INFO, 0, ctypes.byref(text)), "query")
            if text.value == wanted:
                return
            step = "dnnl_primitive_desc_next_impl"
            self._dnnl.check(self._dnnl.function(step)(described), step)

    def _argument(self, kind: Any, value: Any) -> Any:
        if kind is ctypes.c_void_p:
            return self._pointer(value)
        if kind is Dims:
            return Dims(*value)
        if isinstance(value, Sequence):
            return (ctypes.c_void_p * len(value))(*[self._pointer(v) for v in value])
        return value

    def _pointer(self, value: int) -> int | None:
        if value == linked.ENGINE:
            return self._engine
        return None if value == linked.NOTHING else self.descriptor(value)

    # Memories and calls

    def memory(self, descriptor: int, address: int) -> int:
        """A memory over bytes at an address."""
        out = ctypes.c_void_p()
        if status := self._new_memory(ctypes.byref(out), self.descriptor(descriptor), self._engine, address):
            self._dnnl.check(status, "dnnl_memory_create")
        handle = out.value or 0
        self._owned.append(("memory", handle))
        return handle

    def scratchpad(self, described: int) -> tuple[int, Buffer] | None:
        """A memory for the scratchpad of a primitive that converts weights, and its bytes; None where it needs none."""
        descriptor = int(self._query_md(described, constants.QUERY_SCRATCHPAD_MD, 0) or 0)
        size = self._dnnl.size(descriptor)
        if not size:
            return None
        buffer = allocate(size)
        out = ctypes.c_void_p()
        self._dnnl.check(self._new_memory(ctypes.byref(out), descriptor, self._engine, buffer.address), "dnnl_memory_create")
        self._owned.append(("memory", out.value or 0))
        return out.value or 0, buffer

    def _activation(self, row: int) -> int:
        known = self._memories[row]
        if not known:
            descriptor, offset = self._program.memories[row]
            known = self._memories[row] = self.memory(descriptor, self._arena + offset)
        return known

    def calls(self, step: linked.LinkedStep, weights: int) -> list[_Call]:
        """The calls of a step whose primitives exist, its transformed weights lying at an address."""
        slots = [self.memory(target, weights + offset) for target, _, offset, _, _ in step.slots]
        found = []
        for primitive, *rest in step.calls:
            count = len(rest) // 2
            arguments = (ExecArg * count)()
            for position in range(count):
                number, memory = rest[2 * position], rest[2 * position + 1]
                arguments[position] = ExecArg(number, self._activation(memory) if memory >= 0 else slots[-1 - memory])
            found.append((self.primitive(primitive)[0], count, arguments))
        return found
