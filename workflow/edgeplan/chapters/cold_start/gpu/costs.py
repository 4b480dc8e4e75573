"""Measures what each candidate of each step costs on a GPU: read, compile, load, pack, upload, execute."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from edgeplan.chapters.cold_start.planners.gpu import GpuCandidate, GpuCosts
from edgeplan.gpu_start.model import OWN, GpuModel
from edgeplan.gpu_start.session import argument_of, launch_of
from edgeplan.gpu_start.weights import WeightFiles, packed_of, page_aligned
from edgeplan.opencl.building import ProgramSource
from edgeplan.opencl.launch import Launch
from edgeplan.opencl.processor import DispatchingProcessor
from edgeplan.runtime.gpu_program import GpuStep, PackedWeights
from edgeplan.runtime.processor import Kernel

_MS_PER_S, _NS_PER_MS = 1e3, 1e6
_NO_KERNEL = GpuCandidate("", cached=True, read_ms=0.0, pack_ms=0.0, upload_ms=0.0, load_ms=0.0, compile_ms=0.0,
                          first_ms=0.0, warm_ms=0.0)  # fmt: skip
Made = TypeVar("Made")


class CostMeter:
    """A meter measures the candidates of one model on a processor that notes when kernels run.

    Args:
        model: whose.
        processor: opened late, with profiling.
        repeats: executions of each kernel after its first one.
    """

    def __init__(self, model: GpuModel, processor: DispatchingProcessor, repeats: int = 3) -> None:
        self._model, self._processor, self._repeats = model, processor, repeats
        program = model.with_steps([model.step(k, OWN) for k in range(len(model.steps))])
        self._own = program.steps
        self._files = WeightFiles(program, model.path.parent)
        self._arena = processor.own_memory(program.arena_bytes)
        self._workspace = processor.own_memory(program.workspace_bytes)
        self._compiled: dict[ProgramSource, float] = {}
        self._users = Counter(source for step in self._own for source in self._sources(step))
        self._measured: dict[object, tuple[GpuCandidate, ...]] = {}

    def costs(self, threads: int) -> GpuCosts:
        """Measure all candidates.

        Args:
            threads: that will prepare.

        Raises:
            DeviceError: a kernel cannot be compiled, or the device fails.
            ModelError: weights cannot be read.
        """
        try:
            steps = []
            for index in range(len(self._model.steps)):
                kernels = self._model.kernels[index]
                found = [one for name in kernels for one in self._candidates(index, name)]
                steps.append(tuple(found) if found else (_NO_KERNEL,))
            return GpuCosts(tuple(steps), threads)
        finally:
            self._files.close()

    def _candidates(self, index: int, name: str) -> tuple[GpuCandidate, ...]:
        """The candidates of a kernel; equal steps are measured once."""
        step = self._model.step(index, name)
        key = (step.implementation, tuple((x.source, x.kernel, x.defines, x.global_size, x.local_size) for x in step.launches),
               _form(step.weights))  # fmt: skip
        if key not in self._measured:
            self._measured[key] = self._measure(step, name)
        return tuple(_named(one, name) for one in self._measured[key])

    def _measure(self, step: GpuStep, name: str) -> tuple[GpuCandidate, ...]:
        processor, weights = self._processor, step.weights
        sources = self._sources(step)
        memories: dict[str, Any] = {"arena": self._arena, "workspace": self._workspace, "weights": self._arena}
        raw_ms = pack_ms = upload_ms = read_ms = 0.0
        raw_bytes = kept_bytes = 0
        values: Any = None
        if weights is not None:
            raw, raw_ms = _timed(lambda: self._files.read_raw(weights))
            values, pack_ms = _timed(lambda: packed_of(weights, raw))
            raw_bytes, kept_bytes = sum(place.size for place in weights.places), values.nbytes
            kept = page_aligned(values.nbytes)
            _, read_ms = _timed(lambda: np.copyto(kept, values.view(np.uint8)))  # as from the page cache
            memories["weights"], upload_ms = _timed(lambda: processor.upload(kept.view(np.float32)))
            values = kept
        launches = [(launch_of(x), [argument_of(given, memories) for given in x.arguments]) for x in step.launches]
        users = max(1, min((self._users[source] for source in sources), default=1))
        compile_ms = self._compile(sources, launches)
        load_ms = self._load(sources)
        commands, made_ms = _timed(lambda: tuple(processor.command(*one) for one in launches))
        spans = self._executed(Kernel(step.implementation, commands))
        del values
        common = {"upload_ms": upload_ms, "load_ms": load_ms / users + made_ms, "compile_ms": compile_ms / users + made_ms,
                  "first_ms": spans[0], "warm_ms": statistics.median(spans[1:])}  # fmt: skip
        raw_one = GpuCandidate(name, cached=weights is None, read_ms=raw_ms, pack_ms=pack_ms, read_bytes=raw_bytes, **common)
        if weights is None:
            return (raw_one,)
        kept_one = GpuCandidate(
            name, cached=True, read_ms=read_ms, pack_ms=0.0, read_bytes=kept_bytes, kept_bytes=kept_bytes, **common
        )
        return raw_one, kept_one

    def _executed(self, kernel: Kernel) -> list[float]:
        """The times of a kernel on the device (ms), its first one and those after it."""
        processor, found = self._processor, []
        for _ in range(1 + self._repeats):
            processor.enqueue(kernel)
            processor.finish()
            found += [(end - begin) / _NS_PER_MS for begin, end in processor.spans()]
        return found

    def _compile(self, sources: Sequence[ProgramSource], launches: Sequence[tuple[Launch, list[Any]]]) -> float:
        """The time to compile sources, what a driver puts off until their kernels run included."""
        processor, known = self._processor, self._compiled
        for source in sources:
            if source not in known:
                known[source] = _timed(lambda source=source: processor.compile(source))[1]
        kernel = Kernel("", tuple(processor.command(*one) for one in launches))
        first, *later = self._executed(kernel)
        return sum(known[source] for source in sources) + max(0.0, first - min(later))

    def _load(self, sources: Sequence[ProgramSource]) -> float:
        """The time to load sources' machine code; from now on their kernels are of it."""
        total = 0.0
        for source in sources:
            code = self._processor.code_of(source)
            total += _timed(lambda source=source, code=code: self._processor.load(source, code))[1]
        return total

    def _sources(self, step: GpuStep) -> tuple[ProgramSource, ...]:
        return tuple(dict.fromkeys(self._processor.source_of(launch_of(launch)) for launch in step.launches))


def _form(weights: PackedWeights | None) -> object:
    if weights is None:
        return None
    sizes = tuple(sorted(weights.sizes.items()))
    return weights.transform, sizes, weights.elements, tuple((place.role, place.shape) for place in weights.places)


def _named(one: GpuCandidate, name: str) -> GpuCandidate:
    return replace(one, kernel=name)


def _timed(make: Callable[[], Made]) -> tuple[Made, float]:
    began = time.perf_counter()
    made = make()
    return made, (time.perf_counter() - began) * _MS_PER_S
