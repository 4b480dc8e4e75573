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
from edgeplan.runtime.creation import ALIGNMENT
from edgeplan.runtime.native import words
from edgeplan.runtime.native.calls import Loop, Table
from edgeplan.runtime.processor import Host, Kernel, Processor, Sharing

_NS_PER_S = 1e9
_CPU = 0
Times = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Item:
    """A sub-step on its lane: 0, the CPU's, or 1, the GPU's.

    Attributes:
        lane: where it runs.
        needed: how many items of the other lane must be done before.
        kernel: what runs.
        name: of the sub-step.
    """

    lane: int
    needed: int
    kernel: Kernel
    name: str = ""


class Lanes(ABC):
    """Items that are run again and again.

    Args:
        cpu: runs the CPU's lane, in the calling thread.
        gpu: runs the GPU's lane.
        items: in an order that fits both lanes.
        limit_seconds: the longest wait for the other lane.
    """

    def __init__(self, cpu: Host, gpu: Processor, items: Sequence[Item], limit_seconds: float) -> None:
        self.cpu, self.gpu, self.items, self.limit_seconds = cpu, gpu, tuple(items), limit_seconds
        self.on = [np.array([k for k, item in enumerate(items) if item.lane == lane], np.int64) for lane in (0, 1)]
        self.spans: Times = np.zeros((len(self.on[_CPU]), 2), np.int64)

    def run(self, times: Times) -> None:
        """Run all items of both lanes once.

        Args:
            times: when each began and ended is put there, in ns since the beginning; -1 where the GPU does not tell.

        Raises:
            DeviceError: a processor fails, or does not come in time. What the GPU had in its queue is ended or given up.
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

    def close(self) -> None:  # noqa: B027  there may be nothing
        """Free what only these lanes use; all has run."""

    @abstractmethod
    def go(self) -> None:
        """Run all items once, and wait until both lanes are done."""


class EventLanes(Lanes):
    """The GPU's items are queued when what they wait for is done; the CPU waits for all that is queued.

    Where memory is handed over, one processor runs at a time.
    """

    def go(self) -> None:
        """Start both lanes; see `Lanes`."""
        gpu, handed = self.gpu, self.gpu.capabilities.sharing != Sharing.fine
        queued = finished = number = 0
        given = False
        for item in self.items:
            if item.lane != _CPU:
                if not given:
                    gpu.give()
                    given = True
                gpu.enqueue(item.kernel)
                gpu.flush()
                queued += 1
                continue
            if item.needed > finished or (given and handed):
                gpu.finish()
                finished = queued
            if given and handed:
                gpu.take()
                given = False
            self.spans[number, 0] = time.perf_counter_ns()
            self.cpu.enqueue(item.kernel)
            self.spans[number, 1] = time.perf_counter_ns()
            number += 1
        gpu.finish()


class PollingLanes(Lanes):
    """The GPU's queue is filled for the whole run; each lane waits for the other's counter. The CPU's is compiled."""

    def __init__(self, cpu: Host, gpu: Processor, items: Sequence[Item], limit_seconds: float) -> None:
        super().__init__(cpu, gpu, items, limit_seconds)
        self._counters = gpu.allocate(2 * ALIGNMENT)
        self._addresses = (self._counters.address, self._counters.address + ALIGNMENT)
        rows: list[tuple[int, int, int, int]] = []
        calls = [np.zeros((0, words.CALL_WORDS), np.int64)]
        at = 0
        for k in self.on[_CPU]:
            item = self.items[k]
            calls.append(cpu.calls(item.kernel))
            rows.append((item.needed, at, at := sum(map(len, calls)), 0))
        self._rows = np.array(rows, np.int64).reshape(-1, words.ITEM_WORDS)
        self._calls = np.concatenate(calls)
        steps, made = (Table(found.ctypes.data, len(found)) for found in (self._rows, self._calls))
        stream = cpu.worker.stream.value
        self._loop = Loop(cpu.dnnl.info.path, stream, steps, made, self.spans.ctypes.data, self._addresses)

    def go(self) -> None:
        """Start both lanes; see `Lanes`."""
        self._counters.data[:] = 0
        self.cpu.ready()
        self._fill()
        last = len(self.on[1 - _CPU])
        found = self._loop.run(0, len(self._rows), last, int(self.limit_seconds * _NS_PER_S))
        if found == words.LATE:
            raise self._late()
        if found != words.DONE:
            self.cpu.dnnl.check_execution(self._loop.status)
        self.gpu.finish()

    def close(self) -> None:
        """Free the counters of both lanes."""
        self.gpu.free(self._counters)

    def _fill(self) -> None:
        """The GPU's items with waits and signals between them, both of which are left out where nobody needs them."""
        gpu, (own, other) = self.gpu, self._addresses
        last = len(self.on[1 - _CPU])
        heeded = {last, *self._rows[:, words.NEEDED].tolist()}
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
            gpu.enqueue(item.kernel)
            signal = number if number in heeded else 0
        if signal:
            gpu.enqueue_signal(other, signal)
        gpu.flush()

    def _late(self) -> DeviceError:
        at = self._loop.step
        where = f"before {self.items[self.on[_CPU][at]].name!r}" if at < len(self._rows) else "at the end"
        return DeviceError(
            f"{self.gpu.capabilities.name} did not come within {self.limit_seconds:g} s",
            where=f"{where}; it has done {int(self._counters.tensor(ALIGNMENT, (1,), 'int32')[0])} of its "
            f"{len(self.on[1 - _CPU])} steps",
            next_step="open the partition again; if it stays so, run the model on one processor",
        )
