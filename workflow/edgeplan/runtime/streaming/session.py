"""Running a streamed program: one arena, weights loaded into it while steps run. Nothing heavy is imported, to save memory.

`StreamSession(program, schedule, reader)`: the schedule can be changed between two inferences.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import msgspec
from msgspec.structs import replace

from edgeplan.errors import FormatError, InputError
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.streaming.calls import BoundCalls
from edgeplan.runtime.streaming.halves import HALF_BYTES, VALUE_BYTES, Stored
from edgeplan.runtime.streaming.library_pages import LibraryPages
from edgeplan.runtime.streaming.program import AGAIN, Border, Buffer, Operand, ProgramColumns, StreamProgram
from edgeplan.runtime.streaming.reader import Load, Loader, WeightsFile, pin

Taken = TypeVar("Taken")
#: Inferences until all code has run once: the first one runs step by step, the second one as all that follow.
READY_INFERENCES = 2
_FLOAT_BYTES = 4
_COPIED_BYTES = 64 << 10  # of inputs at a time
_LIBC = ctypes.CDLL(None)
_POPULATE_WRITE, _TOUCHED_BYTES = 23, 8 << 20  # of madvise(2), Linux 5.14
_GETPPID: Any = _LIBC.getppid  # a call that takes nothing and lets other threads have the interpreter
_NAN = b"\x00\x00\xc0\x7f"  # a quiet one, little-endian


class Ended(Generic[Taken]):
    """Takes outputs, and notes when they were there: what is made of them is no part of an inference's time.

    Args:
        take: see `StreamSession.run_taking`.

    Attributes:
        at_ns: when an inference had ended (`time.perf_counter_ns`).
    """

    def __init__(self, take: Callable[[str, memoryview], Taken]) -> None:
        self._take, self.at_ns = take, 0

    def __call__(self, name: str, view: memoryview) -> Taken:
        """Take an output, and note the time."""
        self.at_ns = self.at_ns or perf_counter_ns()
        return self._take(name, view)


class Schedule(msgspec.Struct, frozen=True):
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

    def read_bytes(self, weight_bytes: Sequence[int]) -> int:
        """The bytes of weights, as memory holds them, that are read in each inference: those that do not stay."""
        return sum(size for k, size in enumerate(weight_bytes) if self.weight_offset[k] >= 0 and self.again[k] != k)

    def loads(self, steps: ProgramColumns, halves: Stored) -> tuple[Load, ...]:
        """The loads of one inference, whose halves are of a kind."""
        rows = zip(steps.weights_at, steps.stored_bytes, self.weight_offset, self.after, self.again, strict=True)
        stored = zip(steps.stored_bytes, steps.weight_bytes, strict=True)
        return tuple(
            Load(k, *row, halved=size < whole, kind=halves)
            for k, (row, (size, whole)) in enumerate(zip(rows, stored, strict=True))
            if size
        )


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
        library: pages of the library, of which those are in memory that are needed; None: they come as they are needed.

    Attributes:
        times: of the last inference, nanoseconds: begin and end of each step (`time.perf_counter_ns`).
        slowed: nanoseconds by which each step is prolonged, awake: a slower processor is stood for so; empty: none.
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
        library: LibraryPages | None = None,
    ) -> None:
        here = (dnnl.info.version, dnnl.info.commit, dnnl.info.isa)
        if program.library != here:
            what = f"the plan is for oneDNN {' '.join(program.library)}, this is {' '.join(here)}"
            raise FormatError(what, where=program.model, next_step=AGAIN)
        self.dnnl, self.program, self._file = dnnl, program, file
        self._lock = threading.Lock()  # of the arena: its size and addresses change between two inferences alone
        self._free = self._poison if debug else self._give_back if gives_back else None
        self._library = library or LibraryPages(dnnl.info.path)
        self._library.begin()
        with dnnl.without_primitive_cache():  # equal steps share their kernel anyway
            self._calls = BoundCalls(dnnl, program, dnnl.stream(), file=file, library=self._library)
        self._library.made()
        self._columns = self._calls.columns
        _require_sizes(program, self._columns)
        self._loaded_before = _counts(self._columns.weight_bytes)
        self.times = self._calls.loop.times
        self._processors = processors
        self._loader = Loader(file, lanes, processors)
        self._touching: threading.Thread | None = None
        self.slowed: Sequence[int] = ()
        self._began = 0  # the last inference's steps, ns
        self._executed = False  # every kernel has run once
        self._settling = READY_INFERENCES
        self._unsettled = False  # whether pages wait to be given up
        self._clean = False  # whether the next inference may go on where the one before ended
        self._arena: mmap.mmap | None = None
        self.apply(schedule)

    def apply(self, schedule: Schedule) -> None:
        """Run by another schedule from the next inference on: one that is running ends before. Weights are loaded anew."""
        program = self.program
        if (len(schedule.weight_offset), len(schedule.buffer_offset)) != (len(program.step_names), len(program.buffer_names)):
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
        base = self._base
        self._calls.place([base + at for at in schedule.buffer_offset], [base + at for at in schedule.weight_offset])
        self._freed = _freed(self.program.buffers, self._columns.weight_bytes, schedule) if self._free else {}
        self._loads = schedule.loads(self._columns, self.program.halves)
        self._alone = self._stops()
        self._restart(present)

    def _stops(self) -> bytearray:
        """Mark the steps that do not follow the one before at once: a load waits for that one, or Python runs one of them."""
        found = bytearray(len(self._loaded_before) + 1)
        waited_for = {load.after for load in self._loads} | {load.again for load in self._loads}
        for k in (*waited_for, *self._calls.rows):
            found[k + 1] = 1
        for k in self._calls.rows:
            found[k] = 1
        return found

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
        self._loader.start(self._loads, len(self._loaded_before), memoryview(self._arena), present=present)

    @property
    def bytes_read(self) -> int:
        """Bytes of weights read since the schedule was applied."""
        return self._loader.bytes_read

    def fill(self) -> None:
        """Load what memory has room for before the next inference begins."""
        with self._lock:
            if not self._clean:
                self._restart()
            self._clean = False
            self._loader.prepare(self._inference + 1)
            self._loader.wait_filled()
            self.wait_touched()
            self._clean = True

    @property
    def waited_ns(self) -> int:
        """Nanoseconds of the last inference in which no step ran: weights were waited for, or had to be asked for."""
        times = self.times
        if not times:
            return 0
        return times[-1] - self._began - sum(times[k + 1] - times[k] for k in range(0, len(times), 2))

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
        """Run one inference, and take its outputs where they lie.

        Args:
            inputs: buffers of values of the model's types, row-major, by name.
            take: called with the name of each output and its bytes, row-major, where they lie: memory is used again afterwards;
                it may ask nothing of the session.

        Returns:
            What it made of them, by name.
        """
        with self._lock:
            return self._run_taking(inputs, take)

    def _run_taking(self, inputs: Mapping[str, Any], take: Callable[[str, memoryview], Taken]) -> dict[str, Taken]:
        if not self._clean:
            self._restart()
        self.settle()
        found = self._views(inputs)
        self._clean = False
        for border, value in found:
            self._write(border, value)
        begun = self._executed
        self._execute()
        outputs = {border.name: self._read(border, take) for border in self.program.outputs}
        self._inference += 1
        self._loader.ended(self._inference * len(self._loaded_before))
        self._file.require_unchanged()
        self._clean = True
        self._unsettled = not begun
        return outputs

    def _execute(self) -> None:
        """Execute the steps; the last one has not ended before the outputs were read."""
        loader, counts, steps = self._loader, self._loaded_before, len(self._loaded_before)
        self.dnnl.set_threads(self.program.threads)
        first, loads = self._inference * steps, self._inference * len(self._loads)
        by_one = self._free is not None or bool(self.slowed) or not self._executed
        loader.prepare(self._inference + 1)
        k = 0
        self._began = perf_counter_ns()
        while k < steps:
            if counts[k]:
                loader.wait_loaded(loads + counts[k])
            end = k + 1
            while end < steps and not (by_one or self._alone[end]) and loader.has_loaded(loads + counts[end]):
                end += 1
            self._calls.run(k, end)
            if by_one:
                self._after(k)
            k = end
            if k < steps:
                loader.ended(first + k)
        self._executed_all()

    def _executed_all(self) -> None:
        """Note that each step has run once more; the first inference's outputs are not to wait for what follows from that."""
        begun, self._executed = self._executed, True
        if self._settling:
            self._settling -= 1
            if begun:
                self._library.executed()

    def settle(self) -> None:
        """Give up what was read around code that ran in the first inference alone: before the next one, not in its time.

        The thread that asks for inferences does: others may map and unmap files meanwhile, and what they map must stay.
        """
        if self._unsettled:
            self._unsettled = False
            self._library.executed()

    def _after(self, k: int) -> None:
        """Do what follows a step that was executed by itself."""
        if self.slowed:
            _stay_awake(perf_counter_ns() + self.slowed[k])
            self.times[2 * k + 1] = perf_counter_ns()
        if not self._executed:
            self._library.drop()  # what the first execution alone needs
        if self._free:
            self._free(k)

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
        """Bytes of all weights that are loaded, as memory holds them."""
        return sum(load.memory_bytes for load in self._loads)

    @property
    def widened_per_ms(self) -> float:
        """Bytes of values that the reader widened in a ms since loading began anew; 0 where none were."""
        return self._loader.widened_per_ms

    def stream_ms(self) -> float:
        """Milliseconds to read all weights while nothing else runs, each to its place; the next run begins anew."""
        with self._lock:
            assert self._arena is not None  # noqa: S101  made with the session
            loads = [replace(load, step=k, after=-1, again=k) for k, load in enumerate(self._loads)]
            self._loader.pause()
            begin = perf_counter_ns()
            self._loader.start(loads, len(self._loaded_before), memoryview(self._arena))
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


def _require_sizes(program: StreamProgram, columns: ProgramColumns) -> None:
    """Refuse sizes in the file that are neither those in memory nor whole pages of halves."""
    sizes = set(zip(columns.stored_bytes, columns.weight_bytes, strict=False))
    halved = {(stored, VALUE_BYTES * stored // HALF_BYTES) for stored, _ in sizes if stored % mmap.PAGESIZE == 0}
    if len(columns.stored_bytes) != len(columns.weight_bytes) or any(one not in halved and one[0] != one[1] for one in sizes):
        what = "the program does not fit: weights of no known size in the file"
        raise FormatError(what, where=program.model, next_step=AGAIN)


def _counts(weight_bytes: Sequence[int]) -> list[int]:
    """For each step with weights, how many loads of an inference are complete when it may run; 0 without weights."""
    counts, loads = [], 0
    for size in weight_bytes:
        loads += size > 0
        counts.append(loads if size else 0)
    return counts


def _freed(buffers: Sequence[Buffer], weight_bytes: Sequence[int], schedule: Schedule) -> dict[int, list[tuple[int, int]]]:
    """Ranges of memory that become free with each step: what nothing needs any more."""
    found: dict[int, list[tuple[int, int]]] = {}
    steps = len(weight_bytes)
    for buffer, offset in zip(buffers, schedule.buffer_offset, strict=True):
        if buffer.upper < steps:  # outputs are still to be read
            found.setdefault(buffer.upper - 1, []).append((offset, buffer.size))
    for k, size in enumerate(weight_bytes):
        if size and schedule.again[k] != k:
            found.setdefault(k, []).append((schedule.weight_offset[k], size))
    return found
