"""Runs a plan of a cold start on a GPU: threads prepare steps in the planned order while the GPU runs those that are ready.

To prepare a step is to read its weights, to load or compile its kernels, to pack the weights unless the folder holds them
packed, and to upload them. One more thread reads ahead of all where files are not in memory. The thread that asked for the
inference hands each step to the GPU's queue once it is prepared, in the order of execution. Later inferences wait for nothing.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from edgeplan.errors import DeviceError, EdgeplanError, FormatError, StoreError
from edgeplan.gpu_start.code_cache import CodeCache, write_codes
from edgeplan.gpu_start.weights import WeightFiles, packed_of
from edgeplan.opencl.building import ProgramSource, sources_digest
from edgeplan.opencl.launch import Launch, Memory
from edgeplan.runtime.bringing import Bringer
from edgeplan.runtime.folder import GPU_START, PLAN_NAME, PlanFolder, plan_again
from edgeplan.runtime.gpu_program import (
    CODE_NAME,
    MEMORIES,
    PACKED_NAME,
    GpuProgram,
    GpuSchedule,
    GpuStep,
    PlannedLaunch,
    problem_of,
)
from edgeplan.runtime.memory import in_memory
from edgeplan.runtime.plan_session import Session
from edgeplan.runtime.processor import Kernel

if TYPE_CHECKING:
    from edgeplan.opencl.processor import DispatchingProcessor

_log = logging.getLogger(__name__)
_LOOK_SECONDS = 1.0  # between looks whether a thread that prepares still lives
STAGES = ("read", "code", "pack", "upload", "wait", "run")


class GpuSession(Session):
    """A session runs the inferences of one plan on a processor; the first one begins while steps are prepared.

    Args:
        plan: folder as it was read.
        processor: on which to run it, opened late; it is closed with the session.
        machine: fingerprint of this machine.

    Attributes:
        program: what is executed.
        cold_ms: time from the making of this session to the first outputs; 0 before them.
        code_problem: why kernels were compiled although the plan keeps their code; "" if none was.

    Raises:
        FormatError: the plan is for another machine, device or driver, or damaged.
        ModelError: weights are missing or damaged.
        DeviceError: the device has not enough memory.
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
            self._arena = processor.own_memory(self.program.arena_bytes)
            self._workspace = processor.own_memory(self.program.workspace_bytes)
        except BaseException:
            self._end()
            raise
        self.cold_ms, self.code_problem = 0.0, self._codes.problem if self._codes is not None else ""
        self._again: Callable[[], None] | None = None
        self._stages: dict[str, float] = defaultdict(float)
        self._kernels: list[Kernel | None] = [None] * len(self.program.steps)
        self._kept: list[Any] = []  # host memory that the device may read in place
        self._loaded = set[ProgramSource]()
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
        lanes = [lambda queue=queue: self._prepare_all(queue) for queue in self.schedule.queues if queue]
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
            for step in self.program.steps:
                for descriptor, first, last in self._files.parts(step.weights) if step.weights is not None else ():
                    if self._stop.is_set():
                        return
                    if not in_memory(descriptor, last, probes=1):
                        bringer.bring(descriptor, first, last)

    def _prepare_all(self, steps: tuple[int, ...]) -> None:
        for index in steps:
            if self._stop.is_set():
                return
            kernel = self._prepared(self.program.steps[index])
            with self._change:
                self._kernels[index] = kernel
                self._change.notify_all()

    def _prepared(self, step: GpuStep) -> Kernel:
        memories: dict[str, Any] = {Memory.arena.value: self._arena, Memory.workspace.value: self._workspace}
        memories[Memory.weights.value] = self._arena  # of kernels without any
        if step.weights is not None:
            if step.weights.cached:
                with self._timed("read"):
                    values = self._files.read_packed(step.weights)
            else:
                with self._timed("read"):
                    raw = self._files.read_raw(step.weights)
                with self._timed("pack"):
                    values = packed_of(step.weights, raw)
            with self._timed("upload"):
                memories[Memory.weights.value] = self._processor.upload(values)
            self._kept.append(values)
        with self._timed("code"):
            commands = tuple(self._command(launch, memories) for launch in step.launches)
        return Kernel(step.implementation, commands)

    def _command(self, planned: PlannedLaunch, memories: Mapping[str, Any]) -> object:
        launch = launch_of(planned)
        self._load(self._processor.source_of(launch))
        return self._processor.command(launch, [argument_of(argument, memories) for argument in planned.arguments])

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
        if first and self.schedule.in_sequence:
            self._prepare_all(self.schedule.queues[0])
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

    def _ready(self, index: int) -> Kernel:
        kernel = self._kernels[index]
        if kernel is not None:
            return kernel
        with self._timed("wait"), self._change:
            while self._kernels[index] is None:
                if self._failure is not None:
                    raise self._failure
                if not any(thread.is_alive() for thread in self._threads):
                    raise DeviceError("no thread prepares a step", where=self.program.steps[index].name,
                                      next_step=plan_again(GPU_START))  # fmt: skip
                self._change.wait(_LOOK_SECONDS)
        return self._ready(index)

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
                codes = {source: self._processor.code_of(source) for source in self._loaded}
                write_codes(self._plan.path / CODE_NAME, self._processor.code_identity, codes)

    def _close(self) -> None:
        self._end()

    def _end(self) -> None:
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


def argument_of(argument: int | str, memories: Mapping[str, Any]) -> Any:
    """Return an argument of a planned launch as processors take it: a memory by its name, or a number of 32 bits."""
    if isinstance(argument, str):
        return memories[argument] if argument in MEMORIES else np.float32(float.fromhex(argument))
    return np.int32(argument)


def launch_of(planned: PlannedLaunch) -> Launch:
    """Return the launch of a plan without its arguments."""
    return Launch(planned.source, planned.kernel, planned.defines, planned.global_size, planned.local_size, ())


def library_version() -> str:
    """Return the version of the kernels: plans hold their arguments."""
    return f"own kernels {sources_digest()[:16]}"
