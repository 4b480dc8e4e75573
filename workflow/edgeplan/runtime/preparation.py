"""Preparing the steps of a linked program: create, read, transform, bind. A `Preparer` for each thread around shared parts.

What is as usual is done by compiled code (`native`); raw weights, and weights that must be looked at, by Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Self

import numpy as np

from edgeplan.errors import ModelError
from edgeplan.runtime.dnnl import Dnnl, Handle
from edgeplan.runtime.folder import PlanFolder, decoded
from edgeplan.runtime.linked import LinkedProgram, LinkedStep, Reserve
from edgeplan.runtime.memory import Bytes, ZeroedMemory
from edgeplan.runtime.native import entries, words
from edgeplan.runtime.native.words import Numbers
from edgeplan.runtime.objects import Objects, library_places
from edgeplan.runtime.raw_weights import RawFiles, Staging, transform
from edgeplan.runtime.tape import block_words
from edgeplan.runtime.tape_file import TapeArrays
from edgeplan.runtime.weight_cache import WeightCache

CACHE_NAME, RESERVE_NAME = "weights.cache", "reserve.json"
#: Addresses where a step's prepared calls begin and end (`words.FIRST`).
Calls = tuple[int, int]
_STAGES = ("read", "create")
_MARKS = 4  # of a step: its kernels are made ahead, found made, its weights fetched, its calls written down
#: Stage of which step, from when to when (`time.perf_counter_ns`).
Mark = tuple[str, int, int, int]


def read_reserve(plan: PlanFolder) -> Reserve:
    """Read the reserve of a plan's program."""
    return decoded(plan.content(RESERVE_NAME), Reserve, plan.path / RESERVE_NAME, plan.kind)


class Shared:
    """The shared part of a session: files, memory, and the library's objects.

    Args:
        dnnl: the library.
        program: what is run.
        folder: of the plan.
        tape: of the program.
        reserve: gives the reserve of the program, which is asked for when it is first needed.
        memory: for activations and transformed weights; a fresh region if not given.
        cache: where the weight cache lies; in the folder if not given.
        cached: whether there is a cache: a folder that is being written has none yet.
        opened: whether what weights come from is open at once; else kernels can be made before it is (`open_files`).
    """

    def __init__(
        self,
        dnnl: Dnnl,
        program: LinkedProgram,
        folder: Path,
        *,
        tape: TapeArrays,
        reserve: Callable[[], Reserve],
        memory: ZeroedMemory | None = None,
        cache: Path | None = None,
        cached: bool = True,
        opened: bool = True,
    ) -> None:
        self.dnnl, self.program = dnnl, program
        self.tape = tape
        self.raw = RawFiles(program, folder)
        self.cache = WeightCache(cache or folder / CACHE_NAME, program)
        self.memory = memory or ZeroedMemory(program.arena_bytes + program.weights_bytes)
        self.objects = self.new_objects()
        self._cached, self._read_reserve = cached, reserve
        self._reserve: Reserve | None = None
        self.step_count = program.step_count
        self.weights = [0] * self.step_count  # addresses, for later runs
        self._reading = threading.Lock()
        self.keep: list[ZeroedMemory] = []  # weights that had no place of their own
        if opened:
            self.open_files()
        else:
            self.objects.store.flags[words.ARRIVED] = 0

    def open_files(self) -> None:
        """Open what weights come from. Lanes still take none: whoever calls this says when they have come (`ARRIVED`)."""
        self.raw.open()
        if self._cached:
            self.cache.open()
        self._trust(self.objects, self.cache)

    def new_objects(self) -> Objects:
        """Objects of the program, none of them made yet."""
        return self.trusting(self.cache)

    def trusting(self, cache: WeightCache) -> Objects:
        """Objects that take weights from a cache as they are, if nobody touched it."""
        objects = Objects(self.dnnl, self.tape, self.memory.address)
        self._trust(objects, cache)
        return objects

    @staticmethod
    def _trust(objects: Objects, cache: WeightCache) -> None:
        objects.places[words.CACHE_FILE], objects.places[words.AT_MAP] = cache.trusted

    @property
    def reserve(self) -> Reserve:
        """Return the program's reserve: for raw weights, a failed cache and later runs. The first caller reads it."""
        with self._reading:
            if self._reserve is None:
                self._reserve = self._read_reserve()
            return self._reserve

    @property
    def steps(self) -> tuple[LinkedStep, ...]:
        """Return the steps of the program, in order of execution."""
        return self.reserve.steps

    def weights_of(self, index: int) -> int:
        """Where the transformed weights of a step lie that is prepared; 0 without any."""
        step, (_, mapped) = self.steps[index], self.cache.trusted
        if self.weights[index] or not step.cached:
            return self.weights[index]
        if step.source == "cached_mmap":
            return mapped + step.segment
        return self.memory.address + self.program.arena_bytes + step.place

    def require_unchanged(self, *, copied: bool) -> None:
        """Weights in use are those that were there when the files were opened.

        Args:
            copied: whether any were copied from the files since this was asked last; what is mapped is read by every run.
        """
        changed = self.cache.changed(copied=copied) or (self.raw.changed() if copied else "")
        if changed:
            raise ModelError(
                "weights were changed while they were in use: outputs may be wrong",
                where=changed,
                next_step="open the plan again; put other files in place by renaming, never write into those in use",
            )

    def close(self) -> None:
        """Close the files and free the library's objects."""
        self.raw.close()
        self.cache.close()
        self.objects.close()
        self.keep.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class Executor:
    """Executes prepared steps in one thread.

    Args:
        dnnl: the library.
    """

    def __init__(self, dnnl: Dnnl) -> None:
        self._dnnl, self._stream = dnnl, dnnl.stream()
        self.own: Numbers = np.zeros(words.OWN_WORDS, np.int64)
        self.own[words.OWN_STREAM] = self._stream.value
        self._places = library_places(dnnl)
        self._items: Numbers = np.zeros(words.ITEM_WORDS, np.int64)
        self._times: Numbers = np.zeros(2, np.int64)

    def execute(self, calls: Calls) -> None:
        """Execute the calls of one step; see `run`."""
        self._items[words.FIRST], self._items[words.END] = calls
        self.run(self._items, self._times)

    def run(self, items: Numbers, times: Numbers) -> None:
        """Execute steps, all of them prepared, in order.

        Args:
            items: the steps as the loop takes them (`words.NEEDED`).
            times: when each began and ended is put there.
        """
        if entries.run_lane(self._places, self.own, items, times) != words.DONE:
            self._dnnl.check_execution(int(self.own[words.OWN_STATUS]))


class Preparer:
    """Prepares steps in one thread.

    Args:
        shared: what it has in common with others.
        staging: memory for raw weights on their way; fresh if not given.

    Attributes:
        own, marks: the thread's memory for compiled code.
    """

    def __init__(self, shared: Shared, staging: Staging | None = None) -> None:
        self._shared = shared
        self._staging = staging or Staging()
        self.own: Numbers = np.zeros(words.OWN_WORDS, np.int64)
        self.marks: Numbers = np.zeros(4 * (_MARKS * shared.step_count + 2), np.int64)

    @cached_property
    def _stream(self) -> Handle:
        return self._shared.dnnl.stream()

    def prepare(self, index: int, step: LinkedStep, marks: list[Mark]) -> Calls:
        """Prepare a step for its execution.

        Args:
            index: number of the step.
            step: its row.
            marks: where to note what was done when.
        """
        objects = self._shared.objects
        record = self._shared.tape.record(index, step)
        block: Numbers = np.zeros(block_words(record), np.int64)
        objects.keep(block, record)
        address = int(block.ctypes.data)
        found = entries.prepare(objects.context, self.own, self.marks, record, index, address)
        marks += self.taken_marks()
        if found == words.LEFT_TO_PYTHON:
            self._prepare_by_hand(index, step, record, address, marks)
        else:
            self._checked(found)
        return address, address + words.WORD * words.memories_at(int(record[words.HEAD_CALLS]))

    def take_over(self, index: int, marks: list[Mark]) -> int:
        """Prepare one of the program's own steps that compiled code left to Python; it is still to be published.

        Returns:
            The address of its block.
        """
        objects, arrays = self._shared.objects, self._shared.tape
        at = int(arrays.tape.record_starts[index])
        block = objects.store.blocks.ctypes.data + words.WORD * int(arrays.tape.records[at + words.HEAD_BLOCK])
        step = self._shared.steps[index]
        records = arrays.tape.records[at:]
        self._prepare_by_hand(index, step, records, int(block), marks)
        return int(block)

    def _prepare_by_hand(self, index: int, step: LinkedStep, record: Numbers, block: int, marks: list[Mark]) -> None:
        """Prepare a step that needs Python: raw weights, weights to be checked, weights that are there already."""
        shared, objects = self._shared, self._shared.objects
        self._checked(entries.create(objects.context, self.own, self.marks, record, index))
        start = perf_counter_ns()
        address, raw = 0, None
        if step.source == "shared":
            address = shared.weights_of(index)
        elif step.cached:
            address = shared.cache.fetch(step, shared.memory, shared.program.arena_bytes)
        if not address:
            raw = shared.raw.read(step.raw, self._staging)
        marks.append(("read", index, start, perf_counter_ns()))
        if raw is not None:
            address = self._place(step)
            start = perf_counter_ns()
            transform(shared.dnnl, objects, self._stream, step, raw, address)
            marks.append(("transform", index, start, perf_counter_ns()))
        shared.weights[index] = shared.weights[index] or address
        self._checked(entries.bind(objects.context, self.own, self.marks, record, index, block, address))
        marks += self.taken_marks()

    def _checked(self, found: int) -> None:
        if found != words.DONE:
            self._shared.objects.fail(self.own)

    def fetch(self, index: int, step: LinkedStep, marks: list[Mark]) -> int:
        """The address of a step's weights from a trusted cache, a part of its preparation; 0 if they cannot be had."""
        found = entries.fetch(self._shared.objects.context, self.own, self.marks, self._shared.tape.record(index, step), index)
        marks += self.taken_marks()
        return max(found, 0)

    def taken_marks(self) -> list[Mark]:
        """Return the marks of compiled code since the last call."""
        count = int(self.own[words.OWN_MARKS])
        self.own[words.OWN_MARKS] = 0
        rows: list[list[int]] = self.marks[: 4 * count].reshape(-1, 4).tolist()
        return [(_STAGES[stage], step, start, end) for stage, step, start, end in rows]

    def _place(self, step: LinkedStep) -> int:
        """Where transformed weights go: their place, or memory of their own where they were to be mapped."""
        if step.source != "cached_mmap":
            return self._shared.memory.address + self._shared.program.arena_bytes + step.place
        region = ZeroedMemory(step.weight_bytes)
        self._shared.keep.append(region)
        return region.address

    def transformed(self, index: int) -> Bytes:
        """A step's transformed weights, made from the raw ones: what its segment of the cache holds."""
        step = self._shared.steps[index]
        region = ZeroedMemory(step.weight_bytes)
        raw = self._shared.raw.read(step.raw, self._staging)
        transform(self._shared.dnnl, self._shared.objects, self._stream, step, raw, region.address)
        return region.data[: step.weight_bytes]
