"""Plans the cold start of a model on a GPU: measures its costs there, finds a plan with a proven bound, writes its folder."""

from __future__ import annotations

import math
import mmap
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from edgeplan.chapters.cold_start.planners.gpu import GPU_PLANNERS, OPTIMAL, GpuCandidate, GpuCosts
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.engines.registry import PROCESSORS, face
from edgeplan.errors import ParamsError, require_known
from edgeplan.gpu_start.files import WeightFiles, packed_of
from edgeplan.gpu_start.model import OWN, GpuModel, gpu_model, write_gpu_folder
from edgeplan.gpu_start.session import (
    gpu_class,
    host_processors,
    launch_of,
    open_gpu,
    sources_of_steps,
    without_driver_caches,
)
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.opencl.building import ProgramSource
from edgeplan.opencl.launch import Launch, Memory
from edgeplan.opencl.processor import DispatchingProcessor, argument_of
from edgeplan.planning.optimal import Search
from edgeplan.profiling.subjects import require_exact
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import allocate
from edgeplan.runtime.folder import GPU_START, PlanFolder, read_folder
from edgeplan.runtime.gpu_program import (
    PAGE_BYTES,
    DeviceSpec,
    GpuPrediction,
    GpuSchedule,
    GpuStep,
    PackedWeights,
    PlannedLaunch,
)
from edgeplan.runtime.processor import Kernel, Sharing
from edgeplan.writable import require_writable

_NS_PER_MS, _FLOAT_BYTES = 1e6, 4
#: Threads that prepare, at most: more wait for each other in the interpreter, and the bound of their plans is looser.
MOST_THREADS = 2
_MS_PER_S = 1e3
_REPEATS = 3  # of a kernel, after its first execution
_NO_KERNEL = GpuCandidate("", cached=True, read_ms=0.0, pack_ms=0.0, upload_ms=0.0, load_ms=0.0, compile_ms=0.0,
                          first_ms=0.0, warm_ms=0.0)  # fmt: skip
_UPLOAD_BYTES = 1 << 28
Made = TypeVar("Made")


class CostMeter:
    """A meter measures the candidates of a model on a processor that was opened late, and notes when kernels run."""

    def __init__(self, model: GpuModel, processor: DispatchingProcessor) -> None:
        self._model, self._processor = model, processor
        program = model.with_steps([model.step(k, OWN) for k in range(len(model.steps))])
        self._own = program.steps
        self._files = WeightFiles(program, model.path.parent)
        self._arena = processor.own_memory(program.arena_bytes)
        self._workspace = processor.own_memory(program.workspace_bytes)
        self._compile_ms: dict[object, float] = {}  # of sources, and of their kernels by work group
        self._load_ms: dict[ProgramSource, float] = {}
        self._users = Counter(source for step in self._own for source in self._sources(step))
        self._measured: dict[object, tuple[GpuCandidate, ...]] = {}
        self._merged_share = 1.0  # what sources take to load as one program, of what they take apart

    def costs(self, threads: int) -> GpuCosts:
        """Measure all candidates of all steps, for so many threads that will prepare."""
        try:
            self._compile_all()
            steps = []
            for index in range(len(self._model.steps)):
                kernels = self._model.kernels[index]
                found = [one for name in kernels for one in self._candidates(index, name)]
                steps.append(tuple(found) if found else (_NO_KERNEL,))
            return GpuCosts(tuple(steps), threads, fill_ms_per_byte=self._fill_ms_per_byte())
        finally:
            self._files.close()

    def _candidates(self, index: int, name: str) -> tuple[GpuCandidate, ...]:
        """The candidates of a kernel; equal steps are measured once."""
        step = self._model.step(index, name)
        key = (step.implementation, tuple((x.source, x.kernel, x.defines, x.global_size, x.local_size) for x in step.launches),
               _form(step.weights))  # fmt: skip
        if key not in self._measured:
            self._measured[key] = self._measure(step, name)
        return tuple(replace(one, kernel=name) for one in self._measured[key])

    def _measure(self, step: GpuStep, name: str) -> tuple[GpuCandidate, ...]:
        processor, weights = self._processor, step.weights
        sources = self._sources(step)
        memories = {Memory.arena: self._arena, Memory.workspace: self._workspace, Memory.weights: self._arena}
        raw_ms = pack_ms = upload_ms = read_ms = 0.0
        raw_bytes = kept_bytes = 0
        kept = allocate(_FLOAT_BYTES * weights.elements if weights is not None else 0, PAGE_BYTES).data
        if weights is not None:
            raw, raw_ms = _timed(self._files.read_raw, weights)
            values, pack_ms = _timed(packed_of, weights, raw)
            raw_bytes, kept_bytes = sum(place.size for place in weights.places), values.nbytes
            _, read_ms = _timed(np.copyto, kept, values.view(np.uint8))  # as from the page cache
            memories[Memory.weights], upload_ms = _timed(processor.upload, kept.view(np.float32))
        launches = [(launch_of(x), [argument_of(given, memories) for given in x.arguments]) for x in step.launches]
        users = max(1, min((self._users[source] for source in sources), default=1))
        compiled = {*sources, *map(self._kernel, step.launches)}
        compile_ms = sum(self._compile_ms[one] for one in compiled) / users
        load_ms = sum(self._load_ms[source] for source in sources) / users
        commands, made_ms = _timed(self._commands, launches)
        first_ms, *warm_ms = self._executed(Kernel(step.implementation, commands))
        of_model = GpuCandidate(
            name, weights is None, raw_ms, pack_ms, upload_ms, load_ms + made_ms, compile_ms + made_ms,
            first_ms, statistics.median(warm_ms), raw_bytes, merged_ms=load_ms * self._merged_share + made_ms,
        )  # fmt: skip
        if weights is None:
            return (of_model,)
        return of_model, replace(
            of_model, cached=True, read_ms=read_ms, pack_ms=0.0, read_bytes=kept_bytes, kept_bytes=kept_bytes
        )

    def _commands(self, launches: Sequence[tuple[Launch, list[Any]]]) -> tuple[object, ...]:
        return tuple(self._processor.command(launch, arguments) for launch, arguments in launches)

    def _executed(self, kernel: Kernel) -> list[float]:
        """The times of a kernel on the device (ms), its first one and those after it."""
        processor, found = self._processor, []
        for _ in range(1 + _REPEATS):
            processor.enqueue(kernel)
            processor.finish()
            found += [(end - begin) / _NS_PER_MS for begin, end in processor.spans()]
        return found

    def _compile_all(self) -> None:
        """Compile all sources, run each of their kernels once with each work group, and load the machine code.

        Some drivers generate code for a work group when a kernel first runs with it; what is kept must hold all of it.
        """
        steps = [self._model.step(k, name) for k, kernels in enumerate(self._model.kernels) for name in kernels]
        most = max((step.weights.elements for step in steps if step.weights is not None), default=0)
        room = self._processor.own_memory(_FLOAT_BYTES * most)
        memories = {Memory.arena: self._arena, Memory.workspace: self._workspace, Memory.weights: room}
        for planned in (launch for step in steps for launch in step.launches):
            launch = launch_of(planned)
            source, kernel = self._processor.source_of(launch), self._kernel(planned)
            if source not in self._compile_ms:
                self._compile_ms[source] = _timed(self._processor.compile, source)[1]
            if kernel not in self._compile_ms:
                given = [argument_of(argument, memories) for argument in planned.arguments]
                first, *later = self._executed(Kernel("", self._commands([(launch, given)])))
                self._compile_ms[kernel] = max(0.0, first - min(later))
        for source in [one for one in self._compile_ms if isinstance(one, ProgramSource)]:
            code = self._processor.code_of(source)
            self._load_ms[source] = _timed(self._processor.load, source, code)[1]

        sources = sources_of_steps(self._processor, self._own)
        if (whole := self._processor.merged(sources)) is not None:
            code = self._processor.code_of(whole)
            taken = _timed(self._processor.load, whole, code)[1]
            self._merged_share = taken / sum(self._load_ms[source] for source in sources)

    def _fill_ms_per_byte(self) -> float | None:
        """Measure the upload of a byte from a file's pages; None where the driver does not take all code as one program."""
        sizes = [_FLOAT_BYTES * step.weights.elements for step in self._own if step.weights is not None]
        if self._processor.merged(()) is None or not sizes:
            return None
        size = min(sum(sizes), _UPLOAD_BYTES)
        target, found = self._processor.reserve(size), []
        with tempfile.TemporaryFile() as file:
            file.truncate(size)
            for _ in range(3):
                file.seek(0)
                file.write(bytes(size))
                file.flush()
                with mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as pages:
                    values = np.frombuffer(pages, np.uint8)
                    found.append(_timed(self._processor.fill, target, values)[1])
                    del values
        return min(found) / size

    def _kernel(self, planned: PlannedLaunch) -> object:
        return planned.source, planned.defines, planned.kernel, planned.local_size

    def _sources(self, step: GpuStep) -> tuple[ProgramSource, ...]:
        return tuple(dict.fromkeys(self._processor.source_of(launch_of(launch)) for launch in step.launches))


def upload_mb_per_s(processor: DispatchingProcessor) -> float:
    """Measure the bandwidth from pinned memory of the host to the device's, MB/s; infinite where they share it."""
    if processor.capabilities.sharing is not Sharing.mirrored:
        return math.inf
    source, target = processor.allocate(_UPLOAD_BYTES), processor.own_memory(_UPLOAD_BYTES)

    def copy() -> None:
        processor.enqueue_write(target, 0, source.data)
        processor.finish()

    return _UPLOAD_BYTES / 1e3 / min(_timed(copy)[1] for _ in range(3))


def _form(weights: PackedWeights | None) -> object:
    if weights is None:
        return None
    sizes = tuple(sorted(weights.sizes.items()))
    return weights.transform, sizes, weights.elements, tuple((place.role, place.shape) for place in weights.places)


def _timed(call: Callable[..., Made], *given: Any) -> tuple[Made, float]:
    began = time.perf_counter()
    made = call(*given)
    return made, (time.perf_counter() - began) * _MS_PER_S


@dataclass(frozen=True)
class GpuPlan:
    """Holds a plan of a cold start on a GPU that was written, what it was made from, and the prediction in its folder."""

    folder: Path
    costs: GpuCosts
    prediction: GpuPrediction

    @property
    def schedule(self) -> GpuSchedule:
        """Return who prepares what, as the folder tells it."""
        return self.plan.scheduled(GpuSchedule)

    @property
    def plan(self) -> PlanFolder:
        """Read the plan folder that was written."""
        return read_folder(self.folder, GPU_START)


class GpuPlanning:
    """A planning of one model holds its costs, from which any plan is made, on a processor opened late, with profiling."""

    def __init__(self, device: DeviceFile, model: Path, processor: DispatchingProcessor, block: int) -> None:
        began = time.perf_counter()
        graph = simplify(load_onnx(model))
        require_exact(graph, str(model))
        numbers = processor.device_numbers
        spec = DeviceSpec(device.engine, dict(device.options), block, numbers.vector)
        self._processor = processor
        self.model: GpuModel = gpu_model(Dnnl(), model, graph, spec, numbers)
        threads = min(MOST_THREADS, len(host_processors(processor)))
        self.costs = CostMeter(self.model, processor).costs(threads)
        self._seconds = time.perf_counter() - began

    def write(self, planner: str, folder: Path, search: Search | None = None) -> GpuPlan:
        """Make a plan by a planner of `GPU_PLANNERS`, and write its folder, where another plan may lie."""
        began = time.perf_counter()
        found = GPU_PLANNERS[planner](self.costs, search or Search())
        taken = time.perf_counter() - began
        bound_ms = min(found.lower_bound_ms, found.makespan_ms)
        prediction = GpuPrediction(found.makespan_ms, bound_ms, self._seconds + taken, taken * _MS_PER_S, found.note)
        schedule = GpuSchedule(found.queues, found.in_sequence, found.at_once, found.code, planner)
        choices = [(one.kernel, one.cached) for one in found.choice]
        write_gpu_folder(self.model, choices, schedule, prediction, self._processor, folder)
        return GpuPlan(folder, self.costs, prediction)


@contextmanager
def planning_on(device: DeviceFile) -> Iterator[tuple[DispatchingProcessor, int]]:
    """Open the processor of a device for planning; hand over with it how many channels a block of activations has."""
    device.require_local("plans are made and run")
    without_driver_caches()
    block = Dnnl().info.block
    opened = open_gpu(DeviceSpec(device.engine, dict(device.options), block), profiling=True)
    try:
        yield opened.processor, block
    finally:
        opened.processor.close()


def gpu_device(name: str) -> DeviceFile | None:
    """Return the device file of that name or path if cold starts on it are those of a GPU; None of any other."""
    found = load_device(name)
    if found.engine not in PROCESSORS:
        return None
    return found if issubclass(face(PROCESSORS, found.engine, "processor", "processor"), DispatchingProcessor) else None


def refuse_for_gpu(given: Mapping[str, bool]) -> None:
    """Refuse options of a plan that those of a GPU do not have; `given` tells of each whether it was given."""
    if wrong := [option for option, is_given in given.items() if is_given]:
        what = f"a plan of a GPU has no {', '.join(wrong)}"
        raise ParamsError(what, where=wrong[0], next_step="leave it out, or name a device of the engine onednn")


def plan_gpu_start(
    model: Path, output: Path, device: DeviceFile, planner: str = OPTIMAL, preparation: Preparation | None = None
) -> GpuPlan:
    """Plan the fastest first inference of a model on a GPU (engine opencl or cuda), and write what executes it.

    A model that had to be prepared is written beside the plan, as `<output>.onnx`.
    """
    require_known("planner", [planner], GPU_PLANNERS, "--planner")
    require_writable(output, instead="choose another folder with -o")
    gpu_class(device.engine)
    prepared = prepare_file(model, preparation or Preparation(), output.with_name(f"{output.name}.onnx"))
    with planning_on(device) as (processor, block):
        return GpuPlanning(device, prepared, processor, block).write(planner, output)
