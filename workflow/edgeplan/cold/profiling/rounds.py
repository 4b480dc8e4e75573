"""One round: some steps of a model are started cold with one candidate each, every stage timed.

Everything is timed where a cold run meets it: activations lie in the program's arena and were just written by the step before,
as many bytes as the model has weights have passed
through the caches since the step was prepared. What a run pays once for all steps is kept out and
charged apart: the first touch of the arena (`subjects.touched_pages`).

oneDNN divides work among threads when a primitive is created, so a primitive that executes on n cores is created with n threads
set; its weights may even differ. Transformations always run on the one core that prepares.
"""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from edgeplan.cold import page_cache
from edgeplan.cold.inputs import Array
from edgeplan.cold.profiling.memory import Mapping as FileMapping
from edgeplan.cold.profiling.memory import pinned, release_freed, stand_in_cache
from edgeplan.cold.profiling.subjects import PAGE_BYTES, Subject
from edgeplan.errors import ModelError
from edgeplan.runtime.creation import Created
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable, Prepared, Worker, allocate

_clock = time.perf_counter_ns
_CACHE_CAPACITY = 1024  # oneDNN's default
_NS_PER_MS = 1e6
#: What passes through the caches between a step's preparation and its execution: all weights, as far as caches are that large.
_LEAST_FLUSH_BYTES, _MOST_FLUSH_BYTES = 2 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """What to run.

    Attributes:
        choice: position of the candidate of each step that is started cold; the others keep what they have.
        width: processors that execute.
        repeats: steps whose preparation after an equal step's is timed too.
    """

    choice: Mapping[int, int]
    width: int
    repeats: frozenset[int]


@dataclass
class Times:
    """Times of one round: stage -> step -> samples in ms. The stages are those of `store.Row`."""

    stages: dict[str, dict[int, list[float]]] = field(default_factory=dict)

    def add(self, stage: str, step: int, nanoseconds: int) -> None:
        """Add one sample."""
        self.stages.setdefault(stage, {}).setdefault(step, []).append(nanoseconds / _NS_PER_MS)


class Rig:
    """A model under one home layout, ready to be run round by round.

    Args:
        dnnl: the library.
        subject: what to run.
        model: the model file.
        inputs: values of the model's inputs.
        classes: a processor of each core class, whose preparation is timed.
        big: processors that execute.
        scratch: folder for a stand-in of the weight cache, on the disk the plan will lie on.
        evicted: whether every reading is from disk.
    """

    def __init__(
        self,
        dnnl: Dnnl,
        subject: Subject,
        model: Path,
        inputs: Mapping[str, Array],
        *,
        classes: Mapping[str, int],
        big: Sequence[int],
        scratch: Path,
        evicted: bool,
    ) -> None:
        self.dnnl, self.subject, self.inputs = dnnl, subject, inputs
        self.classes, self.big, self.evicted = classes, tuple(big), evicted
        self.group = {index: group for group in subject.groups for index in group.steps}
        self.executable = Executable(dnnl, subject.program, model.parent)
        self.executable.arena.data[:] = 0
        self.slots, size = self._slots()
        files = {model, *(model.parent / w.file for w in subject.program.weights.values())}
        self.cache = max(files, key=lambda path: path.stat().st_size)  # any file of enough bytes is read alike
        if self.cache.stat().st_size < size:
            self.cache = stand_in_cache(scratch / f"weights-{size}.bin", size)
        self.files = sorted({*files, self.cache})
        self.descriptor = os.open(self.cache, os.O_RDONLY | os.O_CLOEXEC)
        page_cache.read_through(self.files)
        flush = min(max(size, _LEAST_FLUSH_BYTES), _MOST_FLUSH_BYTES)
        self._stream = np.ones(flush // 4, np.float32)
        self.standing = {width: self._stand_in(width) for width in dict.fromkeys((1, len(self.big)))}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.executable.close()
        os.close(self.descriptor)

    def _slots(self) -> tuple[dict[int, int], int]:
        """Where each step's transformed weights would lie in a cache, and its size."""
        slots, at = {}, 0
        for index in range(len(self.subject.program.steps)):
            slots[index] = at
            largest = max(size.weights for size in self.group[index].sizes)
            at += -(-largest // PAGE_BYTES) * PAGE_BYTES
        return slots, at

    def _stand_in(self, width: int) -> list[Prepared]:
        """The first candidate of every step, executed once: what runs around the steps that are measured."""
        dnnl, executable = self.dnnl, self.executable
        dnnl.set_primitive_cache(_CACHE_CAPACITY)
        with pinned(*self.big):
            steps = [executable.prepare(index, Worker(dnnl, width)) for index in range(len(self.subject.program.steps))]
            for name, value in self.inputs.items():
                np.copyto(executable.activation(name), value)
            worker = Worker(dnnl, width)
            for prepared in steps:
                executable.execute(prepared, worker)
        return steps

    def run(self, what: Round, warm_runs: int) -> Times:
        """Run one round.

        Raises:
            ModelError: the model file changed meanwhile.
        """
        times = Times()
        release_freed()
        collecting = gc.isenabled()
        gc.disable()
        try:
            for core, processor in reversed(tuple(self.classes.items())):  # the big core last: what it prepared is executed
                with pinned(processor):
                    prepared = self._prepare(what, core, times)
                    self._read_cache(what, core, times)
            with pinned(*self.big):
                self._execute(what, prepared, "first", times)
                for _ in range(warm_runs):
                    self._execute(what, prepared, "warm", times)
            if what.repeats:
                with pinned(self.classes["big"]):
                    self._repeat(what, times)
        finally:
            if collecting:
                gc.enable()
        return times

    def _evict(self) -> None:
        if self.evicted:
            page_cache.evict(self.files)

    def _create(self, what: Round, index: int) -> Created:
        """Create a step for the width it will execute at."""
        self.dnnl.set_threads(what.width)
        chosen = self.group[index].implementations[what.choice[index]]
        created = self.executable.creator.create(self.subject.program.steps[index], chosen)
        self.dnnl.set_threads(1)
        return created

    def _prepare(self, what: Round, core: str, times: Times) -> dict[int, Prepared]:
        """Create, read, transform and bind steps from the model file, with oneDNN's primitive cache off."""
        executable, prepared = self.executable, {}
        self.dnnl.set_primitive_cache(0)
        self._evict()
        worker = Worker(self.dnnl)
        for index in what.choice:
            start = _clock()
            created = self._create(what, index)
            end = _clock()
            weights = None
            if created.slots:
                raw = executable.read(index)
                read = _clock()
                weights = executable.transform(index, created, raw, worker)
                done = _clock()
                times.add(f"read:{core}", index, read - end)
                times.add(f"transform:{core}", index, done - read)
            before = _clock()
            prepared[index] = executable.bind(created, weights)
            times.add(f"create:{core}", index, end - start + _clock() - before)
        return prepared

    def _read_cache(self, what: Round, core: str, times: Times) -> None:
        """Read the same bytes as from a cache of transformed weights: copied, then mapped."""
        stored = [(index, self.group[index].sizes[c].weights) for index, c in what.choice.items()]
        stored = [(index, size) for index, size in stored if size]
        if not stored:
            return
        self._evict()
        kept = []
        for index, size in stored:
            start = _clock()
            buffer = allocate(size)
            got = os.preadv(self.descriptor, [buffer.data.data], self.slots[index])
            times.add(f"cached_read:{core}", index, _clock() - start)
            if got != size:
                raise ModelError("a file was cut short while it was profiled", where=str(self.cache), next_step="run it again")
            kept.append(buffer)
        del kept, buffer
        self._evict()
        mapping = FileMapping(self.descriptor, self.cache.stat().st_size)
        for index, size in stored:
            start = _clock()
            mapping.populate(self.slots[index], size)
            times.add(f"cached_mmap:{core}", index, _clock() - start)
        mapping.close()

    def _execute(self, what: Round, prepared: Mapping[int, Prepared], stage: str, times: Times) -> None:
        """Execute the steps, each behind the one before it, which brings its input into the caches."""
        executable, standing = self.executable, self.standing[what.width]
        for name, value in self.inputs.items():
            np.copyto(executable.activation(name), value)
        worker = Worker(self.dnnl, what.width)
        if stage == "first":
            np.multiply(self._stream, np.float32(1), out=self._stream)  # as the other weights of the model do
        for index, ready in prepared.items():
            if index - 1 not in prepared and index:
                executable.execute(standing[index - 1], worker)
            start = _clock()
            executable.execute(ready, worker)
            times.add(f"{stage}:{what.width}", index, _clock() - start)

    def _repeat(self, what: Round, times: Times) -> None:
        """Prepare steps whose equal was prepared just before: the runtime shares its primitives, so they are only bound."""
        self.dnnl.set_primitive_cache(_CACHE_CAPACITY)
        executable, worker = self.executable, Worker(self.dnnl)
        for index in sorted(what.repeats & set(what.choice)):
            created = self._create(what, index)
            start = _clock()
            executable.bind(created, None)
            times.add("create_again:big", index, _clock() - start)
            if created.slots:
                self._transformed(index, created, worker)
                times.add("transform_again:big", index, self._transformed(index, created, worker))
        self.dnnl.set_primitive_cache(0)

    def _transformed(self, index: int, created: Created, worker: Worker) -> int:
        raw = self.executable.read(index)
        start = _clock()
        self.executable.transform(index, created, raw, worker)
        return _clock() - start
