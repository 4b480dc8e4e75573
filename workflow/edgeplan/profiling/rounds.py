"""Runs one round: some steps of a model are started cold with one candidate each, every stage timed.

What is timed is the native code of a session (`measurement.process.record_bench`) on linked steps, where a cold run meets it:
nothing of the library's objects is there yet, activations lie in the session's region and were just written by the step before,
as many bytes as the model has weights have passed through the caches since the step was prepared. First touches of the region
are kept out, since which step pays for a huge page depends on its neighbours; they are charged apart, by size
(`profiles.profile_of`).

oneDNN divides work among threads when a primitive is created, so a primitive that executes on n cores is created with n threads
set; its weights may even differ. Transformations always run on the one core that prepares.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from edgeplan.graph.ir import Graph
from edgeplan.graph.steps import Lowered
from edgeplan.measurement.preemption import switches
from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process.inputs import Array, random_inputs
from edgeplan.measurement.process.record_bench import Bench, Prepared
from edgeplan.profiling.memory import release_freed
from edgeplan.profiling.samples import Trials
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.subjects import ProfilingSubject, subject
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import WeightLocation, locate_weights
from edgeplan.support.cpus import pinned

_clock = time.perf_counter_ns
_NS_PER_MS = 1e6
#: What passes through the caches between a step's preparation and its execution: all weights, as far as caches are that large.
_LEAST_FLUSH_BYTES, _MOST_FLUSH_BYTES = 2 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """A round says which steps are started cold, and how.

    Attributes:
        choice: position of the candidate of each step that is started cold; the others keep what they have.
        width: processors that execute.
        repeats: steps whose preparation after an equal step's is timed too, or after their own where the model has no equal.
    """

    choice: Mapping[int, int]
    width: int
    repeats: frozenset[int]


@dataclass(frozen=True, slots=True)
class Sample:
    """A sample is one time, and whether other work took a processor away meanwhile."""

    ms: float
    disturbed: bool = False


@dataclass
class RoundTimes:
    """Holds the samples of a round by stage and step. The stages are those of `store.Row`."""

    stages: dict[str, dict[int, list[Sample]]] = field(default_factory=dict)

    def add(self, stage: str, step: int, nanoseconds: int, *, preempted: bool = False) -> None:
        """Add one sample of a stage."""
        self.stages.setdefault(stage, {}).setdefault(step, []).append(Sample(nanoseconds / _NS_PER_MS, preempted))


@dataclass(frozen=True, slots=True)
class ModelToProfile:
    """A model to profile has its file, its steps, places of their weights, and seeded inputs, those of a cold start."""

    name: str
    dnnl: Dnnl
    path: Path
    lowered: Lowered
    weights: Mapping[str, WeightLocation]
    inputs: Mapping[str, Array]

    @classmethod
    def of(cls, dnnl: Dnnl, path: Path, graph: Graph, name: str = "") -> Self:
        """Read a model and draw its inputs."""
        lowered = lower(graph)
        shapes = {name: lowered.shapes[name] for name in lowered.inputs}
        inputs = random_inputs(shapes, 0, lowered.types, lowered.limits)
        return cls(name or path.stem, dnnl, path, lowered, locate_weights(path, lowered), inputs)

    def harness(self, home: str, cores: Cores, scratch: Path) -> Harness:
        """Build the harness of this model under a home layout."""
        found = subject(self.dnnl, self.lowered, home, self.weights, len(cores.big))
        return Harness(self.dnnl, found, self.path, self.inputs, classes=cores.classes, big=cores.big, scratch=scratch)


class Harness:
    """Runs a model under one home layout round by round. oneDNN's cache of primitives is off meanwhile.

    Args:
        dnnl: the library.
        subject: the model and layout to run.
        model: the model file.
        inputs: values of the model's inputs.
        classes: a processor of each core class, whose preparation is timed.
        big: processors that execute.
        scratch: folder for a stand-in of the weight cache, on the disk the plan will lie on.
    """

    def __init__(
        self,
        dnnl: Dnnl,
        subject: ProfilingSubject,
        model: Path,
        inputs: Mapping[str, Array],
        *,
        classes: Mapping[str, int],
        big: Sequence[int],
        scratch: Path,
    ) -> None:
        self.dnnl, self.subject, self.inputs = dnnl, subject, inputs
        self.classes, self.big = classes, tuple(big)
        self.widths = tuple(dict.fromkeys((1, len(self.big))))
        self.trials = Trials(dnnl, subject, model, self.widths, scratch)
        self.group = self.trials.group
        self._borders = self.trials.linked.inputs
        self.files = sorted({*map(Path, (file.path for file in self.trials.linked.files)), self.trials.cache})
        page_cache.read_through(self.files)
        flush = min(max(self.trials.weights_bytes, _LEAST_FLUSH_BYTES), _MOST_FLUSH_BYTES)
        self._flush = np.ones(flush // 4, np.float32)
        # what the arena holds of another step is no index: these run behind all steps before them, as in an inference
        self._picking = frozenset(i for i, step in enumerate(subject.program.steps) if step.picks_places)
        self._stack = ExitStack()
        self._stack.enter_context(dnnl.without_primitive_cache())
        program = self.trials.trying
        self.bench = self._stack.enter_context(Bench(program.content, dnnl.info.path, program.cache))
        self.memory = self.bench.memory  # first touches are charged apart
        self._reading, self._around = (
            self._stack.enter_context(Bench(program.content, dnnl.info.path, cache, self.bench))
            for cache in (self.trials.cache, program.cache)
        )
        self.first_candidates = {width: self._stand_in(width) for width in self.widths}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def _stand_in(self, width: int) -> list[Prepared]:
        """Return the first candidate of every step, executed once: what runs around the steps that are measured."""
        trials = self.trials
        with pinned(*self.big):
            prepared = [
                self._around.prepare(trials.record(index, 0, width), trials.place(index, width))
                for index in range(len(self.subject.program.steps))
            ]
            self.feed()
            self._around.execute(prepared, width)
            self.dnnl.set_threads(1)
        return prepared

    def feed(self) -> None:
        """Put the inputs into their places."""
        for border in self._borders:
            value = self.inputs[border.name]
            np.copyto(self.memory[border.offset : border.offset + border.size].view(border.dtype), value.ravel())

    def run(self, what: Round, warm_runs: int) -> RoundTimes:
        """Run one round of preparations and executions."""
        times = RoundTimes()
        release_freed()
        collecting = gc.isenabled()
        gc.disable()
        try:
            for core, processor in reversed(tuple(self.classes.items())):  # what the big core prepared last is executed
                with pinned(processor):
                    self._fetch(what, core, times)
                    # Last, so that steps execute with their own weights: a stand-in of a cache holds numbers of any kind, and
                    # Intel's processors take several times as long over denormal ones.
                    prepared = self._prepare(what, core, times)
            with pinned(*self.big):
                self._execute(what, prepared, "first", times)
                for _ in range(warm_runs):
                    self._execute(what, prepared, "warm", times)
            if what.repeats:
                with pinned(self.classes["big"]):
                    self._repeat(what, times)
        finally:
            self.bench.renew()
            if collecting:
                gc.enable()
        return times

    def _record(self, what: Round, index: int) -> int:
        return self.trials.record(index, what.choice[index], what.width)

    def _prepare(self, what: Round, core: str, times: RoundTimes) -> dict[int, Prepared]:
        """Prepare steps from the model file, each as the first of its equals: with no objects of the library made before."""
        self.dnnl.set_threads(1)
        prepared = {}
        for index in what.choice:
            self.bench.renew(kept=True)
            before = switches()
            prepared[index] = self.bench.prepare(self._record(what, index))
            preempted = switches() > before
            for stage, spent in prepared[index].spent.items():
                if stage == "create" or self.trials.is_raw(index):
                    times.add(f"{stage}:{core}", index, spent, preempted=preempted)
        return prepared

    def _fetch(self, what: Round, core: str, times: RoundTimes) -> None:
        """Fetch weights as from a cache that nobody touched: copied, or mapped."""
        wanted = [index for index in what.choice if self.trials.weight_bytes(index, what.choice[index], what.width)]
        for source in ("cached_read", "cached_mmap"):
            self._reading.renew()
            for index in wanted:
                record, segment, before = self._record(what, index), self.trials.segment(index), switches()
                spent = self._reading.fetch(record, segment, mapped=source == "cached_mmap")
                times.add(f"{source}:{core}", index, spent, preempted=switches() > before)

    def _execute(self, what: Round, prepared: Mapping[int, Prepared], stage: str, times: RoundTimes) -> None:
        """Execute the steps, each behind the one before it, which brings its input into the caches, or behind all of them."""
        firsts = self.first_candidates[what.width]
        self.feed()
        if stage == "first":
            np.multiply(self._flush, np.float32(1), out=self._flush)  # as the other weights of the model do
        for index, ready in prepared.items():
            if index in self._picking or index - 1 in self._picking:
                self.feed()
                self._around.execute(firsts[:index], what.width)
            elif index - 1 not in prepared and index:
                self._around.execute(firsts[index - 1 : index], what.width)
            before, start = switches(), _clock()
            self.bench.execute((ready,), what.width)
            spent = _clock() - start
            times.add(f"{stage}:{what.width}", index, spent, preempted=switches() > before)
        self.dnnl.set_threads(1)

    def _repeat(self, what: Round, times: RoundTimes) -> None:
        """Prepare steps after an equal one: what they share is made once, so they are bound and transformed only.

        A step without an equal here is created after itself: another model that has the same one may have several.
        """
        for index in sorted(what.repeats & set(what.choice)):
            other = next((step for step in self.group[index].steps if step != index), index)
            # its raw weights are in the caches
            stages = {"create"} if other == index or not self.trials.is_raw(index) else {"create", "transform"}
            self.bench.renew()
            self.bench.prepare(self._record(what, index))
            before = switches()
            spent = self.bench.prepare(self.trials.record(other, what.choice[index], what.width)).spent
            preempted = switches() > before
            for stage in spent.keys() & stages:
                times.add(f"{stage}_again:big", index, spent[stage], preempted=preempted)
