"""Runs one round: some steps of a model are started cold with one candidate each, every stage timed.

What is timed is the executor's own code (`runtime.preparation`, `runtime.weight_cache`) on linked steps, where a cold run
meets it: nothing of the library's objects is there yet, activations lie in the session's region and were just written by the
step before, as many bytes as the model has weights have passed through the caches since the step was prepared. First touches
of the region are kept out, since which step pays for a huge page depends on its neighbours; they are charged apart, by size
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

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.steps import Lowered
from edgeplan.measurement.preemption import switches
from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process.inputs import Array, random_inputs
from edgeplan.profiling.memory import release_freed
from edgeplan.profiling.samples import Trials
from edgeplan.profiling.settings import Cores
from edgeplan.profiling.subjects import ProfilingSubject, subject
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.linked import LinkedStep
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.memory import ZeroedMemory
from edgeplan.runtime.preparation import Calls, Executor, Mark, Preparer, Shared
from edgeplan.runtime.raw_weights import Staging
from edgeplan.runtime.tape_file import tape_of
from edgeplan.runtime.weight_cache import WeightCache
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
        self.dnnl, self.subject, self.inputs, self.folder = dnnl, subject, inputs, model.parent
        self.classes, self.big = classes, tuple(big)
        self.widths = tuple(dict.fromkeys((1, len(self.big))))
        self.trials = Trials(dnnl, subject, model, self.widths, scratch)
        self.group = self.trials.group
        program = self.trials.linked.program
        self.memory = ZeroedMemory(program.arena_bytes + program.weights_bytes)
        self.memory.data[:] = 0  # first touches are charged apart
        self.staging, self.executor = Staging(), Executor(dnnl)
        self._tape = tape_of(self.trials.linked)
        self.files = sorted({*map(Path, (file.path for file in program.files)), self.trials.cache})
        page_cache.read_through(self.files)
        flush = min(max(self.trials.weights_bytes, _LEAST_FLUSH_BYTES), _MOST_FLUSH_BYTES)
        self._flush = np.ones(flush // 4, np.float32)
        # what the arena holds of another step is no index: these run behind all steps before them, as in an inference
        self._picking = frozenset(i for i, step in enumerate(subject.program.steps) if step.picks_places)
        self._stack = ExitStack()
        self._stack.enter_context(dnnl.without_primitive_cache())
        self.first_candidates = {width: self._stand_in(width) for width in self.widths}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def shared(self) -> Shared:
        """Create the shared part of a session anew, but for its memory, which has been touched."""
        linked = self.trials.linked
        return Shared(
            self.dnnl, linked.program, self.folder, memory=self.memory, tape=self._tape, reserve=lambda: linked.reserve
        )

    def steps(self, width: int) -> list[LinkedStep]:
        """Return the first candidate of every step."""
        return [self.trials.first_candidate(index, width) for index in range(len(self.subject.program.steps))]

    def _stand_in(self, width: int) -> list[Calls]:
        """Return the first candidate of every step, executed once: what runs around the steps that are measured."""
        with pinned(*self.big):
            shared = self._stack.enter_context(self.shared())
            preparer = Preparer(shared, self.staging)
            calls = [preparer.prepare(index, step, []) for index, step in enumerate(self.steps(width))]
            self.feed()
            self.dnnl.set_threads(width)
            for prepared in calls:
                self.executor.execute(prepared)
            self.dnnl.set_threads(1)
        return calls

    def feed(self) -> None:
        """Put the inputs into their places."""
        for border in self.trials.linked.program.inputs:
            value = self.inputs[border.name]
            np.copyto(self.memory.data[border.offset : border.offset + border.size].view(border.dtype), value.ravel())

    def run(self, what: Round, warm_runs: int) -> RoundTimes:
        """Run one round of preparations and executions."""
        times = RoundTimes()
        release_freed()
        collecting = gc.isenabled()
        gc.disable()
        try:
            with ExitStack() as stack:
                for core, processor in reversed(tuple(self.classes.items())):  # what the big core prepared last is executed
                    with pinned(processor):
                        for source in ("cached_read", "cached_mmap"):
                            self._fetch(what, core, source, times)
                        # Last, so that steps execute with their own weights: a stand-in of a cache holds numbers of any kind,
                        # and Intel's processors take several times as long over denormal ones.
                        prepared = self._prepare(what, core, times, stack)
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

    def _step(self, what: Round, index: int) -> LinkedStep:
        return self.trials.step(index, what.choice[index], what.width)

    def _prepare(self, what: Round, core: str, times: RoundTimes, stack: ExitStack) -> dict[int, Calls]:
        """Prepare steps from the model file, each as the first of its equals: with no objects of the library made before."""
        self.dnnl.set_threads(1)
        shared = stack.enter_context(self.shared())
        preparer, prepared = Preparer(shared, self.staging), {}
        for index in what.choice:
            step, marks = self._step(what, index), list[Mark]()
            shared.objects = shared.new_objects()
            stack.callback(shared.objects.close)
            before = switches()
            prepared[index] = preparer.prepare(index, step, marks)
            preempted = switches() > before
            for stage, spent in _sums(marks).items():
                times.add(f"{stage}:{core}", index, spent, preempted=preempted)
        return prepared

    def _fetch(self, what: Round, core: str, source: str, times: RoundTimes) -> None:
        """Fetch weights as from a cache that nobody touched: copied, or mapped."""
        program = self.trials.cached.program
        steps = {i: self.trials.stored(i, position, what.width, source) for i, position in what.choice.items()}
        steps = {index: step for index, step in steps.items() if step.weight_bytes}
        if not steps:
            return
        with ExitStack() as stack:
            cache = WeightCache(self.trials.cache, program)
            cache.open()
            stack.callback(cache.close)
            shared = stack.enter_context(self.shared())
            shared.objects = shared.trusting(cache)
            preparer = Preparer(shared, self.staging)
            for index, step in steps.items():
                marks: list[Mark] = []
                before = switches()
                if not preparer.fetch(index, step, marks):
                    raise ModelError(
                        "a file changed while it was profiled",
                        where=str(self.trials.cache),
                        next_step="run it again",
                    )
                times.add(f"{source}:{core}", index, _sums(marks)["read"], preempted=switches() > before)

    def _execute(self, what: Round, prepared: Mapping[int, Calls], stage: str, times: RoundTimes) -> None:
        """Execute the steps, each behind the one before it, which brings its input into the caches, or behind all of them."""
        firsts = self.first_candidates[what.width]
        self.feed()
        self.dnnl.set_threads(what.width)
        if stage == "first":
            np.multiply(self._flush, np.float32(1), out=self._flush)  # as the other weights of the model do
        for index, ready in prepared.items():
            if index in self._picking or index - 1 in self._picking:
                self.feed()
                for before_it in firsts[:index]:
                    self.executor.execute(before_it)
            elif index - 1 not in prepared and index:
                self.executor.execute(firsts[index - 1])
            before, start = switches(), _clock()
            self.executor.execute(ready)
            spent = _clock() - start
            times.add(f"{stage}:{what.width}", index, spent, preempted=switches() > before)
        self.dnnl.set_threads(1)

    def _repeat(self, what: Round, times: RoundTimes) -> None:
        """Prepare steps after an equal one: the executor makes what they share once, so they are bound and transformed only.

        A step without an equal here is created after itself: another model that has the same one may have several.
        """
        with self.shared() as shared:
            preparer = Preparer(shared, self.staging)
            for index in sorted(what.repeats & set(what.choice)):
                other = next((step for step in self.group[index].steps if step != index), index)
                stages = {"create", "transform"} if other != index else {"create"}  # its raw weights are in the caches
                equal, marks = self.trials.step(other, what.choice[index], what.width), list[Mark]()
                shared.objects.close()
                shared.objects = shared.new_objects()
                preparer.prepare(index, self._step(what, index), [])
                before = switches()
                preparer.prepare(other, equal, marks)
                preempted, sums = switches() > before, _sums(marks)
                for stage in sums.keys() & stages:
                    times.add(f"{stage}_again:big", index, sums[stage], preempted=preempted)


def _sums(marks: Sequence[Mark]) -> dict[str, int]:
    """Return nanoseconds of each stage of a preparation."""
    sums: dict[str, int] = {}
    for stage, _, start, end in marks:
        sums[stage] = sums.get(stage, 0) + end - start
    return sums
