"""Preparing the steps of a linked program: read, create, transform, bind. A `Preparer` for each thread around shared parts."""

from __future__ import annotations

import ctypes
from functools import cached_property
from pathlib import Path
from time import perf_counter_ns
from types import TracebackType
from typing import Self

from edgeplan.runtime.dnnl import Dnnl, Handle
from edgeplan.runtime.linked import LinkedProgram, LinkedStep, RawWeight, Reserve, read_reserve
from edgeplan.runtime.memory import Bytes, Region
from edgeplan.runtime.objects import Objects
from edgeplan.runtime.raw_weights import RawFiles, Staging, transform
from edgeplan.runtime.signatures import ExecArg
from edgeplan.runtime.weight_cache import WeightCache

CACHE_NAME, RESERVE_NAME = "weights.cache", "reserve.json"
Calls = list[tuple[int, int, ctypes.Array[ExecArg]]]
#: Stage of which step, from when to when (`time.perf_counter_ns`).
Mark = tuple[str, int, int, int]


class Shared:
    """What all threads of a session share: files, memory, the library's objects.

    Args:
        dnnl: the library.
        program: what is run.
        folder: of the plan.
        reserve: of the program, while the folder is still being written; else it is read when it is needed.
        memory: for activations and transformed weights; a fresh region if not given.

    Raises:
        FormatError: the model changed since the plan was made.
    """

    def __init__(
        self,
        dnnl: Dnnl,
        program: LinkedProgram,
        folder: Path,
        *,
        reserve: Reserve | None = None,
        memory: Region | None = None,
    ) -> None:
        self.dnnl, self.program = dnnl, program
        self.raw = RawFiles(program, folder)
        self.cache = WeightCache(folder / CACHE_NAME, program, absent=reserve is not None)
        self.memory = memory or Region(program.arena_bytes + program.weights_bytes)
        self.objects = Objects(dnnl, program, self.memory.address)
        self._folder, self._given = folder, reserve
        self.weights = [0] * len(program.steps)  # addresses, for later runs
        self.keep: list[Region] = []  # weights that had no place of their own

    @cached_property
    def reserve(self) -> Reserve:
        """What is needed where the cache fails, and for later runs."""
        return self._given or read_reserve(self._folder / RESERVE_NAME, self.program)

    def raw_of(self, index: int, step: LinkedStep) -> tuple[RawWeight, ...]:
        """What a step's weights are made from."""
        return step.raw or self.reserve.raw[index]

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


def execute(dnnl: Dnnl, stream: Handle, calls: Calls) -> None:
    """Execute a prepared step: one C call for each primitive.

    Raises:
        DeviceError: oneDNN reports a failure.
    """
    run, handle = dnnl.execute, stream.value
    for primitive, count, arguments in calls:
        if status := run(primitive, handle, count, arguments):
            dnnl.check(status, "dnnl_primitive_execute")


class Preparer:
    """Prepares steps in one thread.

    Args:
        shared: what it has in common with others.
        staging: memory for raw weights on their way; fresh if not given.
    """

    def __init__(self, shared: Shared, staging: Staging | None = None) -> None:
        self._shared = shared
        self._stream = shared.dnnl.stream()
        self._staging = staging or Staging()

    def prepare(self, index: int, step: LinkedStep, marks: list[Mark]) -> Calls:
        """Everything before execution.

        Args:
            index: number of the step.
            step: its row.
            marks: where to note what was done when.

        Raises:
            ModelError: the raw weights cannot be read.
            DeviceError: the library does not offer the implementation.
        """
        shared = self._shared
        start = perf_counter_ns()
        address, raw = 0, None
        if step.slots:
            if step.source == "shared":
                address = shared.weights[index]
            elif step.cached:
                address = shared.cache.fetch(step, shared.memory, shared.program.arena_bytes)
            if not address:
                raw = shared.raw.read(shared.raw_of(index, step), self._staging)
            read = perf_counter_ns()
            marks.append(("read", index, start, read))
            start = read
        for call in step.calls:
            shared.objects.primitive(call[0])
        if raw is not None:
            created = perf_counter_ns()
            marks.append(("create", index, start, created))
            address = self._place(step)
            transform(shared.dnnl, shared.objects, self._stream, step, raw, address)
            start = perf_counter_ns()
            marks.append(("transform", index, created, start))
        shared.weights[index] = shared.weights[index] or address
        calls = shared.objects.calls(step, address)
        marks.append(("create", index, start, perf_counter_ns()))
        return calls

    def _place(self, step: LinkedStep) -> int:
        """Where transformed weights go: their place, or memory of their own where they were to be mapped."""
        if step.source != "cached_mmap":
            return self._shared.memory.address + self._shared.program.arena_bytes + step.place
        region = Region(step.weight_bytes)
        self._shared.keep.append(region)
        return region.address

    def transformed(self, index: int) -> Bytes:
        """A step's transformed weights, made from the raw ones: what its segment of the cache holds."""
        step = self._shared.program.steps[index]
        region = Region(step.weight_bytes)
        raw = self._shared.raw.read(self._shared.raw_of(index, step), self._staging)
        transform(self._shared.dnnl, self._shared.objects, self._stream, step, raw, region.address)
        return region.data[: step.weight_bytes]
