"""Running a streamed program: one arena, weights loaded into it while steps run. Nothing heavy is imported, to save memory.

`StreamSession(program, schedule, reader)`: the schedule can be changed between two inferences.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Self, TypeVar

from edgeplan.errors import FormatError, InputError
from edgeplan.runtime import kernels
from edgeplan.runtime.creation import ROWS_KERNEL, Created, Creator, KernelCall
from edgeplan.runtime.dnnl import Dnnl, Handle
from edgeplan.runtime.signatures import ExecArg
from edgeplan.runtime.streaming.library_pages import LibraryPages
from edgeplan.runtime.streaming.program import AGAIN, WEIGHTS, Border, Operand, StreamProgram
from edgeplan.runtime.streaming.reader import Load, Loader, WeightsFile, pin
from edgeplan.runtime.streaming.rows import Rows

Taken = TypeVar("Taken")
_FLOAT_BYTES = 4
_COPIED_BYTES = 64 << 10  # of inputs at a time
_DROP_EVERY = 8  # kernels made
_LIBC = ctypes.CDLL(None)
_POPULATE_WRITE, _TOUCHED_BYTES = 23, 8 << 20  # of madvise(2), Linux 5.14
_GETPPID: Any = _LIBC.getppid  # a call that takes nothing and lets other threads have the interpreter
_NAN = b"\x00\x00\xc0\x7f"  # a quiet one, little-endian


@dataclass(frozen=True, slots=True)
class Schedule:
    """Where buffers and weights lie, and when weights are loaded: the part of a plan document that running needs.

    Attributes:
        back_to_back: whether inferences follow each other; else memory is filled before each.
        arena_bytes: of the arena.
        buffer_offset: address of each buffer.
        weight_offset, after, again: of each step; see `planning.memory.document`.
    """

    back_to_back: bool
    arena_bytes: int
    buffer_offset: Sequence[int]
    weight_offset: Sequence[int]
    after: Sequence[int]
    again: Sequence[int]

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Schedule:
        """The schedule of a plan document."""
        return cls(
            plan["mode"] == "back-to-back",
            plan["arena_bytes"],
            plan["tensor_offset"],
            plan["weight_offset"],
            plan["after"],
            plan["again"],
        )

    def loads(self, program: StreamProgram) -> tuple[Load, ...]:
        """The loads of one inference."""
        rows = zip(program.steps, self.weight_offset, self.after, self.again, strict=True)
        return tuple(
            Load(k, step.weights_at, step.weight_bytes, offset, after, again)
            for k, (step, offset, after, again) in enumerate(rows)
            if step.weight_bytes
        )


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of the library, ready to be made, with the memories that its arguments point to."""

    function: Callable[..., int]
    primitive: int
    count: int
    arguments: ctypes.Array[Any]


class StreamSession:
    """A program that can be run. What several threads ask of it is done one after the other.

    Args:
        dnnl: the library.
        program: what to run.
        schedule: where and when.
        file: of the weights.
        lanes: reads in flight.
        processors: that reading threads may use; empty: any.
        debug: whether memory that becomes free is filled with NaN, so that using it shows.
        gives_back: whether memory that becomes free goes back to the system, as an allocator does with large blocks: what
            static memory saves.

    Attributes:
        times: of the last inference, nanoseconds: begin and end of each step (`time.perf_counter_ns`).
        slowed: nanoseconds by which each step is prolonged, awake: a slower processor is stood for so; empty: none.

    Raises:
        FormatError: the program is for another library, or the schedule for another program.
    """

    def __init__(
        self,
        dnnl: Dnnl,
        program: StreamProgram,
        schedule: Schedule,
        file: WeightsFile,
        *,
        lanes: int = 2,
        processors: Sequence[int] = (),
        debug: bool = False,
        gives_back: bool = False,
    ) -> None:
        here = (dnnl.info.version, dnnl.info.commit, dnnl.info.isa)
        if program.library != here:
            what = f"the plan is for oneDNN {' '.join(program.library)}, this is {' '.join(here)}"
            raise FormatError(what, where=program.model, next_step=AGAIN)
        self.dnnl, self.program, self._file = dnnl, program, file
        self._lock = threading.Lock()  # of the arena: its size and addresses change between two inferences alone
        self._free = self._poison if debug else self._give_back if gives_back else None
        self._stream, self._library = dnnl.stream(), LibraryPages(dnnl.info.path)
        self._addresses: list[tuple[ctypes.Array[ctypes.c_int64], tuple[Operand, ...], int]] = []
        self._blocks: list[object] = []
        self._memories: dict[tuple[int, int, int, int], Handle] = {}
        self._loaded_before = _counts(program)
        with dnnl.without_primitive_cache():  # equal steps share their kernel anyway
            made = _made(dnnl, program, self._library)
        self._calls = [self._bound(made, k) for k in range(len(program.steps))]
        calls = [call for created in made for call in created.calls if not isinstance(call, KernelCall)]
        self._primitives = [call.primitive for call in calls if call.primitive is not None]
        for primitive in self._primitives:
            primitive.forget()
        del made
        self._loader, self._processors = Loader(file, lanes, processors), processors
        self._touching: threading.Thread | None = None
        self.times: list[int] = [0] * (2 * len(program.steps))
        self.slowed: Sequence[int] = ()
        self._executed = False  # every kernel has run once
        self._clean = False  # whether the next inference may go on where the one before ended
        self._arena: mmap.mmap | None = None
        self.apply(schedule)

    def _bound(self, made: Sequence[Created], k: int) -> tuple[_Call, ...]:
        """The calls of a step; its memories have no address yet."""
        step = self.program.steps[k]
        created = made[step.kernel]
        wanted = [len(call.places if isinstance(call, KernelCall) else call.arguments) for call in created.calls]
        if wanted != [len(operands) for operands in step.calls]:
            raise FormatError(f"the program does not fit: step {step.name!r}", where=self.program.model, next_step=AGAIN)
        calls = []
        for call, operands in zip(created.calls, step.calls, strict=True):
            if isinstance(call, KernelCall):
                calls.append(self._compiled(call, operands, k))
                continue
            given = []
            for argument, operand in zip(call.arguments, operands, strict=True):
                owner = k if operand.buffer == WEIGHTS else -1
                key = (argument.descriptor, operand.buffer, operand.offset, owner)
                if key not in self._memories:
                    self._memories[key] = self.dnnl.memory(argument.descriptor, 0)
                given.append(ExecArg(argument.number, self._memories[key].value))
            assert call.primitive is not None  # noqa: S101  created to be run
            calls.append(_Call(self.dnnl.execute, call.primitive.value, len(given), (ExecArg * len(given))(*given)))
        return tuple(calls)

    def _compiled(self, call: KernelCall, operands: Sequence[Operand], k: int) -> _Call:
        """A call of a compiled kernel, or of what reads rows: it takes addresses, and a block in place of a primitive."""
        addresses = (ctypes.c_int64 * len(operands))()
        self._addresses.append((addresses, tuple(operands), k))
        if call.kernel.startswith(ROWS_KERNEL):
            rows = Rows(self._file, call, self.program.weights_bytes, self.program.model)
            return _Call(rows, 0, len(operands), addresses)
        block = (ctypes.c_int64 * len(call.block))(*call.block)
        self._blocks.append(block)
        return _Call(kernels.function(call.kernel), ctypes.addressof(block), len(operands), addresses)

    def _place(self, buffer: int, step: int) -> int:
        return self.schedule.weight_offset[step] if buffer == WEIGHTS else self.schedule.buffer_offset[buffer]

    def apply(self, schedule: Schedule) -> None:
        """Run by another schedule from the next inference on: one that is running ends before. Weights are loaded anew.

        Raises:
            FormatError: it is for another program.
        """
        program = self.program
        if (len(schedule.weight_offset), len(schedule.buffer_offset)) != (len(program.steps), len(program.buffers)):
            raise FormatError("the plan does not fit the program", where=program.model, next_step=AGAIN)
        with self._lock:
            self._apply(schedule)

    def _apply(self, schedule: Schedule) -> None:
        present = self._staying(schedule) if self._arena is not None and self._clean and self._inference else frozenset()
        self._clean = False  # should something fail here, the next run begins anew by the schedule before
        self._loader.pause()
        self.wait_touched()
        size = max(mmap.PAGESIZE, schedule.arena_bytes)
        if self._arena is None:
            self._arena = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            self._arena.resize(size)  # pages that are in memory stay there: to get others takes time
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._arena.madvise(mmap.MADV_HUGEPAGE)
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(self._arena))
        self._touching = _touching(self._base, size, self._processors)
        self.schedule = schedule
        point = self.dnnl.function("dnnl_memory_set_data_handle", brief=True)
        for (_, buffer, offset, owner), memory in self._memories.items():
            place = self._base + self._place(buffer, owner) + offset
            self.dnnl.check(point(memory.value, place), "dnnl_memory_set_data_handle")
        for addresses, operands, step in self._addresses:
            addresses[:] = [self._base + self._place(operand.buffer, step) + operand.offset for operand in operands]
        self._freed = _freed(self.program, schedule) if self._free else {}
        self._loads = schedule.loads(self.program)
        self._restart(present)

    def _staying(self, schedule: Schedule) -> frozenset[int]:
        """Steps whose weights stay by the present schedule and by another one, at the same address: they are in memory."""
        before = self.schedule
        return frozenset(
            k
            for k, (offset, again) in enumerate(zip(schedule.weight_offset, schedule.again, strict=True))
            if again == k == before.again[k] and offset == before.weight_offset[k] >= 0
        )

    def _restart(self, present: frozenset[int] = frozenset()) -> None:
        assert self._arena is not None  # noqa: S101  made above
        self._loader.pause()
        self._inference, self._clean = 0, True
        self._loader.start(self._loads, len(self.program.steps), memoryview(self._arena), present=present)

    @property
    def bytes_read(self) -> int:
        """Bytes of weights read since the schedule was applied."""
        return self._loader.bytes_read

    def fill(self) -> None:
        """Load what memory has room for before the next inference begins.

        Raises:
            ModelError: the weights cannot be read; the next call begins anew.
        """
        with self._lock:
            if not self._clean:
                self._restart()
            self._clean = False
            self._loader.prepare(self._inference + 1)
            self._loader.wait_filled()
            self.wait_touched()
            self._clean = True

    def wait_touched(self) -> None:
        """Wait until the whole arena is in memory."""
        if self._touching is not None:
            self._touching.join()
            self._touching = None

    def expect(self, inferences: int) -> None:
        """So many more inferences follow: weights may be loaded for them while one runs."""
        self._loader.prepare(self._inference + inferences)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, bytes]:
        """One inference; the outputs' bytes, row-major, by name. See `run_taking`."""
        return self.run_taking(inputs, lambda _name, view: bytes(view))

    def run_taking(self, inputs: Mapping[str, Any], take: Callable[[str, memoryview], Taken]) -> dict[str, Taken]:
        """Run one inference and take its outputs where they lie.

        Args:
            inputs: buffers of values of the model's types, row-major, by name.
            take: called with the name of each output and its bytes, row-major, where they lie: memory is used again afterwards;
                it may ask nothing of the session.

        Returns:
            What it made of them, by name.

        Raises:
            InputError: an input is missing, or of another size.
            ModelError: the weights cannot be read; the next run begins anew.
            DeviceError: the library reports a failure.
        """
        found = self._views(inputs)
        with self._lock:
            return self._run_taking(found, take)

    def _run_taking(
        self, found: Sequence[tuple[Border, memoryview]], take: Callable[[str, memoryview], Taken]
    ) -> dict[str, Taken]:
        if not self._clean:
            self._restart()
        self._clean = False
        for border, value in found:
            self._write(border, value)
        self._execute()
        outputs = {border.name: self._read(border, take) for border in self.program.outputs}
        self._inference += 1
        self._loader.ended(self._inference * len(self.program.steps))
        self._file.require_unchanged()
        self._clean = True
        return outputs

    def _execute(self) -> None:
        """Execute all steps; the last one has not ended before its outputs were read."""
        loader, counts, times, steps = self._loader, self._loaded_before, self.times, len(self._calls)
        self.dnnl.set_threads(self.program.threads)
        stream = self._stream.value
        first, loads = self._inference * steps, self._inference * len(self._loads)
        loader.prepare(self._inference + 1)
        for k, calls in enumerate(self._calls):
            if counts[k]:
                loader.wait_loaded(loads + counts[k])
            times[2 * k] = perf_counter_ns()
            for call in calls:
                if status := call.function(call.primitive, stream, call.count, call.arguments):
                    self.dnnl.check_execution(status)
            if self.slowed:
                _stay_awake(perf_counter_ns() + self.slowed[k])
            times[2 * k + 1] = perf_counter_ns()
            if not self._executed:
                self._library.drop()  # what the first execution alone needs
            if self._free:
                self._free(k)
            if k + 1 < steps:
                loader.ended(first + k + 1)
        self._executed = True

    def _poison(self, k: int) -> None:
        for at, size in self._freed.get(k, ()):
            ctypes.memmove(self._base + at, _NAN * (size // _FLOAT_BYTES), size // _FLOAT_BYTES * _FLOAT_BYTES)

    def _give_back(self, k: int) -> None:
        assert self._arena is not None  # noqa: S101  made with the session
        for at, size in self._freed.get(k, ()):
            begin, end = -(-at // mmap.PAGESIZE) * mmap.PAGESIZE, (at + size) // mmap.PAGESIZE * mmap.PAGESIZE
            if begin < end:
                self._arena.madvise(mmap.MADV_DONTNEED, begin, end - begin)

    def _views(self, inputs: Mapping[str, Any]) -> list[tuple[Border, memoryview]]:
        found = []
        for border in self.program.inputs:
            expected = f"correct the input: expected {border.dtype}{list(border.shape)}"
            if border.name not in inputs:
                raise InputError(f"input {border.name!r} is missing", where=self.program.model, next_step=expected)
            try:
                view = memoryview(inputs[border.name]).cast("B")
            except (TypeError, ValueError) as error:
                what = f"input {border.name!r} is no row-major buffer: {error}"
                raise InputError(what, where=self.program.model, next_step=expected) from error
            if view.nbytes != border.size:
                what = f"input {border.name!r} has {view.nbytes} bytes"
                raise InputError(what, where=self.program.model, next_step=expected)
            found.append((border, view))
        return found

    def _address(self, operand: Operand) -> int:
        return self.schedule.buffer_offset[operand.buffer] + operand.offset

    def _write(self, border: Border, value: memoryview) -> None:
        assert self._arena is not None  # noqa: S101  made with the session
        at, of = self._address(border.operand), value.obj
        for first in range(0, value.nbytes, _COPIED_BYTES):
            part = value[first : first + _COPIED_BYTES]
            self._arena[at + first : at + first + part.nbytes] = part
            if isinstance(of, mmap.mmap):  # pages of a file: they are not to count beside the arena
                of.madvise(mmap.MADV_DONTNEED, first, part.nbytes)

    def _read(self, border: Border, take: Callable[[str, memoryview], Taken]) -> Taken:
        assert self._arena is not None  # noqa: S101  made with the session
        at = self._address(border.operand)
        with memoryview(self._arena) as arena, arena[at : at + border.size] as view:
            return take(border.name, view)

    @property
    def streamed_bytes(self) -> int:
        """Bytes of all weights that are loaded."""
        return sum(load.size for load in self._loads)

    def stream_ms(self) -> float:
        """Milliseconds to read all weights while nothing else runs, each to its place; the next run begins anew."""
        with self._lock:
            assert self._arena is not None  # noqa: S101  made with the session
            loads = [Load(k, load.at, load.size, load.address, -1, k) for k, load in enumerate(self._loads)]
            self._loader.pause()
            begin = perf_counter_ns()
            self._loader.start(loads, len(self.program.steps), memoryview(self._arena))
            self._loader.wait_filled()
            took = (perf_counter_ns() - begin) / 1e6
            self._clean = False
        return took

    def read_ms(self, reads: int = 33) -> float:
        """Milliseconds of a small load that nothing else is read beside, from the end of a step on; the next run begins anew.

        Args:
            reads: whose median it is; pages from all over the file.
        """
        pages = self.program.weights_bytes // mmap.PAGESIZE
        if not pages:
            return 0.0
        with self._lock:
            assert self._arena is not None  # noqa: S101  made with the session
            places = (k * pages // reads % pages * mmap.PAGESIZE for k in range(reads))
            loads = [Load(k, at, mmap.PAGESIZE, 0, k - 1, -1) for k, at in enumerate(places)]
            self._loader.pause()
            self._clean = False
            self._loader.start(loads, reads + 1, memoryview(self._arena))
            took = []
            for k in range(reads):
                begin = perf_counter_ns()
                self._loader.ended(k)
                self._loader.wait_loaded(k + 1)
                took.append((perf_counter_ns() - begin) / 1e6)
        return sorted(took[1:])[len(took) // 2 - 1] if reads > 1 else took[0]

    def close(self) -> None:
        """Stop reading and free the memory."""
        with self._lock:
            self._loader.pause()
            self._loader.close()
            self.wait_touched()
            self._file.close()
            if self._arena is not None:
                self._arena.close()
                self._arena = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _touching(address: int, size: int, processors: Sequence[int]) -> threading.Thread:
    """A thread that has the system give memory to an arena, ahead of the reads into it."""

    def touch() -> None:
        pin(processors)
        for at in range(0, size, _TOUCHED_BYTES):
            if _LIBC.madvise(ctypes.c_void_p(address + at), ctypes.c_size_t(min(_TOUCHED_BYTES, size - at)), _POPULATE_WRITE):
                return  # an older system gives memory where it is used first

    thread = threading.Thread(target=touch, name="touching", daemon=True)
    thread.start()
    return thread


def _stay_awake(until: int) -> None:
    """Keep the processor until then, and let reading threads have the interpreter."""
    while perf_counter_ns() < until:
        _GETPPID()


def _made(dnnl: Dnnl, program: StreamProgram, library: LibraryPages) -> tuple[Created, ...]:
    """The kernels; what only their making needs of the library is dropped again.

    Every tensor has an offset of its own here, so that none is taken for a view of another.
    """
    offsets = {tensor: _FLOAT_BYTES * k for k, tensor in enumerate(program.layouts)}
    dnnl.set_threads(program.threads)
    creator = Creator(dnnl, program.shapes, program.layouts, offsets, program.types)
    made: list[Created] = []
    for kernel in program.kernels:
        if len(made) % _DROP_EVERY == 0:
            library.drop()
        made.append(creator.create(kernel.step, kernel.implementation))
    library.drop()
    return tuple(made)


def _counts(program: StreamProgram) -> list[int]:
    """For each step with weights, how many loads of an inference are complete when it may run; 0 without weights."""
    counts, loads = [], 0
    for step in program.steps:
        loads += step.weight_bytes > 0
        counts.append(loads if step.weight_bytes else 0)
    return counts


def _freed(program: StreamProgram, schedule: Schedule) -> dict[int, list[tuple[int, int]]]:
    """Ranges of memory that become free with each step: what nothing needs any more."""
    found: dict[int, list[tuple[int, int]]] = {}
    steps = len(program.steps)
    for buffer, offset in zip(program.buffers, schedule.buffer_offset, strict=True):
        if buffer.upper < steps:  # outputs are still to be read
            found.setdefault(buffer.upper - 1, []).append((offset, buffer.size))
    for k, step in enumerate(program.steps):
        if step.weight_bytes and schedule.again[k] != k:
            found.setdefault(k, []).append((schedule.weight_offset[k], step.weight_bytes))
    return found
