"""A second processor without a GPU: oneDNN on a thread of its own with a queue, which can be slow, hang or fail."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Self

import numpy as np

from edgeplan.errors import DeviceError
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.candidates import candidates, default
from edgeplan.runtime.creation import Creator
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Buffer, Executable, Worker, allocate
from edgeplan.runtime.processor import Capabilities, Kernel, Processor, Region, Sharing
from edgeplan.runtime.session import PreparedSteps

_CORES = os.sched_getaffinity(0)


class QueueProcessor(Processor):
    """Runs steps by oneDNN in its own thread, in the order of its queue; with mirrored memory in copies of its own.

    After `hangs_before` kernels it stops until it is closed, after `fails_before` one fails, each takes `pause_seconds` longer.
    """

    def __init__(
        self,
        *,
        sharing: Sharing = Sharing.fine,
        atomics: bool = True,
        cores: tuple[int, ...] = (),
        hangs_before: int = 1 << 62,
        fails_before: int = 1 << 62,
        pause_seconds: float = 0.0,
        limit_seconds: float = 10.0,
    ) -> None:
        self._capabilities = Capabilities("double", "1", sharing, atomics, cores)
        self._dnnl = Dnnl()
        self._hangs, self._fails, self._pause, self.limit_seconds = hangs_before, fails_before, pause_seconds, limit_seconds
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._problem: BaseException | None = None
        self._stop, self._gave_up = threading.Event(), threading.Event()
        self._done, self._asked = 0, 0
        self._spans, self.memory, self._own = list[tuple[int, int]](), list[Buffer](), dict[int, Buffer]()
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, options: Mapping[str, str], cores: Sequence[int], block: int, *, profiling: bool = False) -> Self:
        del options, block, profiling
        return cls(cores=tuple(cores))

    @property
    def numbers(self) -> Mapping[str, int]:
        return {"block": self._dnnl.info.block}

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def refuses(self, lowered: Lowered, step: Step, layouts: Mapping[str, str]) -> str:
        del layouts
        return "values that are not of float32" if any(t in lowered.types for t in (*step.reads, *step.outputs)) else ""

    def allocate(self, size: int) -> Buffer:
        buffer = allocate(size)
        buffer.data[:] = 0
        self.memory.append(buffer)
        if self._capabilities.sharing == Sharing.mirrored:
            self._own[buffer.address] = own = allocate(size)
            own.data[:] = 0
        return buffer

    def free(self, buffer: Buffer) -> None:
        self.memory = [b for b in self.memory if b.address != buffer.address]

    def prepare(self, executable: Executable, index: int) -> Kernel:
        """With the likely fastest implementation, and scratch of its own."""
        program = executable.program
        creator = Creator(self._dnnl, program.shapes, program.layouts, program.offsets, program.types)
        self._dnnl.set_threads(1)
        choice = default(candidates(creator, program.steps[index]))
        created = creator.create(program.steps[index], choice)
        scratch = allocate(created.scratch_bytes)
        arena = self._own.get(executable.arena.address, executable.arena)
        at = scratch.address - arena.address
        choices = (*program.choices[:index], choice, *program.choices[index + 1 :])
        mine = executable.through(self._dnnl)
        mine.program = replace(program, scratch_offset=at, arena_bytes=at + created.scratch_bytes, choices=choices)
        mine.arena = arena
        prepared = PreparedSteps(mine, Worker(self._dnnl), steps=(index,))
        return Kernel(choice.name, (prepared, scratch))

    def empty(self) -> Kernel:
        return Kernel("empty", (None, None))

    def enqueue(self, kernel: Kernel) -> None:
        assert isinstance(kernel.handle, tuple)
        prepared, _ = kernel.handle
        self._put(lambda: self._run(prepared))

    def enqueue_wait(self, counter_address: int, value: int) -> None:
        if not self._capabilities.atomics:
            raise self._cannot_poll()
        counter = self._word(counter_address)

        def wait() -> None:
            end = time.monotonic() + self.limit_seconds
            while counter[0] < value and not self._gave_up.is_set():
                time.sleep(0)
                if time.monotonic() > end:
                    self._gave_up.set()

        self._put(wait)

    def enqueue_signal(self, counter_address: int, value: int) -> None:
        if not self._capabilities.atomics:
            raise self._cannot_poll()
        self._put(lambda: self._word(counter_address).__setitem__(0, value))

    def give_up(self) -> None:
        self._gave_up.set()

    def finish(self) -> None:
        end, told = time.monotonic() + self.limit_seconds, ""
        while self._done < self._asked and not told:
            time.sleep(0)
            told = "does not answer" if time.monotonic() > end else ""
        if not told and self._problem is not None:
            told, self._problem = f"failed: {self._problem}", None
        elif not told and self._gave_up.is_set():
            told = "gave up waiting"
            self._gave_up.clear()
        if told:
            raise DeviceError(f"the double {told}", where="double", next_step="none")

    def spans(self) -> list[tuple[int, int]]:
        found, self._spans = self._spans, []
        return found

    def enqueue_in(self, buffer: Buffer, region: Region) -> None:
        self._move(buffer, self._own.get(buffer.address, buffer), region)

    def enqueue_out(self, buffer: Buffer, region: Region) -> None:
        self._move(self._own.get(buffer.address, buffer), buffer, region)

    def _move(self, source: Buffer, target: Buffer, region: Region) -> None:
        if source is target:
            return
        at, width, rows, pitch = region

        def move() -> None:
            for row in range(at, at + rows * pitch, pitch):
                target.data[row : row + width] = source.data[row : row + width]

        self._put(move)

    def close(self) -> None:
        self._stop.set()
        self._gave_up.set()
        self._queue.put(None)
        self._thread.join()

    def _word(self, address: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
        (memory,) = [b for b in self.memory if b.address <= address < b.address + len(b.data)]
        return memory.tensor(address - memory.address, (1,), "int32")

    def _put(self, work: Callable[[], None]) -> None:
        self._asked += 1
        self._queue.put(work)

    def _run(self, prepared: PreparedSteps | None) -> None:
        self._hangs, self._fails = self._hangs - 1, self._fails - 1
        if self._hangs < 0:
            self._stop.wait()
        if self._fails < 0:
            self._fails = 1 << 62
            raise RuntimeError("out of order")
        begin = time.perf_counter_ns()
        if prepared is not None:
            prepared.run()
        time.sleep(self._pause)
        self._spans.append((begin, time.perf_counter_ns()))

    def _serve(self) -> None:
        os.sched_setaffinity(0, _CORES)  # not where the thread that makes it is pinned
        self._dnnl.set_threads(1)
        while (work := self._queue.get()) is not None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001  told by `finish`
                self._problem = error
            self._done += 1
