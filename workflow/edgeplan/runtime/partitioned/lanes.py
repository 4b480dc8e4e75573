"""The two lanes of a partition run once: by polling, or by events."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from edgeplan.errors import DeviceError
from edgeplan.runtime import loops
from edgeplan.runtime.creation import ALIGNMENT
from edgeplan.runtime.executable import Buffer
from edgeplan.runtime.loops import Loop
from edgeplan.runtime.processor import Host, Kernel, Processor, Region

_NS_PER_S = 1e9
_CPU = 0
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Item:
    """A sub-step on its lane: 0, the CPU's, or 1, the GPU's.

    Attributes:
        lane: where it runs.
        needed: how many items of the other lane must be done before.
        kernel: what runs on the GPU; the host's steps are those of its loop, in order.
        name: of the sub-step.
        moved_in, moved_out: regions of the arena that are moved before it, and behind it.
        arena: where these lie; None where nothing is moved.
    """

    lane: int
    needed: int
    kernel: Kernel
    name: str = ""
    moved_in: tuple[Region, ...] = ()
    moved_out: tuple[Region, ...] = ()
    arena: Buffer | None = None

    def enqueue(self, gpu: Processor) -> None:
        """Have the GPU's queue move what the kernel reads, run it, and move what the host reads."""
        if self.arena is not None:
            for region in self.moved_in:
                gpu.enqueue_in(self.arena, region)
        gpu.enqueue(self.kernel)
        if self.arena is not None:
            for region in self.moved_out:
                gpu.enqueue_out(self.arena, region)


class Lanes(ABC):
    """Items that are run again and again.

    Args:
        cpu: runs the CPU's lane, in the calling thread.
        gpu: runs the GPU's lane.
        items: in an order that fits both lanes.
        loop: over the CPU's.
        limit_seconds: the longest wait for the other lane.
    """

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
