"""Runs steps on OpenCL devices as processors: own kernels on memory that the host shares as far as the device can.

Kernels, their tiles and their groups come from the dispatcher (`opencl.dispatch`); arguments are set once, so that running a
step is one call for each of its launches.
"""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgeplan.errors import DeviceError
from edgeplan.opencl import dispatch as dispatcher
from edgeplan.opencl.building import Programs, ProgramSource, program_source
from edgeplan.opencl.launch import DeviceNumbers, Dispatch, GpuNumbers, Launch, Memory
from edgeplan.opencl.platforms import (
    VECTORS,
    OpenclOptions,
    device_versions,
    driver_identity,
    find_device,
    is_pocl,
    pyopencl,
    reason,
    started_cores,
)
from edgeplan.opencl.processor import FLOAT_BYTES, LIMIT_SECONDS, DispatchingProcessor
from edgeplan.runtime.creation import ALIGNMENT
from edgeplan.runtime.executable import Buffer, Executable, allocate
from edgeplan.runtime.processor import Capabilities, Kernel, Region, Sharing

_SHARED_ALIGNMENT = 128  # of memory that a device uses in place: of the largest type, a vector of 16 doubles
#: Looks by which the speed of a polling kernel is taken, and the most of them that a kernel is ever asked for.
_CALIBRATION_LOOKS, _MOST_LOOKS, _CALIBRATIONS = 200_000, 1 << 40, 3
_NS_PER_S = 1e9
#: Kernels of counters that are kept with their arguments set.
_MOST_COUNTER_KERNELS = 4096
#: Floats of a vector at most, by what a driver's version says: LLVM 14 does not end kernels of 16, or ends the process.
_NARROWER = {"PoCL 3.0": 8}
_SMALLER = "run a smaller model or part, or another device"
#: What to do about an error of the driver, by the name of its code.
_NEXT_STEPS = {
    "DEVICE_NOT_AVAILABLE": "another program has the device for itself, or it is lost: end that, or look for it with clinfo",
    "INVALID_COMMAND_QUEUE": "the driver gave the device up, as a watchdog does, or a fault: run again, or on another one",
    "MEM_OBJECT_ALLOCATION_FAILURE": "run a smaller model, or end other programs on this device",
    "OUT_OF_HOST_MEMORY": "run a smaller model, or end other programs on this machine",
    "OUT_OF_RESOURCES": "end other programs on this device, or run a smaller model; a watchdog reports this, too",
}


@dataclass(frozen=True, slots=True)
class _Command:
    """A kernel of OpenCL with its arguments set."""

    kernel: Any
    global_size: tuple[int, ...]
    local_size: tuple[int, ...]
    keep: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class _Allocation:
    """Memory of the host's, and what kernels are given for it: the same, or the device's own copy."""

    data: Any
    argument: Any


class OpenclProcessor(DispatchingProcessor):
    """This processor is one OpenCL device with a queue in order.

    Kernels may be made `late`, while others run, as in a cold start: none is built apart or run once before, and the queue
    cannot poll.
    """

    def __init__(self, options: OpenclOptions, block: int, *, profiling: bool = False, late: bool = False) -> None:
        cl = pyopencl()
        self._cl = cl
        self.device = find_device(options)
        self.device_numbers = device_numbers(self.device, block, options)
        self._capabilities, self._late = _capabilities(self.device, options, late=late), late
        self._memories: dict[int, _Allocation] = {}  # by the host's address
        self._moves: list[Any] = []  # events of moves that may not have ended: one that is let go of is waited for
        self._workspace: Any = None
        self._run_once: set[tuple[ProgramSource, str, tuple[int, ...]]] = set()
        self._tried: set[int] = set()
        self._counter_kernels: dict[tuple[object, ...], _Command] = {}
        self._waiter: _Waiter | None = None
        self._profiling = profiling
        self._timed: list[tuple[int, tuple[Any, ...]]] = []  # when a kernel was about to be enqueued, and its launches
        properties, what = cl.command_queue_properties.PROFILING_ENABLE if profiling else 0, "cannot open the device"
        self._context = self._called(what, cl.Context, [self.device])
        self._queue = self._called(what, cl.CommandQueue, self._context, properties=properties)
        self._programs = Programs(self._context, options, apart=not late)
        self._waiter = _Waiter()
        self._control: Buffer | None = None
        self._looks = 1
        if self._capabilities.atomics:
            self._calibrate()

    @classmethod
    def open(cls, options: Mapping[str, str], cores: Sequence[int], block: int, *, profiling: bool = False) -> Self:
        """See `Processor`: the options are those of `OpenclOptions`, the cores those that PoCL computes on."""
        given = {**options, "cores": ",".join(map(str, cores))} if cores else options
        return cls(OpenclOptions.of(given), block, profiling=profiling)

    # Steps

    def empty(self) -> Kernel:
        return Kernel("empty", (_Command(self._programs.kernel(program_source("empty", ()), "empty"), (1,), (1,)),))

    def _announce(self, executable: Executable, found: Dispatch) -> None:
        """The first step of an executable has the kernels of all of them tried in one process apart, if never built."""
        if id(executable) in self._tried:
            return
        self._tried.add(id(executable))
        program = executable.program
        launches = list(found.launches)
        for step in program.steps:
            with contextlib.suppress(DeviceError):  # the host runs it
                launches += dispatcher.dispatch(step, program.shapes, program.layouts, self.device_numbers).launches
        self._programs.try_apart(program_source(launch.source, launch.defines) for launch in launches)

    def _memories_of(self, executable: Executable, weights: Any, workspace: int) -> dict[Memory, Any]:
        arena, between = self._argument(executable.arena), self._workspace_of(workspace)
        return {Memory.arena: arena, Memory.weights: self._constant(weights), Memory.workspace: between}

    def command(self, launch: Launch, arguments: Sequence[Any]) -> _Command:
        """Run once, on whatever its activations hold, so that no run waits for code to be generated."""
        asked = self.source_of(launch)
        kernel = self._programs.kernel(asked, launch.kernel)
        self._called(f"cannot prepare the kernel {asked.name}", kernel.set_args, *arguments)
        command = _Command(kernel, launch.global_size, launch.local_size, tuple(arguments))
        key = (asked, launch.kernel, launch.local_size)
        if key not in self._run_once and not self._late:
            self._run_once.add(key)
            self._launch(command)
            self.finish()
        return command

    # Kernels that are made late

    @classmethod
    def open_late(cls, options: Mapping[str, str], block: int, vector: int = 0, *, profiling: bool = False) -> Self:
        given = {**options, "vector": str(vector)} if vector else options
        return cls(OpenclOptions.of(given), block, profiling=profiling, late=True)

    @classmethod
    def load_library(cls, options: Mapping[str, str]) -> None:
        find_device(OpenclOptions.of(options))
        import_module("pyopencl.invoker")  # a part of the binding that the first kernel would load

    @property
    def code_identity(self) -> str:
        """Return platform, device, driver and the host's processor, which PoCL compiles for."""
        return driver_identity(self.device)

    def source_of(self, launch: Launch) -> ProgramSource:
        return program_source(launch.source, launch.defines)

    def compile(self, asked: ProgramSource) -> None:
        self._programs.build(asked)

    def code_of(self, asked: ProgramSource) -> bytes:
        return self._programs.binary(asked)

    def load(self, asked: ProgramSource, code: bytes) -> None:
        self._programs.load(asked, code)

    def own_memory(self, size: int) -> Any:
        found, zero, what = self.reserve(size), np.zeros(1, np.float32), f"cannot allocate {size} bytes"
        self._moves.append(self._called(what, self._cl.enqueue_fill_buffer, self._queue, found, zero, 0, found.size))
        return found

    def upload(self, values: npt.NDArray[np.float32]) -> Any:
        """Return the values' memory on the device, in place where it is the host's; see `DispatchingProcessor`."""
        shared = bool(self.device.host_unified_memory) and values.ctypes.data % _SHARED_ALIGNMENT == 0
        return self._constant(values, in_place=shared)

    def reserve(self, size: int) -> Any:
        return self._buffer(f"cannot allocate {size} bytes", self._cl.mem_flags.READ_WRITE, max(size, ALIGNMENT))

    def _buffer(self, problem: str, *given: Any, **values: Any) -> Any:
        return self._called(problem, self._cl.Buffer, self._context, *given, **values)

    def fill(self, memory: Any, values: npt.NDArray[Any]) -> None:
        self._called("cannot upload weights", self._cl.enqueue_copy, self._queue, memory, values, is_blocking=True)

    def part_of(self, memory: Any, offset: int, size: int) -> Any:
        return memory.get_sub_region(offset, size)

    def enqueue_write(self, memory: Any, offset: int, values: npt.NDArray[Any]) -> None:
        self._copy(memory, values, dst_offset=offset)

    def enqueue_read(self, memory: Any, offset: int, values: npt.NDArray[Any]) -> None:
        self._copy(values, memory, src_offset=offset)

    def _copy(self, target: Any, source: Any, **place: Any) -> None:
        """Have the queue copy values, and keep its event until the run has finished."""
        given, what = (self._queue, target, source), "cannot move activations"
        self._moves.append(self._called(what, self._cl.enqueue_copy, *given, is_blocking=False, **place))

    # Memory

    def allocate(self, size: int) -> Buffer:
        limit = self._capabilities.memory_bytes
        if size > limit:
            what = f"{size} bytes are more than this device allocates at once ({limit})"
            raise self._error(what, "run a smaller model, or a device with more memory")
        made = self._called(f"cannot allocate {size} bytes", self._allocated, max(size, ALIGNMENT))
        made.data[:] = 0
        found = Buffer(made.data[:size], made.data.ctypes.data)
        self._memories[found.address] = made
        self.enqueue_in(found, (0, size, 1, size))
        try:
            self._called(f"cannot fill {size} bytes", self._queue.finish)
        except DeviceError:
            self.free(found)
            raise
        return found

    def _allocated(self, size: int) -> _Allocation:
        cl = self._cl
        if self._capabilities.sharing == Sharing.mirrored:
            return _Allocation(allocate(size).data, cl.Buffer(self._context, cl.mem_flags.READ_WRITE, size))
        flags = cl.svm_mem_flags.READ_WRITE | cl.svm_mem_flags.SVM_FINE_GRAIN_BUFFER
        if self._capabilities.atomics:
            flags |= cl.svm_mem_flags.SVM_ATOMICS
        data = cl.svm_empty(self._context, flags, size, np.uint8, alignment=ALIGNMENT)
        return _Allocation(data, cl.SVM(data))

    def free(self, buffer: Buffer) -> None:
        self._memories.pop(buffer.address, None)

    def _argument(self, buffer: Buffer) -> Any:
        if buffer.address not in self._memories:
            raise self._not_allocated("activations lie", "give Executable an arena from OpenclProcessor.allocate")
        return self._memories[buffer.address].argument

    def _constant(self, values: Any, *, in_place: bool = False) -> Any:
        flags = self._cl.mem_flags
        how = flags.USE_HOST_PTR if in_place else flags.COPY_HOST_PTR
        return self._buffer(f"cannot allocate {values.nbytes} bytes of weights", flags.READ_ONLY | how, hostbuf=values)

    def _workspace_of(self, elements: int) -> Any:
        """Return the memory that launches of one step use between them: one for all steps, which run one after the other."""
        size = FLOAT_BYTES * max(1, elements)
        if self._workspace is None or self._workspace.size < size:
            what = f"cannot allocate {size} bytes between the launches of a step"
            self._workspace = self._buffer(what, self._cl.mem_flags.READ_WRITE, size)
        return self._workspace

    def _move(self, buffer: Buffer, region: Region, *, inwards: bool) -> None:
        if self._capabilities.sharing == Sharing.fine or not region[1]:
            return
        at, width, rows, pitch = region
        device, host = self._argument(buffer), buffer.data[at : at + (rows - 1) * pitch + width]
        pair = (device, host) if inwards else (host, device)
        shape: dict[str, Any] = {"dst_offset" if inwards else "src_offset": at}
        if rows > 1:
            shape = {
                "buffer_origin": (at % pitch, at // pitch, 0), "host_origin": (0, 0, 0), "region": (width, rows, 1),
                "buffer_pitches": (pitch, 0), "host_pitches": (pitch, 0),
            }  # fmt: skip
        self._copy(*pair, **shape)

    # Running

    def enqueue(self, kernel: Kernel) -> None:
        before = time.perf_counter_ns()
        events = tuple(map(self._launch, self.commands(kernel)))
        if self._profiling:
            self._timed.append((before, events))

    def spans(self) -> Sequence[tuple[int, int]]:
        """Return when kernels ran by the host's clock, if the processor was made with `profiling`.

        The device notes by its own clock when a launch was queued; the host's is ahead of it by at least what it showed just
        before. Clocks drift apart, so each run has its own difference.
        """
        timed, self._timed = self._timed, []
        found: list[tuple[int, int]] = []
        try:
            ahead = max((before - int(events[0].profile.queued) for before, events in timed if events), default=0)
            for _, events in timed:
                last = found[-1][1] if found else 0  # what launches nothing takes no time
                times = [int(moment) + ahead for e in events for moment in (e.profile.start, e.profile.end)]
                found.append((times[0], times[-1]) if times else (last, last))
        except self._cl.Error as error:
            raise self._failed("the device does not tell when kernels ran", error) from error
        return found

    def _launch(self, command: _Command) -> Any:
        given = (self._queue, command.kernel, command.global_size, command.local_size)
        return self._called("cannot run a kernel", self._cl.enqueue_nd_range_kernel, *given)

    def flush(self) -> None:
        self._called("the device fails", self._queue.flush)

    def finish(self, limit_seconds: float = LIMIT_SECONDS) -> None:
        assert self._waiter is not None  # noqa: S101  not closed
        try:
            done = self._waiter.run(self._queue.finish, limit_seconds)
        except self._cl.Error as error:
            self._ended_waits()  # of this run: the next one is not to be told of it
            raise self._failed("the device fails", error) from error
        if not done:
            what = f"the device has not finished within {limit_seconds:g} s"
            raise self._error(what, "run again; if it stays so, install another version of the driver")
        self._moves.clear()
        if self._ended_waits():
            what = f"a kernel has waited for the host longer than {LIMIT_SECONDS:g} s"
            raise self._error(what, "run again with less other work on the machine")

    # Counters in fine-grained memory

    def enqueue_wait(self, counter_address: int, value: int) -> None:
        """Have the queue wait until a counter, an int32 in memory from `allocate`, has reached a value.

        After about `LIMIT_SECONDS` it gives up, as all waits after it do; `finish` tells.
        """
        self._launch(self._counter_command("wait_for", (counter_address, value)))

    def enqueue_signal(self, counter_address: int, value: int) -> None:
        self._launch(self._counter_command("set_counter", (counter_address, value)))

    def enqueue_hand_over(self, own_address: int, own_value: int, other_address: int, other_value: int) -> None:
        self._launch(self._counter_command("hand_over", (own_address, own_value), (other_address, other_value)))

    def give_up(self) -> None:
        if self._control is not None:
            self._control.tensor(0, (1,), "int32")[0] = 1

    def _counter_command(self, name: str, *counters: tuple[int, int]) -> _Command:
        """Return a kernel of `poll.cl`; counters are addresses and values."""
        key = (name, *counters)
        if key in self._counter_kernels:
            return self._counter_kernels[key]
        if self._control is None:
            what = "the device has no fine-grained shared memory with atomics, so kernels cannot wait for the host"
            raise self._error(what, "have the host wait for events instead")
        cl = self._cl
        kernel = self._programs.kernel(program_source("poll", ()), name)
        given: list[Any] = [a for address, value in counters for a in (cl.SVM(self._word(address)), np.int32(value))]
        if name != "set_counter":
            given += [np.int64(self._looks), cl.SVM(self._control.data[:FLOAT_BYTES])]
        kernel.set_args(*given)
        command = _Command(kernel, (1,), (1,), tuple(given))
        if len(self._counter_kernels) >= _MOST_COUNTER_KERNELS:
            self._counter_kernels.clear()
        self._counter_kernels[key] = command
        return command

    def _word(self, address: int) -> Any:
        for begin, memory in self._memories.items():
            offset = address - begin
            if 0 <= offset <= len(memory.data) - FLOAT_BYTES and offset % FLOAT_BYTES == 0:
                return memory.data[offset : offset + FLOAT_BYTES]
        raise self._not_allocated("a counter lies", "place counters in a buffer from OpenclProcessor.allocate")

    def _calibrate(self) -> None:
        """Find how many looks a waiting kernel takes in its time, on a counter that nothing moves."""
        self._control = self.allocate(2 * ALIGNMENT)
        never = self._control.address + ALIGNMENT
        self.enqueue_wait(never, 0)
        self.enqueue_signal(never, 0)
        self.finish()  # builds them
        self._counter_kernels.clear()
        self._looks = _CALIBRATION_LOOKS
        seconds = math.inf
        for _ in range(_CALIBRATIONS):  # the least: other work only makes them longer
            start = time.perf_counter()
            self.enqueue_wait(never, 1)
            self._queue.finish()
            seconds = min(seconds, max(time.perf_counter() - start, 1 / _NS_PER_S))
        self._control.data[:] = 0
        self._counter_kernels.clear()
        self._looks = min(_MOST_LOOKS, max(_CALIBRATION_LOOKS, int(_CALIBRATION_LOOKS * LIMIT_SECONDS / seconds)))

    def _ended_waits(self) -> bool:
        """Tell whether waits of kernels were given up since this was asked last."""
        if self._control is None:
            return False
        flag = self._control.tensor(0, (1,), "int32")
        ended, flag[0] = bool(flag[0]), 0
        return ended

    def close(self) -> None:
        if self._waiter is not None:
            self.give_up()
            with contextlib.suppress(self._cl.Error):  # it was said where it mattered
                self._waiter.run(self._queue.finish, LIMIT_SECONDS)
            self._waiter.close()
            self._waiter = None
        self._counter_kernels.clear()
        self._memories.clear()

    def _called(self, problem: str, function: Callable[..., Any], *given: Any, **named: Any) -> Any:
        """Return what a function of the driver returns; where it reports an error, tell what that is a problem of."""
        try:
            return function(*given, **named)
        except (self._cl.Error, MemoryError) as error:
            raise self._failed(problem, error) from error

    def _failed(self, what: str, error: BaseException) -> DeviceError:
        code = self._cl.status_code.to_string(error.code, "") if isinstance(error, self._cl.Error) else ""
        return self._error(f"OpenCL {what}: {reason(error)}", _NEXT_STEPS.get(code, _SMALLER))


class _Waiter:
    """A waiter is a thread that waits in the driver, so that its caller can stop waiting."""

    def __init__(self) -> None:
        self._asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._left = 0
        threading.Thread(target=self._serve, name="edgeplan-opencl", daemon=True).start()

    def run(self, call: Callable[[], object], limit_seconds: float) -> bool:
        """Tell whether a call returned in time. What it raises is raised here."""
        self._asked.put(call)
        self._left += 1
        end = time.monotonic() + limit_seconds
        answer: BaseException | None = None
        while self._left:  # of calls that were too late, too
            try:
                answer = self._answers.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                return False
            self._left -= 1
        if answer is not None:
            raise answer
        return True

    def close(self) -> None:
        """End the thread once it is done."""
        self._asked.put(None)

    def _serve(self) -> None:
        while (call := self._asked.get()) is not None:
            try:
                call()
            except BaseException as error:  # noqa: BLE001  handed to the caller
                self._answers.put(error)
            else:
                self._answers.put(None)


def device_numbers(device: Any, block: int, options: OpenclOptions) -> DeviceNumbers:
    """Return the numbers that the dispatcher asks of a device of pyopencl.

    Vectors are as wide as the options say; else as the device computes with at once and its driver can compile, 4 floats where
    it has no vectors.
    """
    narrower = [most for driver, most in _NARROWER.items() if driver in device_versions(device)]
    most = min(max(int(device.native_vector_width_float), VECTORS[0]), block, *narrower)
    kind = GpuNumbers if device.type & pyopencl().device_type.GPU else DeviceNumbers
    return kind(
        int(device.max_compute_units),
        options.vector or max(size for size in VECTORS if size <= most),
        block,
        int(device.max_work_group_size),
        int(device.local_mem_size),
        int(device.max_constant_buffer_size),
    )


def _capabilities(device: Any, options: OpenclOptions, *, late: bool) -> Capabilities:
    cl = pyopencl()
    try:
        svm = int(device.svm_capabilities)
    except cl.Error:  # before OpenCL 2.0
        svm = 0
    fine = bool(svm & cl.device_svm_capabilities.FINE_GRAIN_BUFFER) and options.sharing == Sharing.fine
    return Capabilities(
        name=str(device.name).strip(),
        version=device_versions(device),
        sharing=Sharing.fine if fine else Sharing.mirrored,
        atomics=fine and bool(svm & cl.device_svm_capabilities.ATOMICS) and not late,
        cores=(options.cores or started_cores()) if is_pocl(device) else (),
        units=int(device.max_compute_units),
        memory_bytes=int(device.max_mem_alloc_size),
    )
