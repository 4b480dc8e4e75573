"""The library's objects of a linked program, each made once, when first needed, by whichever thread needs it."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from itertools import accumulate
from types import MappingProxyType

import numpy as np

from edgeplan.errors import DeviceError
from edgeplan.runtime import constants, kernels, linked
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Buffer, allocate
from edgeplan.runtime.native import entries, words
from edgeplan.runtime.native.words import Numbers, Store, Tape
from edgeplan.runtime.tape import FUNCTIONS, NUMBER_OF, THREADS
from edgeplan.runtime.tape_file import TapeArrays, addresses

_LIBC = ctypes.CDLL(None)
_NOTHING = "labs"
_LIBRARY = MappingProxyType(
    {
        words.FN_QUERY: "dnnl_primitive_desc_query",
        words.FN_NEXT: "dnnl_primitive_desc_next_impl",
        words.FN_MEMORY: "dnnl_memory_create",
        words.FN_EXECUTE: "dnnl_primitive_execute",
        words.FN_THREADS: THREADS,
    }
)


@lru_cache
def _functions(path: str) -> tuple[Numbers, Numbers]:
    """Addresses of a loaded library's functions: by their numbers on tapes, and as rows of `places`.

    What calls them is loaded, too.
    """
    entries.load()
    library = ctypes.CDLL(path)
    found = addresses(lambda name: getattr(library, name))
    places = np.zeros(words.PLACES, np.int64)
    places[list(_LIBRARY)] = found[[NUMBER_OF[name] for name in _LIBRARY.values()]]
    if not places[words.FN_THREADS]:  # a library without OpenMP: any function that does nothing
        places[words.FN_THREADS] = addresses(lambda name: getattr(_LIBC, name), (_NOTHING,))[0]
    found[NUMBER_OF[THREADS]] = places[words.FN_THREADS]
    places[words.WHAT_NAME] = constants.QUERY_IMPL_INFO
    return found, places


def library_places(dnnl: Dnnl) -> Numbers:
    """Addresses of the functions that native code calls, as rows of `places`."""
    return _functions(dnnl.info.path)[1]


def _words(count: int) -> Numbers:
    return np.zeros(max(count, 1), np.int64)


def _kernels(names: tuple[str, ...]) -> Numbers:
    return np.array(kernels.load(names), np.int64) if names else _words(0)


def _all(kind: str, handles: Numbers) -> list[tuple[str, int]]:
    """Return the handles that were made; a profiler closes programs of thousands of rows that made few."""
    return [(kind, handle) for handle in handles[handles != 0].tolist()]


class Objects:
    """Handles of one linked program, by row of its tables.

    Two threads that need the same object: the second waits. A thread that makes primitives is left with one that executes.

    Args:
        dnnl: the library.
        arrays: how they are made.
        arena: address of the activations.

    Attributes:
        tape, store, places: what native code works on (`native`).
        context: the same as it takes them.
    """

    def __init__(self, dnnl: Dnnl, arrays: TapeArrays, arena: int) -> None:
        self._dnnl, self._arrays = dnnl, arrays
        layout, program, steps = arrays.layout, arrays.program, len(arrays.tape.record_starts)
        functions, places = _functions(dnnl.info.path)
        self.places: Numbers = places.copy()
        self.places[words.AT_ENGINE], self.places[words.AT_MEMORY] = dnnl.engine.value, arena
        self.places[words.AT_WEIGHTS] = arena + program.arena_bytes
        self.places[words.AT_CONSTANTS] = arrays.constants.ctypes.data
        self.places[words.CACHE_FILE] = -1
        self.tape: Tape = arrays.tape._replace(functions=functions[arrays.tape.functions])
        lanes = (program.main, *program.queues)
        ends = list(accumulate(len(lane) for lane in lanes))
        bounds = [bound for lane, end in zip(lanes, ends, strict=True) for bound in (end - len(lane), end)]
        self.store = Store(
            _words(layout.handles),
            _words(layout.groups),
            _words(arrays.scratch),
            _words(arrays.blocks),
            _words(words.ITEM_WORDS * steps),
            np.array([k for lane in lanes for k in lane], np.int64),
            np.array(bounds, np.int64),
            _words(words.FLAGS),
            _kernels(program.kernels),
        )
        self.store.flags[words.ARRIVED] = steps  # unless weights are read ahead
        self.context = entries.Context(self.tape, self.store, self.places)
        self._others: list[tuple[str, int]] = []
        self._blocks: list[tuple[Numbers, int, int]] = []

    def close(self) -> None:
        """Free every object; nothing may be used afterwards."""
        handles, layout = self.store.handles, self._arrays.layout
        attributes, primitives, memories = (part(0)[1] for part in (layout.attribute, layout.primitive, layout.memory))
        freed = self._others
        freed += _all("memory", handles[memories : layout.handles])
        for block, first, count in (*self._own_blocks(), *self._blocks):
            freed += _all("memory", block[first : first + count])
        freed += _all("primitive", handles[primitives:memories:2])
        freed += _all("primitive_desc", handles[primitives + 1 : memories : 2])
        freed += _all("primitive_attr", handles[attributes:primitives:2])
        freed += _all("post_ops", handles[attributes + 1 : primitives : 2])
        asked = self.tape.kinds[self.tape.starts[: layout.descriptors]] == words.ASK  # these belong to their primitives
        freed += _all("memory_desc", handles[: layout.descriptors][~asked])
        for kind, handle in freed:
            if handle:
                self._dnnl.function(f"dnnl_{kind}_destroy", brief=True)(handle)
        self._others, self._blocks = [], []
        for array in (self.store.handles, self.store.states, self.store.blocks, self.store.items):
            array[:] = 0

    def _own_blocks(self) -> list[tuple[Numbers, int, int]]:
        """Where the memories of the program's own steps lie, if these were prepared."""
        found = []
        for k in np.flatnonzero(self.store.items[words.FIRST :: words.ITEM_WORDS][: len(self.tape.record_starts)]):
            head = self.tape.records[self.tape.record_starts[k] :][: words.HEAD].tolist()
            first = head[words.HEAD_BLOCK] + words.memories_at(head[words.HEAD_CALLS])
            found.append((self.store.blocks, first, head[words.HEAD_SLOTS]))
        return found

    def keep(self, block: Numbers, record: Numbers) -> None:
        """Free the memories of a step's prepared calls at the end."""
        self._blocks.append((block, words.memories_at(int(record[words.HEAD_CALLS])), int(record[words.HEAD_SLOTS])))

    def publish(self, step: int, block: int) -> None:
        """One of the program's own steps is prepared."""
        entries.publish(self.context, step, block)

    # One object

    def _made(self, group: int) -> None:
        own = np.zeros(words.OWN_WORDS, np.int64)
        for needed in (*self._arrays.needs(group), group):
            if entries.ensure(self.context, own, needed) != words.DONE:
                self.fail(own)

    def fail(self, own: Numbers) -> None:
        """Say what the library refused."""
        operation, status = int(own[words.OWN_OPERATION]), int(own[words.OWN_STATUS])
        arrays, program = self._arrays, self._arrays.program
        function = "dnnl_memory_create" if operation < 0 else FUNCTIONS[int(arrays.tape.functions[operation])]
        kind = words.CALL if operation < 0 else int(arrays.tape.kinds[operation])
        if kind != words.WALK and status not in (constants.UNIMPLEMENTED, constants.LAST_IMPL_REACHED):
            self._dnnl.check(status, function)
        group = int(np.searchsorted(arrays.tape.starts, operation, side="right")) - 1
        name = arrays.implementation(group) or function
        raise DeviceError(
            f"this oneDNN does not offer {name!r}",
            where=f"model {program.model}, oneDNN {self._dnnl.info.version} ({self._dnnl.info.isa})",
            next_step=linked.AGAIN,
        )

    def descriptor(self, row: int) -> int:
        """Return a memory descriptor by its row."""
        self._made(row)
        return int(self.store.handles[row])

    def primitive(self, row: int) -> tuple[int, int]:
        """A primitive and its descriptor; steps that are equal share one."""
        group, handle = self._arrays.layout.primitive(row)
        self._made(group)
        return int(self.store.handles[handle]), int(self.store.handles[handle + 1])

    def memory(self, descriptor: int, address: int) -> int:
        """A memory over bytes at an address."""
        return self._memory(self.descriptor(descriptor), address)

    def _memory(self, described: int, address: int) -> int:
        out = ctypes.c_void_p()
        create = self._dnnl.function("dnnl_memory_create", brief=True)
        self._dnnl.check(create(ctypes.byref(out), described, self._dnnl.engine.value, address), "dnnl_memory_create")
        self._others.append(("memory", out.value or 0))
        return out.value or 0

    def scratchpad(self, described: int) -> tuple[int, Buffer] | None:
        """A memory for the scratchpad of a primitive that converts weights, and its bytes; None where it needs none."""
        query = self._dnnl.function("dnnl_primitive_desc_query_md", brief=True)
        descriptor = int(query(described, constants.QUERY_SCRATCHPAD_MD, 0) or 0)
        size = self._dnnl.size(descriptor)
        if not size:
            return None
        buffer = allocate(size)
        return self._memory(descriptor, buffer.address), buffer
