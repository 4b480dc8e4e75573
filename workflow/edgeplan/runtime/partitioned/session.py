"""A partition executed: the GPU's lane in its queue, the CPU's in the calling thread, one inference at a time.

With polling the queue is filled for the whole inference, each sub-step between a kernel that waits for the CPU's counter and
one that moves the GPU's (LiPG, section 4); with events the host queues a sub-step when its inputs are there.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgeplan.errors import DeviceError, ModelError
from edgeplan.runtime import loops
from edgeplan.runtime.creation import ALIGNMENT, aligned
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Buffer, Executable, copy_inputs
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.loops import Loop, zero_words
from edgeplan.runtime.partitioned.build import PairPlaces, build_pair
from edgeplan.runtime.partitioned.program import Partitioned
from edgeplan.runtime.plan_session import Session
from edgeplan.runtime.processor import Host, Kernel, Processor, Region, Sharing
from edgeplan.runtime.program import Program
from edgeplan.runtime.program_file import Border
from edgeplan.runtime.streaming.build import raw_sizes
from edgeplan.runtime.streaming.calls import BoundCalls
from edgeplan.runtime.streaming.program import ELSEWHERE, NOTHING, StreamProgram
from edgeplan.runtime.streaming.weights_file import made_weights

_NS_PER_S = 1e9
_CPU = 0
Array = npt.NDArray[Any]
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Item:
    """A sub-step on its lane: 0, the CPU's, or 1, the GPU's; it starts when `needed` items of the other lane are done.

    The host's steps are those of its loop, in order. Regions of the arena are moved before it and behind it.
    """

    lane: int
    needed: int
    kernel: Kernel
    name: str = ""
    moved_in: tuple[tuple[Buffer, Region], ...] = ()
    moved_out: tuple[tuple[Buffer, Region], ...] = ()

    def enqueue(self, gpu: Processor) -> None:
        """Have the GPU's queue move what the kernel reads, run it, and move what the host reads."""
        for move in self.moved_in:
            gpu.enqueue_in(*move)
        gpu.enqueue(self.kernel)
        for move in self.moved_out:
            gpu.enqueue_out(*move)


class Lanes(ABC):
    """Items that are run again and again, in an order that fits both lanes; the calling thread runs the CPU's."""

    def __init__(self, cpu: Host, gpu: Processor, items: Sequence[Item], loop: Loop, limit_seconds: float) -> None:
        self.cpu, self.gpu, self.items, self.loop, self.limit_seconds = cpu, gpu, tuple(items), loop, limit_seconds
        self.on = [np.array([k for k, item in enumerate(items) if item.lane == lane], np.int64) for lane in (0, 1)]
        self.spans: Times = np.array(loop.times, np.int64, copy=False).reshape(-1, 2)

    def run(self, times: Times) -> None:
        """Run all items of both lanes once.

        Args:
            times: when each began and ended is put there, in ns since the beginning; -1 where the GPU does not tell.
        """
        self.gpu.spans()
        begin = time.perf_counter_ns()
        try:
            self.go()
        except BaseException:
            self.gpu.give_up()
            with suppress(DeviceError):
                self.gpu.finish()
            raise
        times[:] = -1
        times[self.on[_CPU]] = self.spans - begin
        if len(spans := np.array(self.gpu.spans(), np.int64).reshape(-1, 2)):
            times[self.on[1 - _CPU]] = spans - begin

    def run_host(self, first: int, end: int, last: int = 0) -> int:
        """Run some of the host's items, and wait for the other lane's counter; `loops.LATE` if it did not come."""
        found = self.loop.run(first, end, last, int(self.limit_seconds * _NS_PER_S))
        if found == loops.FAILED:
            self.cpu.dnnl.check_execution(self.loop.status)
        return found

    def close(self) -> None:  # noqa: B027  there may be nothing
        """Free what only these lanes use; all has run."""

    @abstractmethod
    def go(self) -> None:
        """Run all items once, and wait until both lanes are done."""


class HostLanes(Lanes):
    """These lanes have items of the host alone: nobody waits for anybody."""

    def go(self) -> None:
        """Run the lane; see `Lanes`."""
        self.cpu.ready()
        self.run_host(0, len(self.items))


class EventLanes(Lanes):
    """The GPU's items are queued when what they wait for is done; the CPU waits for all that is queued where it needs some.

    It waits before more is queued that it does not need: a wait would be for that, too, and nothing would run side by side.
    """

    def __init__(self, cpu: Host, gpu: Processor, items: Sequence[Item], loop: Loop, limit_seconds: float) -> None:
        super().__init__(cpu, gpu, items, loop, limit_seconds)
        self._next_needed = [0] * len(items)  # by the CPU's next item
        for k in range(len(items) - 2, -1, -1):
            after = items[k + 1]
            self._next_needed[k] = after.needed if after.lane == _CPU else self._next_needed[k + 1]

    def go(self) -> None:
        """Start both lanes; see `Lanes`."""
        gpu = self.gpu
        self.cpu.ready()
        queued = finished = number = 0
        for item, next_needed in zip(self.items, self._next_needed, strict=True):
            if item.lane != _CPU:
                if finished < next_needed <= queued:
                    gpu.finish()
                    finished = queued
                item.enqueue(gpu)
                gpu.flush()
                queued += 1
                continue
            if item.needed > finished:
                gpu.finish()
                finished = queued
            self.run_host(number, number + 1)
            number += 1
        gpu.finish()


class PollingLanes(Lanes):
    """The GPU's queue is filled for the whole run; each lane waits for the other's counter. The CPU's is compiled."""

    def __init__(self, cpu: Host, gpu: Processor, items: Sequence[Item], loop: Loop, limit_seconds: float) -> None:
        super().__init__(cpu, gpu, items, loop, limit_seconds)
        self._counters = gpu.allocate(2 * ALIGNMENT)
        self._addresses = (self._counters.address, self._counters.address + ALIGNMENT)
        self._needed = [items[k].needed for k in self.on[_CPU]]
        loop.share(*self._addresses, self._needed, cpu.dnnl.team(cpu.threads))
        self._fill = gpu.recorded(self._enqueue_all)

    def go(self) -> None:
        """Start both lanes; see `Lanes`."""
        self._counters.data[:] = 0
        self.cpu.ready()
        self._fill()
        self.gpu.flush()
        if self.run_host(0, len(self._needed), len(self.on[1 - _CPU])) == loops.LATE:
            raise self._late()
        self.gpu.finish()

    def close(self) -> None:
        """Free the counters of both lanes."""
        self.gpu.free(self._counters)

    def _enqueue_all(self) -> None:
        """The GPU's items with waits and signals between them, both of which are left out where nobody needs them."""
        gpu, (own, other) = self.gpu, self._addresses
        last = len(self.on[1 - _CPU])
        heeded = {last, *self._needed}
        awaited = signal = 0
        for number, k in enumerate(self.on[1 - _CPU], start=1):
            item = self.items[k]
            if item.needed > awaited and signal:
                gpu.enqueue_hand_over(other, signal, own, item.needed)
            elif item.needed > awaited:
                gpu.enqueue_wait(own, item.needed)
            elif signal:
                gpu.enqueue_signal(other, signal)
            awaited = max(awaited, item.needed)
            item.enqueue(gpu)
            signal = number if number in heeded else 0
        if signal:
            gpu.enqueue_signal(other, signal)

    def _late(self) -> DeviceError:
        """Return the error of a GPU that did not come, with what its driver says of that when it is asked to end."""
        at, done = self.loop.step, int(self._counters.tensor(ALIGNMENT, (1,), "int32")[0])
        where = f"before {self.items[self.on[_CPU][at]].name!r}" if at < len(self._needed) else "at the end"
        what = f"{self.gpu.capabilities.name} did not come within {self.limit_seconds:g} s"
        step = "open the partition again; if it stays so, run the model on one processor"
        self.gpu.give_up()
        try:
            self.gpu.finish()
        except DeviceError as error:
            what, step = f"{what}: {error.what}", error.next_step or step
        return DeviceError(what, where=f"{where}; it has done {done} of its {len(self.on[1 - _CPU])} steps", next_step=step)


LIMIT_SECONDS = 20.0
_MS_PER_NS = 1e-6


class Synchronisation(StrEnum):
    """A synchronisation says how two processors wait for each other."""

    polling = "polling"
    events = "events"


def synchronisation_of(cpu: Processor, gpu: Processor) -> tuple[Synchronisation, str]:
    """The best way that two processors can wait for each other, and why it is that."""
    one, other = cpu.capabilities, gpu.capabilities
    if not other.atomics:
        return Synchronisation.events, f"kernels of {other.name} do not see the CPU's stores while they run"
    if both := sorted({*one.cores} & {*other.cores}):
        cores = f"core{'s' if len(both) > 1 else ''} {', '.join(map(str, both))}"
        return Synchronisation.events, f"both compute on {cores}, where one that polls takes the other's time"
    return Synchronisation.polling, "memory is shared while kernels run, and no core computes for both"


def _agreed(cpu: Processor, gpu: Processor, asked: Synchronisation | None, where: str) -> Synchronisation:
    """How two processors wait for each other: as asked, which polling may not be possible for, or the best way."""
    best, why = synchronisation_of(cpu, gpu)
    if asked == Synchronisation.polling != best:
        raise DeviceError(f"the pair cannot poll: {why}", where=where, next_step="synchronise by events")
    return asked or best


class _Elsewhere(Executable):
    """The steps that the other processor runs, as `Processor.prepare` takes them: each by its number in the program."""

    def __init__(self, dnnl: Dnnl, program: StreamProgram, placed: PairPlaces, arena: Buffer, weights: Buffer) -> None:
        own = [step for step, lane in zip(program.steps, placed.lanes, strict=True) if lane]
        steps = tuple(program.kernels[step.kernel].step for step in own)
        self._weights, self._weights_at = weights, [step.weights_at for step in own]
        named = {
            tensor: placed.buffer_offset[operand.buffer] + operand.offset
            for step, found in zip(steps, own, strict=True)
            for tensor, operand in zip((*step.reads, *step.outputs), found.operands, strict=True)
        }
        inputs, outputs = (tuple(border.name for border in borders) for borders in (program.inputs, program.outputs))
        given = Program(
            program.model, BLOCKED, steps, (ELSEWHERE,) * len(steps), inputs, outputs, program.shapes, program.layouts,
            named, placed.arena_bytes, placed.arena_bytes, {}, program.types,
        )  # fmt: skip
        super().__init__(dnnl, given, Path(), arena)

    def read(self, index: int) -> Mapping[str, Array]:
        """Return a step's weights as the model holds them: role -> values, which are the caller's own."""
        program, found, at = self.program, dict[str, Array](), self._weights_at[index]
        step = program.steps[index]
        sizes = raw_sizes(program.shapes, program.types, step)
        for role, (name, size) in zip(step.weights, sizes, strict=True):
            found[role] = self._weights.tensor(at, program.shapes[name], program.dtype(name)).copy()
            at += aligned(size)
        return found


class PairSession(Session):
    """A partition on two processors. It is used from the thread that made the processors, and closed before they are.

    Args:
        gpu: runs the GPU's lane; the same as `cpu` where that one computes alone.
        program, placed, weights: made for the CPU's blocks (`cpu.dnnl.info.block`).
        folder: of the plan, or of the model.
        synchronisation: how the lanes wait for each other; None: the best that there is.
        limit_seconds: the longest wait for the other lane.

    Attributes:
        arena: where all activations are.
        times: of the last run, when each sub-step began and ended, in ns since the run began; -1 where the GPU does not tell.
    """

    def __init__(
        self,
        cpu: Host,
        gpu: Processor,
        program: StreamProgram,
        placed: PairPlaces,
        weights: Buffer,
        folder: Path,
        synchronisation: Synchronisation | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        self.synchronisation = _agreed(cpu, gpu, synchronisation, program.model)
        super().__init__(program.inputs, folder)
        self.program, self.placed, self._gpu, self._weights = program, placed, gpu, weights
        self._failed, self._opened = False, ExitStack()
        self.arena = gpu.allocate(placed.arena_bytes)
        own = [k for k, lane in enumerate(placed.lanes) if not lane]
        self._calls = BoundCalls(cpu.dnnl, program, cpu.worker.stream, own)
        segments = [weights.address + step.weights_at for step in program.steps]
        self._calls.place([self.arena.address + at for at in placed.buffer_offset], segments)
        self.kernels = self._kernels(cpu)
        self.times: npt.NDArray[np.int64] = np.full((len(placed.lanes), 2), -1, np.int64)
        mirrored = gpu.capabilities.sharing == Sharing.mirrored
        moves = [
            [tuple((self.arena, region) for region in regions if mirrored) for regions in of_steps]
            for of_steps in (placed.moved_in, placed.moved_out)
        ]
        rows = zip(placed.lanes, placed.needed, self.kernels, program.step_names, *moves, strict=True)
        items = [Item(*row) for row in rows]
        kind: type[Lanes] = PollingLanes if self.synchronisation == Synchronisation.polling else EventLanes
        if len(own) == len(placed.lanes):
            kind = HostLanes
        self._lanes: Lanes = kind(cpu, gpu, items, self._calls.loop, limit_seconds)

    def _kernels(self, cpu: Host) -> tuple[Kernel, ...]:
        """The kernels of all steps: the other processor's made, the host's by name."""
        program, found = self.program, list[Kernel]()
        with _Elsewhere(cpu.dnnl, program, self.placed, self.arena, self._weights) as elsewhere:
            made = 0
            for lane, step in zip(self.placed.lanes, program.steps, strict=True):
                if lane:
                    found.append(self._gpu.prepare(elsewhere, made))
                    made += 1
                else:
                    name = program.kernels[step.kernel].implementation.name if step.kernel != NOTHING else "view"
                    found.append(Kernel(name, None))
        return tuple(found)

    @classmethod
    def of(
        cls,
        cpu: Host,
        gpu: Processor,
        partitioned: Partitioned,
        model: Path,
        synchronisation: Synchronisation | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> Self:
        """A session of a partition that no folder holds: its weights lie in the model."""
        built, placed = build_pair(cpu.dnnl, partitioned, cpu.threads)
        weights = made_weights(cpu.dnnl, model, partitioned.lowered, built)
        return cls(cpu, gpu, built.program, placed, weights, model.parent, synchronisation, limit_seconds)

    def holding(self, opened: ExitStack) -> Self:
        """The same, with what is to be closed behind it."""
        self._opened = opened
        return self

    def spans_ms(self) -> tuple[tuple[float, float, float], ...]:
        """When each of the model's steps began in the last run, and ended on each lane, in ms; as it began without a part."""
        ran, origin, lanes = self.times * _MS_PER_NS, np.array(self.placed.origin), np.array(self.placed.lanes)
        found = []
        for step in range(max(self.placed.origin) + 1):
            own = origin == step
            start = max(float(ran[own, 0].min()), 0.0)
            here, there = (max(float(ran[own & (lanes == lane), 1].max(initial=start)), start) for lane in (0, 1))
            found.append((start, here, there))
        return tuple(found)

    @property
    def winograd(self) -> bool:
        """Tell whether a kernel computes by Winograd's transforms."""
        return any("winograd" in kernel.implementation for kernel in self.kernels)

    def _run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run one inference; see `Session`."""
        self.bind(inputs)
        self.execute()
        return self.outputs()

    def bind(self, inputs: Mapping[str, Array]) -> None:
        """Copy the inputs to their place. The arena is reused while running, so each run needs them again."""
        self._require_open()
        copy_inputs({border.name: self._view(border) for border in self.program.inputs}, inputs, self.program.model)

    def inference_ms(self, inputs: Mapping[str, Array]) -> float:
        """Run one inference; return what it took, behind the copy of its inputs."""
        self.bind(inputs)
        began = time.perf_counter()
        self.execute()
        return (time.perf_counter() - began) * 1e3

    def execute(self) -> None:
        """Run all steps on the inputs bound."""
        self._require_open()
        self._failed = True  # until it has not
        try:
            self._lanes.run(self.times)
        except ModelError:  # the inputs were wrong: nothing runs any more, and others may be right
            self._failed = False
            raise
        self._failed = False

    def _require_open(self) -> None:
        self._require_usable()
        if self._failed:
            what = "a processor failed in an earlier run"
            raise DeviceError(what, where=self.program.model, next_step="open the plan again")

    def outputs(self) -> dict[str, Array]:
        """Copies of the outputs of the last run."""
        return {border.name: np.array(self._view(border)) for border in self.program.outputs}

    def _view(self, border: Border) -> Array:
        at = self.placed.buffer_offset[border.buffer] + border.offset
        return self.arena.tensor(at, border.shape, border.dtype)

    def _close(self) -> None:
        """After a failure, what the GPU may still write is left to the processor's own closing."""
        with self._opened:
            if not self._failed:
                self._lanes.close()
                self._gpu.free(self.arena)


_US_PER_NS = 1e-3


@dataclass(frozen=True, slots=True)
class Handshake:
    """Time of a handshake, in us."""

    least_us: float
    median_us: float


def handshake(cpu: Host, gpu: Processor, synchronisation: Synchronisation, runs: int = 200, steps: int = 20) -> Handshake:
    """Measure the handshake of a pair: both processors run a step side by side, and start the next when both are done.

    The time of a run counts from the CPU's first step to its last; what a run takes to begin and to
    end does not count. There are at least two steps.
    """
    kernel = gpu.empty()
    items = [Item(lane, k, kernel) for k in range(steps) for lane in (1, 0)]
    nothing = zero_words(steps * loops.ITEM_WORDS)
    nothing[loops.FIRST :: loops.ITEM_WORDS] = nothing[loops.END :: loops.ITEM_WORDS] = [1] * steps  # prepared, without calls
    loop = Loop(cpu.dnnl.info.path, cpu.worker.stream.value, nothing)
    polled = _agreed(cpu, gpu, synchronisation, "the handshake") == Synchronisation.polling
    kind = PollingLanes if polled else EventLanes
    lanes, times = kind(cpu, gpu, items, loop, LIMIT_SECONDS), np.zeros((len(items), 2), np.int64)
    found = []
    for _ in range(runs + 1):  # the first one has kernels built
        lanes.run(times)
        begins = times[[k for k, item in enumerate(items) if item.lane == 0], 0]
        found.append((begins[-1] - begins[0]) / (steps - 1) * _US_PER_NS)
    lanes.close()
    return Handshake(float(min(found[1:])), float(np.median(found[1:])))
