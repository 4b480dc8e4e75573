"""Opens and runs a plan of a cold start on a GPU: threads prepare steps in the planned order while ready ones run.

To prepare a step is to read its weights, to load or compile its kernels, to pack the weights unless the folder holds them
packed, and to upload them. One more thread reads ahead of all where files are not in memory. The thread that asked for the
inference hands each step to the GPU's queue once it is prepared, in the order of execution. Later inferences wait for nothing.

A plan may have it all at once: a thread copies all packed weights to the GPU in one go, from the pages of their file, while the
thread that asked for the inference loads all code as one program and prepares the steps. Both are in calls of the driver nearly
all the time; threads that prepare step by step wait for each other in the interpreter.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from edgeplan.engines.registry import PROCESSORS, face
from edgeplan.errors import DeviceError, EdgeplanError, FormatError, StoreError
from edgeplan.gpu_start.files import CodeCache, WeightFiles, packed_of, write_codes
from edgeplan.opencl.building import ProgramSource, kernels_digest
from edgeplan.opencl.launch import Launch, Memory
from edgeplan.opencl.processor import DispatchingProcessor, argument_of
from edgeplan.runtime.folder import GPU_START, PLAN_NAME, PlanFolder, plan_again
from edgeplan.runtime.gpu_program import (
    CODE_NAME,
    PACKED_NAME,
    DeviceSpec,
    GpuProgram,
    GpuSchedule,
    GpuStep,
    PackedWeights,
    PlannedLaunch,
    problem_of,
)
from edgeplan.runtime.plan_session import Session
from edgeplan.runtime.processor import Kernel
from edgeplan.runtime.readahead import Bringer, in_memory
from edgeplan.support.machine import fingerprint

if TYPE_CHECKING:
    from edgeplan.runtime.processor import Processor


#: Variables that keep drivers from finding code of earlier processes: whatever is compiled is compiled.
UNCACHED: Mapping[str, str] = MappingProxyType({"POCL_KERNEL_CACHE": "0", "CUDA_CACHE_DISABLE": "1"})
_log = logging.getLogger(__name__)
_FLOAT_BYTES = 4
_CHUNK_BYTES = 1 << 24
_LOOK_SECONDS = 1.0  # between looks whether a thread that prepares still lives
STAGES = ("read", "code", "pack", "upload", "wait", "run")


class GpuSession(Session):
    """A session runs the inferences of one plan on a processor; the first one begins while steps are prepared.

    The processor was opened late, and is closed with the session. The machine is told by its fingerprint.

    Attributes:
        cold_ms: time from the making of this session to the first outputs; 0 before them.
        code_problem: why kernels were compiled although the plan keeps their code; "" if none was.
    """

    def __init__(self, plan: PlanFolder, processor: DispatchingProcessor, machine: str) -> None:
        self._began = time.perf_counter()
        self._closing: list[Callable[[], None]] = [processor.close]
        try:
            plan.require_here(machine, library_version(), "", driver=processor.capabilities.version)
            self.program, self.schedule = plan.program_of(GpuProgram), plan.scheduled(GpuSchedule)
            _require_fitting(self.program, self.schedule, plan)
            super().__init__(self.program.inputs, plan.path)
            if self.program.packed_bytes:
                plan.require_whole(PACKED_NAME)
            self._files = WeightFiles(self.program, plan.path)
            self._closing.append(self._files.close)
            self._processor, self._plan = processor, plan
            self._codes = CodeCache(plan.path / CODE_NAME, processor.code_identity) if self.schedule.code else None
            self._packed: Any = None  # all packed weights on the GPU, where they go up in one go
            if self.schedule.at_once and self.program.packed_bytes:
                self._packed = processor.reserve(self._files.packed[1])
            self._arena = processor.own_memory(self.program.arena_bytes)
            self._workspace = processor.own_memory(self.program.workspace_bytes)
        except BaseException:
            self._close()
            raise
        self.cold_ms, self.code_problem = 0.0, self._codes.problem if self._codes is not None else ""
        self._again: Callable[[], None] | None = None
        self._stages: dict[str, float] = defaultdict(float)
        self._kernels: list[Kernel | None] = [None] * len(self.program.steps)
        self._kept: list[Any] = []  # host memory that the device may read in place
        self._loaded = set[ProgramSource]()
        self._whole: ProgramSource | None = None  # a program of all sources
        self._is_up = self._packed is None
        self._making: dict[ProgramSource, threading.Lock] = {}
        self._change = threading.Condition()
        self._failure: BaseException | None = None
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._start()

    def stages_ms(self) -> Mapping[str, float]:
        """Return the time of each of `STAGES` in the cold start, ms: sums over all threads, `wait` of the executing one."""
        return dict(self._stages)

    # Preparation

    def _start(self) -> None:
        if self.schedule.in_sequence:
            return
        lanes: list[Callable[[], None]] = [partial(self._prepare_all, queue) for queue in self.schedule.queues if queue]
        if self.schedule.at_once:
            lanes = [self._upload_all] if self._packed is not None else []
        for number, work in enumerate((self._read_ahead, *lanes)):
            thread = threading.Thread(target=self._guarded, args=(work,), name=f"edgeplan-gpu-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            self._processor.enter()
            work()
        except BaseException as error:  # noqa: BLE001  raised where the inference waits
            with self._change:
                self._failure = self._failure or error
                self._change.notify_all()

    def _read_ahead(self) -> None:
        """Bring the weights into memory in the order of execution; what cannot be read is told by whoever needs it."""
        with contextlib.suppress(OSError), Bringer() as bringer:
            for descriptor, first, last in self._read_parts():
                if self._stop.is_set():
                    return
                if not in_memory(descriptor, last, probes=1):
                    bringer.bring(descriptor, first, last)

    def _read_parts(self) -> Iterator[tuple[int, int, int]]:
        """The parts of files that are read, in order: descriptor, first byte, and the one after the last."""
        if self._packed is not None:
            descriptor, size = self._files.packed
            yield descriptor, 0, size
        for step in self.program.steps:
            if step.weights is not None and not (self._packed is not None and step.weights.cached):
                yield from self._files.parts(step.weights)

    def _upload_all(self) -> None:
        """Copy all packed weights to the GPU: in one go, or chunk by chunk behind the disk."""
        values, (descriptor, size) = self._files.map_packed(), self._files.packed
        chunk = size if in_memory(descriptor, size) else _CHUNK_BYTES
        with self._timed("upload"), Bringer() as bringer:
            for first in range(0, size, chunk):
                if self._stop.is_set():
                    return
                part = values[first : first + chunk]
                if chunk < size:
                    with contextlib.suppress(OSError):  # the copy reads it, then
                        bringer.bring(descriptor, first, first + len(part))
                self._processor.fill(self._processor.part_of(self._packed, first, len(part)), part)
        with self._change:
            self._is_up = True
            self._change.notify_all()

    def _prepare_all(self, steps: tuple[int, ...]) -> None:
        for index in steps:
            if self._stop.is_set():
                return
            kernel = self._prepared(self.program.steps[index])
            with self._change:
                self._kernels[index] = kernel
                self._change.notify_all()

    def _prepared(self, step: GpuStep) -> Kernel:
        memories = {Memory.arena: self._arena, Memory.workspace: self._workspace, Memory.weights: self._arena}
        if step.weights is not None:  # kernels without any are given the arena
            memories[Memory.weights] = self._weights(step.weights)
        with self._timed("code"):
            commands = []
            for planned in step.launches:
                launch, given = launch_of(planned), [argument_of(argument, memories) for argument in planned.arguments]
                self._load(self._processor.source_of(launch))
                commands.append(self._processor.command(launch, given))
        return Kernel(step.implementation, tuple(commands))

    def _weights(self, weights: PackedWeights) -> Any:
        """The weights of a step as its kernels are given them, uploaded now unless all go up in one go."""
        if weights.cached and self._packed is not None:
            return self._processor.part_of(self._packed, weights.offset, _FLOAT_BYTES * weights.elements)
        if weights.cached:
            with self._timed("read"):
                values = self._files.read_packed(weights)
        else:
            with self._timed("read"):
                raw = self._files.read_raw(weights)
            with self._timed("pack"):
                values = packed_of(weights, raw)
        self._kept.append(values)
        with self._timed("upload"):
            return self._processor.upload(values)

    def _load(self, source: ProgramSource) -> None:
        """Have the processor hold the code of a source: from the folder where that is whole, else compiled."""
        with self._making.setdefault(source, threading.Lock()):
            if source in self._loaded:
                return
            code = self._codes.get(source) if self._codes is not None else None
            if code is not None:
                try:
                    self._processor.load(source, code)
                except DeviceError as error:
                    self.code_problem, code = f"is refused: {error.what}", None
            if code is None:
                self._processor.compile(source)
                if self._codes is not None:
                    self.code_problem = self.code_problem or "lacks whole code for this device and driver"
            self._loaded.add(source)

    def _load_whole(self) -> None:
        """Have the processor hold the code of all steps as one program, where its driver can."""
        sources = sources_of_steps(self._processor, self.program.steps)
        self._whole = self._processor.merged(sources)
        if self._whole is not None:
            self._load(self._whole)
            self._processor.take_from(self._whole, sources)
            self._loaded.update(sources)

    @contextmanager
    def _timed(self, stage: str) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            taken = (time.perf_counter() - began) * 1e3
            with self._change:
                self._stages[stage] += taken

    # Inferences

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        processor, first = self._processor, not self.cold_ms
        processor.enter()
        if not first and self._again is None:
            self._record()
        values = [np.ascontiguousarray(inputs[border.name]) for border in self.program.inputs]
        outputs = {border.name: np.empty(border.shape, border.dtype) for border in self.program.outputs}
        for border, value in zip(self.program.inputs, values, strict=True):
            processor.enqueue_write(self._arena, border.offset, value)
        if first:
            self._prepare_here()
        if self._again is None:
            for index in range(len(self.program.steps)):
                processor.enqueue(self._ready(index))
                if first:
                    processor.flush()
        else:
            self._again()
        began = time.perf_counter()
        for border in self.program.outputs:
            processor.enqueue_read(self._arena, border.offset, outputs[border.name])
        processor.finish()
        if first:
            now = time.perf_counter()
            self._stages["run"] = (now - began) * 1e3
            self.cold_ms = (now - self._began) * 1e3
            self._keep_codes()
        return outputs

    def _prepare_here(self) -> None:
        """Prepare what no thread does before the first kernel runs."""
        if self.schedule.at_once:
            with self._timed("code"):
                self._load_whole()
        if self.schedule.in_sequence or self.schedule.at_once:
            self._prepare_all(self.schedule.queues[0])
        if not self._is_up:
            self._await(lambda: self._is_up, PACKED_NAME)

    def _ready(self, index: int) -> Kernel:
        if self._kernels[index] is None:
            self._await(lambda: self._kernels[index] is not None, self.program.steps[index].name)
        return cast("Kernel", self._kernels[index])

    def _await(self, is_done: Callable[[], bool], what: str) -> None:
        """Wait for what a thread of the cold start does."""
        with self._timed("wait"), self._change:
            while not is_done():
                if self._failure is not None:
                    raise self._failure
                if not any(thread.is_alive() for thread in self._threads):
                    raise DeviceError("no thread prepares a step", where=what, next_step=plan_again(GPU_START))
                self._change.wait(_LOOK_SECONDS)

    def _record(self) -> None:
        """Record what later inferences enqueue, before the second one: no first outputs wait for it."""
        kernels = [kernel for kernel in self._kernels if kernel is not None and kernel.handle]

        def enqueue_all() -> None:
            for kernel in kernels:
                self._processor.enqueue(kernel)

        self._again = self._processor.recorded(enqueue_all)

    def _keep_codes(self) -> None:
        """Write the code again that had to be compiled in the first inference."""
        if self.code_problem:
            _log.warning(
                "%s %s: kernels were compiled, and it is written again", self._plan.path / CODE_NAME, self.code_problem
            )
            with contextlib.suppress(StoreError, DeviceError):  # compiled again next time
                kept = self._loaded if self._whole is None else {self._whole}
                codes = {source: self._processor.code_of(source) for source in kept}
                write_codes(self._plan.path / CODE_NAME, self._processor.code_identity, codes)

    def _close(self) -> None:
        if hasattr(self, "_stop"):
            self._stop.set()
            for thread in self._threads:
                thread.join()
            self._kernels.clear()
        for close in reversed(self._closing):
            with contextlib.suppress(EdgeplanError):
                close()
        self._closing.clear()


def _require_fitting(program: GpuProgram, schedule: GpuSchedule, plan: PlanFolder) -> None:
    if problem := problem_of(program, schedule):
        what = f"the plan does not fit: {problem}"
        raise FormatError(what, where=str(plan.path / PLAN_NAME), next_step=plan_again(GPU_START))


def launch_of(planned: PlannedLaunch) -> Launch:
    """Return the launch of a plan without its arguments."""
    return Launch(planned.source, planned.kernel, planned.defines, planned.global_size, planned.local_size, ())


def sources_of_steps(processor: DispatchingProcessor, steps: Sequence[GpuStep]) -> tuple[ProgramSource, ...]:
    """List the sources of all kernels of steps, each once, by name: the same ones make the same program."""
    found = {processor.source_of(launch_of(launch)) for step in steps for launch in step.launches}
    return tuple(sorted(found, key=lambda source: (source.name, source.options)))


def library_version() -> str:
    """Return the version of the kernels: plans hold their arguments."""
    return f"own kernels {kernels_digest()[:16]}"


@dataclass(frozen=True, slots=True)
class OpenedGpu:
    """An opened GPU is a processor with what its opening took (ms): the driver and compiler, then a context and a queue."""

    processor: DispatchingProcessor
    library_ms: float
    context_ms: float


def open_gpu(spec: DeviceSpec, *, profiling: bool = False) -> OpenedGpu:
    """Open the processor of a device, with vectors as its options say where it names none; with `profiling` it notes times."""
    began = time.perf_counter()
    kind = gpu_class(spec.engine)
    kind.load_library(spec.options)
    loaded = time.perf_counter()
    processor = kind.open_late(spec.options, spec.block, spec.vector, profiling=profiling)
    return OpenedGpu(processor, (loaded - began) * 1e3, (time.perf_counter() - loaded) * 1e3)


def gpu_class(engine: str) -> type[DispatchingProcessor]:
    """Return the processor of an engine that cold starts on a GPU are planned for."""
    kind: type[Processor] = face(PROCESSORS, engine, "processor", "processor")
    if not issubclass(kind, DispatchingProcessor):
        raise DeviceError(
            f"{engine} makes no kernels of its own on a device",
            where="the device file, field engine",
            next_step="take a device of the engine opencl or cuda",
        )
    return kind


def open_gpu_start(plan: PlanFolder) -> GpuSession:
    """Open a plan folder of a cold start on a GPU, with the processor that it names; that is closed with the session."""
    machine = fingerprint()
    return GpuSession(plan, open_gpu(cast("GpuProgram", plan.program).device).processor, machine)


def without_driver_caches(scratch: str = "") -> None:
    """Keep the drivers of this process from finding code of earlier ones; to be called before they are loaded.

    PoCL unpacks to the empty folder `scratch`, where processes would else see each other's; "" for its own.
    """
    for name, value in UNCACHED.items():
        os.environ.setdefault(name, value)
    if scratch:
        os.environ["POCL_CACHE_DIR"] = scratch


def host_processors(processor: DispatchingProcessor) -> tuple[int, ...]:
    """Return the processors that this process may use and the device does not compute on; all if none is left."""
    usable = os.sched_getaffinity(0)
    return tuple(sorted(usable - set(processor.capabilities.cores) or usable))
