"""Runs steps on NVIDIA GPUs as processors: the kernels of OpenCL devices through CUDA, on the whole GPU or a slice of it.

Activations have a copy in the GPU's memory and one in the host's, which is pinned; the queue moves what crosses. It waits for
counters, and sets them, by operations of the stream, which occupy no multiprocessor: the host polls them as it does those of a
neighbour. A slice is a green context: so many of the GPU's multiprocessors, as a smaller GPU has.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgeplan.cuda.driver import Driver, GpuContext, merged, translated
from edgeplan.errors import DeviceError
from edgeplan.opencl.building import ProgramSource
from edgeplan.opencl.launch import GpuNumbers, Launch, Memory
from edgeplan.opencl.processor import FLOAT_BYTES, LIMIT_SECONDS, DispatchingProcessor
from edgeplan.runtime.creation import ALIGNMENT
from edgeplan.runtime.executable import Buffer, Executable
from edgeplan.runtime.processor import Capabilities, Kernel, Region, Sharing

_WHERE = "the device file, field options"
#: An argument of a kernel takes eight bytes of a row of them, by its type as `struct` packs it.
_SLOTS: Mapping[type, str] = MappingProxyType({np.uint64: "Q", np.int32: "i4x", np.float32: "f4x"})
_SLOT_BYTES = 8
_VECTOR = 4
_NS_PER_MS = 1e6
_LARGE = 1 << 29  # a counter that nobody waits beyond
_SPIN_SECONDS, _NAP_SECONDS = 0.002, 0.0001


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """A GPU by its number in nvidia-smi, or a slice of so many multiprocessors of it; 0: the whole."""

    device: int = 0
    multiprocessors: int = 0

    @classmethod
    def of(cls, given: Mapping[str, str]) -> CudaOptions:
        """Return options as device files write them, as text."""
        if unknown := sorted(given.keys() - {"device", "multiprocessors"}):
            raise DeviceError(f"unknown option {unknown[0]!r}", where=_WHERE, next_step="known: device, multiprocessors")
        for name, value in given.items():
            if not (value.isascii() and value.isdigit() and int(value) < 1 << 16):
                raise DeviceError(f"{name} is {value!r}", where=_WHERE, next_step=f"a number, as in {name}: '8'")
        return cls(*(int(given.get(name, "0")) for name in ("device", "multiprocessors")))


@dataclass(frozen=True, slots=True)
class _Command:
    """A command is a kernel with its arguments in place."""

    function: Any
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    arguments: int
    keep: tuple[object, ...] = ()


class _Recording:
    """A recording is a graph that one call of the driver enqueues; it is freed with the last reference to it."""

    def __init__(self, processor: CudaProcessor, graph: Any, instance: Any, marks: list[tuple[Any, Any]]) -> None:
        self._processor, self._graph, self._instance, self.marks = processor, graph, instance, marks

    def __call__(self) -> None:
        if self.marks:
            self._processor._note_clocks()  # noqa: SLF001  a part of it
            self._processor._timed += self.marks  # noqa: SLF001  likewise
        self._processor.driver.call("cuGraphLaunch", self._instance, self._processor.stream)

    def close(self) -> None:
        """Free the graph; what it enqueued has ended."""
        freed = [("cuGraphExecDestroy", self._instance), ("cuGraphDestroy", self._graph)] if self._graph is not None else []
        freed += [("cuEventDestroy", event) for events in self.marks for event in events]
        self._graph, self.marks = None, []
        for function, handle in freed:
            with contextlib.suppress(DeviceError):
                self._processor.driver.call(function, handle)

    def __del__(self) -> None:
        self.close()


class CudaProcessor(DispatchingProcessor):
    """This processor is one NVIDIA GPU, or a slice of one, with a queue in order."""

    def __init__(self, options: CudaOptions, block: int, *, profiling: bool = False) -> None:
        self.driver = driver = Driver()
        self._profiling = profiling
        self._memories: dict[int, tuple[Buffer, int]] = {}  # by the host's address: the buffer, and the GPU's own
        self._weights: dict[int, list[int]] = {}  # of the kernels on each of these memories
        self._kept: list[int] = []  # what launches use between them
        self._workspace, self._workspace_bytes = 0, 0
        self._awaited: set[int] = set()
        self._gave_up = False
        self._timed: list[tuple[Any, Any]] = []  # begin and end of each kernel
        self._recording = False
        self._spare: list[Any] = []
        self._base: tuple[Any, int] | None = None
        self._recordings: weakref.WeakSet[_Recording] = weakref.WeakSet()
        self._closed = False
        self._context = context = GpuContext.shared(driver, options.device, options.multiprocessors)
        try:
            self.stream, self._uploads = context.stream(), context.stream()
            self.device_numbers = GpuNumbers(
                context.units, _VECTOR, block, context.attribute("MAX_THREADS_PER_BLOCK"),
                context.attribute("MAX_SHARED_MEMORY_PER_BLOCK"), context.attribute("TOTAL_CONSTANT_MEMORY"),
            )  # fmt: skip
            memory = int(driver.call("cuMemGetInfo")[1])
        except BaseException:
            self.close()
            raise
        name, version = context.name, context.version
        told = f"{name}, {context.units} multiprocessors" if context.is_slice else name
        self._capabilities = Capabilities(
            told, f"CUDA {version // 1000}.{version % 1000 // 10}; NVRTC {driver.compiler}; {told}",
            Sharing.mirrored, atomics=True, units=context.units, memory_bytes=memory,
        )  # fmt: skip

    @classmethod
    def open(cls, options: Mapping[str, str], cores: Sequence[int], block: int, *, profiling: bool = False) -> Self:
        """See `Processor`: the options are those of `CudaOptions`; it computes on no core."""
        if cores:
            raise DeviceError("a GPU computes on no CPU cores", where="the pair file", next_step="leave out its cores")
        return cls(CudaOptions.of(options), block, profiling=profiling)

    # Steps

    def empty(self) -> Kernel:
        function = self._context.modules.function(translated("empty", ()), "empty")
        return Kernel("empty", (_Command(function, (1, 1, 1), (1, 1, 1), 0),))

    def _memories_of(self, executable: Executable, weights: Any, workspace: int) -> dict[Memory, Any]:
        arena = executable.arena.address
        values, kept = np.ascontiguousarray(weights, np.float32), self._weights.setdefault(arena, [])
        found = (self._own(arena), self._copied(values, kept), self._workspace_of(workspace))
        return dict(zip((Memory.arena, Memory.weights, Memory.workspace), map(np.uint64, found), strict=True))

    def command(self, launch: Launch, arguments: Sequence[Any]) -> _Command:
        """Have each argument lie where the driver reads it; see `DispatchingProcessor`."""
        function = self._context.modules.function(translated(launch.source, launch.defines), launch.kernel)
        kinds = "".join(_SLOTS[type(argument)] for argument in arguments)
        values = np.frombuffer(struct.pack(f"<{kinds}", *arguments), np.uint8)
        addresses = values.ctypes.data + _SLOT_BYTES * np.arange(len(arguments), dtype=np.uint64)
        local = (*launch.local_size, 1, 1)[:3]
        grid = tuple(size // part for size, part in zip((*launch.global_size, 1, 1)[:3], local, strict=True))
        return _Command(function, (grid[0], grid[1], grid[2]), (local[0], local[1], local[2]), addresses.ctypes.data,
                        (addresses, values))  # fmt: skip

    # Kernels that are made late

    @classmethod
    def open_late(cls, options: Mapping[str, str], block: int, vector: int = 0, *, profiling: bool = False) -> Self:
        """Open the processor for kernels that are made late; its vectors are always alike. See `DispatchingProcessor`."""
        del vector
        return cls(CudaOptions.of(options), block, profiling=profiling)

    @classmethod
    def load_library(cls, options: Mapping[str, str]) -> None:
        """Load the driver and the compiler, and look for the GPU; see `DispatchingProcessor`.

        Machine code is loaded where a thread asks for it, not when its kernel is first launched.
        """
        os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")  # the driver reads it once
        Driver().call("cuDeviceGet", CudaOptions.of(options).device)

    @property
    def code_identity(self) -> str:
        """Return the GPU with its architecture, the driver and the compiler."""
        return f"{self._context.modules.target}; {self.driver.compiler}"

    def source_of(self, launch: Launch) -> ProgramSource:
        return translated(launch.source, launch.defines)

    def compile(self, asked: ProgramSource) -> None:
        self._context.modules.compile(asked)

    def code_of(self, asked: ProgramSource) -> bytes:
        return self._context.modules.code_of(asked)

    def load(self, asked: ProgramSource, code: bytes) -> None:
        self._context.modules.load(asked, code)

    def merged(self, sources: Sequence[ProgramSource]) -> ProgramSource:
        return merged(tuple(sources))

    def take_from(self, whole: ProgramSource, sources: Sequence[ProgramSource]) -> None:
        self._context.modules.take_from(whole, sources)

    def enter(self) -> None:
        self._context.enter()

    def own_memory(self, size: int) -> Any:
        found = self.reserve(size)
        self.driver.call("cuMemsetD8Async", int(found), 0, max(size, ALIGNMENT), self.stream)
        return found

    def upload(self, values: npt.NDArray[np.float32]) -> Any:
        return np.uint64(self._copied(values, self._kept))

    def reserve(self, size: int) -> Any:
        found = int(self.driver.call("cuMemAlloc", max(size, ALIGNMENT)))
        self._kept.append(found)
        return np.uint64(found)

    def fill(self, memory: Any, values: npt.NDArray[Any]) -> None:
        self._copy_up(int(memory), values)

    def part_of(self, memory: Any, offset: int, size: int) -> Any:
        del size
        return memory + np.uint64(offset)

    def enqueue_write(self, memory: Any, offset: int, values: npt.NDArray[Any]) -> None:
        self.driver.call("cuMemcpyHtoDAsync", int(memory) + offset, values.ctypes.data, values.nbytes, self.stream)

    def enqueue_read(self, memory: Any, offset: int, values: npt.NDArray[Any]) -> None:
        self.driver.call("cuMemcpyDtoHAsync", values.ctypes.data, int(memory) + offset, values.nbytes, self.stream)

    # Memory

    def allocate(self, size: int) -> Buffer:
        driver, whole = self.driver, max(size, ALIGNMENT)
        flag = driver.api.CU_MEMHOSTALLOC_PORTABLE | driver.api.CU_MEMHOSTALLOC_DEVICEMAP
        address = int(driver.call("cuMemHostAlloc", whole, flag))
        try:
            own = int(driver.call("cuMemAlloc", whole))
        except DeviceError:
            driver.call("cuMemFreeHost", address)
            raise
        data: npt.NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * whole).from_address(address))
        data[:] = 0
        driver.call("cuMemsetD8Async", own, 0, whole, self.stream)  # which no plain call of the driver waits for
        buffer = Buffer(data[:size], address)
        self._memories[address] = buffer, own
        return buffer

    def free(self, buffer: Buffer) -> None:
        _, own = self._memories.pop(buffer.address)
        for weights in self._weights.pop(buffer.address, ()):
            self.driver.call("cuMemFree", weights)
        end = buffer.address + max(len(buffer.data), ALIGNMENT)
        self._awaited = {address for address in self._awaited if not buffer.address <= address < end}
        self.driver.call("cuMemFree", own)
        self.driver.call("cuMemFreeHost", buffer.address)

    def _own(self, address: int) -> int:
        if address not in self._memories:
            raise self._not_allocated("activations lie", "give Executable an arena from CudaProcessor.allocate")
        return self._memories[address][1]

    def _copied(self, values: npt.NDArray[np.float32], kept: list[int]) -> int:
        """Copy values to new memory of the GPU, whose address is kept to be freed."""
        found = int(self.driver.call("cuMemAlloc", max(values.nbytes, ALIGNMENT)))
        kept.append(found)  # of several threads: the last is not always this one
        self._copy_up(found, values)
        return found

    def _copy_up(self, memory: int, values: npt.NDArray[np.float32]) -> None:
        """Copy values to the GPU, and wait until they are there: a plain copy returns before, and queues wait for none."""
        self.driver.call("cuMemcpyHtoDAsync", memory, values.ctypes.data, values.nbytes, self._uploads)
        self.driver.call("cuStreamSynchronize", self._uploads)

    def _workspace_of(self, elements: int) -> int:
        """The memory that launches of one step use between them: one for all steps, which run one after the other."""
        if (size := FLOAT_BYTES * max(1, elements)) > self._workspace_bytes:
            self._workspace, self._workspace_bytes = int(self.driver.call("cuMemAlloc", size)), size
            self._kept.append(self._workspace)  # kernels that were prepared before use the smaller one
        return self._workspace

    def _move(self, buffer: Buffer, region: Region, *, inwards: bool) -> None:
        at, width, rows, pitch = region
        own, host = self._own(buffer.address) + at, buffer.address + at
        if rows == 1 or pitch == width:
            order = ("cuMemcpyHtoDAsync", own, host) if inwards else ("cuMemcpyDtoHAsync", host, own)
            self.driver.call(*order, width * rows, self.stream)
            return
        api = self.driver.api
        described = api.CUDA_MEMCPY2D()
        here, there = api.CUmemorytype.CU_MEMORYTYPE_HOST, api.CUmemorytype.CU_MEMORYTYPE_DEVICE
        described.srcMemoryType, described.dstMemoryType = (here, there) if inwards else (there, here)
        if inwards:
            described.srcHost, described.dstDevice = host, own
        else:
            described.srcDevice, described.dstHost = own, host
        described.srcPitch = described.dstPitch = pitch
        described.WidthInBytes, described.Height = width, rows
        self.driver.call("cuMemcpy2DAsync", described, self.stream)

    # Running

    def enqueue(self, kernel: Kernel) -> None:
        if self._profiling:
            self._note_clocks()
            begin = self._mark()
        for command in self.commands(kernel):
            self.driver.call("cuLaunchKernel", command.function, *command.grid, *command.group, 0, self.stream,
                              command.arguments, 0)  # fmt: skip
        if self._profiling:
            self._timed.append((begin, self._mark()))

    def _note_clocks(self) -> None:
        """Note what both clocks show, before the first kernel that is timed."""
        if self._base is None and not self._recording:
            self._base = self._mark(), time.perf_counter_ns()

    def _mark(self) -> Any:
        driver = self.driver
        event = self._spare.pop() if self._spare else driver.call("cuEventCreate", 0)
        flag = driver.api.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL if self._recording else 0
        driver.call("cuEventRecordWithFlags", event, self.stream, int(flag))
        return event

    def spans(self) -> Sequence[tuple[int, int]]:
        if self._base is None:
            return []
        (base, at), timed = self._base, self._timed
        self._base, self._timed = None, []
        kept = {id(event) for recording in self._recordings for events in recording.marks for event in events}
        found = []
        for events in timed:
            begin, end = (at + int(self.driver.call("cuEventElapsedTime", base, event) * _NS_PER_MS) for event in events)
            found.append((begin, end))
        self._spare += [base, *(event for events in timed for event in events if id(event) not in kept)]
        return found

    def recorded(self, enqueue_all: Callable[[], None]) -> Callable[[], None]:
        driver, api = self.driver, self.driver.api
        driver.call("cuStreamBeginCapture", self.stream, api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
        timed, self._timed, self._recording = self._timed, [], True
        try:
            enqueue_all()
        finally:
            marks, self._timed, self._recording = self._timed, timed, False
            graph = driver.call("cuStreamEndCapture", self.stream)
        recording = _Recording(self, graph, driver.call("cuGraphInstantiate", graph, 0), marks)
        self._recordings.add(recording)
        return recording

    def finish(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        if not self._done_within(limit_seconds):
            self.give_up()
            self._done_within(1.0)
            self._gave_up = False
            what = f"the GPU has not finished within {limit_seconds:g} s"
            raise self._error(what, "run again; if it stays so, install another version of the driver")
        if self._gave_up:
            self._gave_up = False
            raise self._error("waits for the host were given up", "run again with less other work on the machine")

    def _done_within(self, limit_seconds: float) -> bool:
        begin = time.monotonic()
        while not self.driver.done(self.stream):
            waited = time.monotonic() - begin
            if waited > limit_seconds:
                return False
            if waited > _SPIN_SECONDS:
                time.sleep(_NAP_SECONDS)
        return True

    # Counters in pinned memory

    def enqueue_wait(self, counter_address: int, value: int) -> None:
        self._awaited.add(self._word(counter_address))
        flag = self.driver.api.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ
        self.driver.call("cuStreamWaitValue32", self.stream, counter_address, value, flag)

    def enqueue_signal(self, counter_address: int, value: int) -> None:
        flag = self.driver.api.CUstreamWriteValue_flags.CU_STREAM_WRITE_VALUE_DEFAULT
        self.driver.call("cuStreamWriteValue32", self.stream, self._word(counter_address), value, flag)

    def _word(self, address: int) -> int:
        for buffer, _ in self._memories.values():
            if 0 <= address - buffer.address <= len(buffer.data) - FLOAT_BYTES and address % FLOAT_BYTES == 0:
                return address
        raise self._not_allocated("a counter lies", "place counters in a buffer from CudaProcessor.allocate")

    def give_up(self) -> None:
        self._gave_up = True
        for address in tuple(self._awaited):
            ctypes.c_int32.from_address(address).value = _LARGE

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        driver = self.driver
        with contextlib.suppress(DeviceError, AttributeError):  # it was said where it mattered, or was never opened
            self.give_up()
            self._done_within(LIMIT_SECONDS)
        freed: list[tuple[str, Any]] = []
        for recording in tuple(self._recordings):
            recording.close()
        freed += [("cuEventDestroy", event) for event in self._spare]
        freed += [("cuMemFree", memory) for memory in (*self._kept, *(one for own in self._weights.values() for one in own))]
        for buffer, own in self._memories.values():
            freed += [("cuMemFree", own), ("cuMemFreeHost", buffer.address)]
        for function, handle in freed:
            with contextlib.suppress(DeviceError):
                driver.call(function, handle)
        for name in ("stream", "_uploads"):
            with contextlib.suppress(DeviceError, AttributeError):
                driver.call("cuStreamDestroy", getattr(self, name))
        self._context.close()
        self._memories.clear()
        self._awaited.clear()
