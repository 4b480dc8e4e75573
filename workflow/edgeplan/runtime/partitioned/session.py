"""A partition executed: the GPU's lane in its queue, the CPU's in the calling thread, one inference at a time.

With polling the queue is filled for the whole inference, each sub-step between a kernel that waits for the CPU's counter and
one that moves the GPU's (LiPG, section 4); with events the host queues a sub-step when its inputs are there.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from enum import StrEnum
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgeplan.errors import DeviceError, ModelError
from edgeplan.runtime.executable import Executable
from edgeplan.runtime.partitioned.document import PairProgram, pair_program
from edgeplan.runtime.partitioned.lanes import EventLanes, Item, Lanes, PollingLanes
from edgeplan.runtime.partitioned.program import Partitioned
from edgeplan.runtime.plan_session import Session
from edgeplan.runtime.processor import Host, Kernel, Processor, Sharing
from edgeplan.runtime.session import Array, bind_inputs, outputs_of

LIMIT_SECONDS = 20.0
_MS_PER_NS = 1e-6


class Synchronisation(StrEnum):
    """A synchronisation says how two processors wait for each other."""

    polling = "polling"
    events = "events"


def synchronisation_of(cpu: Processor, gpu: Processor) -> tuple[Synchronisation, str]:
    """The best way that two processors can wait for each other, and why it is that."""
    one, other = cpu.capabilities, gpu.capabilities
    if other.sharing != Sharing.fine:
        how = "by copies" if other.sharing == Sharing.copies else "only between kernels"
        return Synchronisation.events, f"{other.name} shares memory {how}"
    if not other.atomics:
        return Synchronisation.events, f"kernels of {other.name} do not see the CPU's stores while they run"
    if both := sorted({*one.cores} & {*other.cores}):
        cores = f"core{'s' if len(both) > 1 else ''} {', '.join(map(str, both))}"
        return Synchronisation.events, f"both compute on {cores}, where one that polls takes the other's time"
    return Synchronisation.polling, "memory is shared while kernels run, and no core computes for both"


def cannot_poll(why: str, where: str) -> DeviceError:
    """The error where polling was asked for and cannot be."""
    return DeviceError(f"the pair cannot poll: {why}", where=where, next_step="synchronise by events")


class PairSession(Session):
    """A partition on two processors. It is used from the thread that made the processors, and closed before they are.

    Args:
        cpu: runs the CPU's lane.
        gpu: runs the GPU's lane.
        made: the program, made for the CPU's blocks (`cpu.dnnl.info.block`).
        folder: where its weights lie.
        synchronisation: how the lanes wait for each other; None: the best that there is.
        limit_seconds: the longest wait for the other lane.

    Attributes:
        arena: where all activations are.
        times: of the last run, when each sub-step began and ended, in ns since the run began; -1 where the GPU does not tell.

    Raises:
        ModelError: a processor refuses a step, or the weights cannot be read.
        DeviceError: memory does not suffice, a kernel cannot be made, or the processors cannot synchronise so.
    """

    def __init__(
        self,
        cpu: Host,
        gpu: Processor,
        made: PairProgram,
        folder: Path,
        synchronisation: Synchronisation | None = None,
        limit_seconds: float = LIMIT_SECONDS,
    ) -> None:
        best, why = synchronisation_of(cpu, gpu)
        if synchronisation == Synchronisation.polling != best:
            raise cannot_poll(why, made.program.name)
        super().__init__(made.inputs, folder)
        self.synchronisation = synchronisation or best
        self.made, self.program, self._gpu = made, made.program, gpu
        self._failed, self._opened = False, ExitStack()
        self.arena = gpu.allocate(self.program.arena_bytes)
        with Executable(cpu.dnnl, self.program, folder, self.arena) as executable:
            self._executable = executable
            lanes = made.lanes
            self.kernels: tuple[Kernel, ...] = tuple(
                (cpu if lane == 0 else gpu).prepare(executable, k) for k, lane in enumerate(lanes)
            )
        self.times: npt.NDArray[np.int64] = np.full((len(lanes), 2), -1, np.int64)
        steps = self.program.steps
        items = [
            Item(lane, needed, kernel, step.name)
            for lane, needed, kernel, step in zip(lanes, made.needed, self.kernels, steps, strict=True)
        ]
        kind = PollingLanes if self.synchronisation == Synchronisation.polling else EventLanes
        self._lanes: Lanes = kind(cpu, gpu, items, limit_seconds)

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
        made = pair_program(cpu.dnnl, partitioned, model, cpu.threads)
        return cls(cpu, gpu, made, model.parent, synchronisation, limit_seconds)

    def holding(self, opened: ExitStack) -> Self:
        """The same, with what is to be closed behind it."""
        self._opened = opened
        return self

    def spans_ms(self) -> tuple[tuple[float, float, float], ...]:
        """Return, for each of the model's steps, when its first part began in the last run, and when each lane's part ended.

        In ms since the run began; a lane without a part ends when the step begins.
        """
        ran, origin, lanes = self.times * _MS_PER_NS, np.array(self.made.origin), np.array(self.made.lanes)
        found = []
        for step in range(max(self.made.origin) + 1):
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
        """Run one inference; see `Session`.

        Raises:
            ModelError: an index in an input lies outside its axis.
            DeviceError: a processor fails, or does not come in time; the session can only be closed then.
        """
        self.bind(inputs)
        self.execute()
        return self.outputs()

    def bind(self, inputs: Mapping[str, Array]) -> None:
        """Copy the inputs to their place. The arena is reused while running, so each run needs them again.

        Raises:
            ModelError: an input is missing or of another shape.
            DeviceError: the session has ended, or a processor failed in an earlier run.
        """
        self._require_open()
        self._gpu.take()
        bind_inputs(self._executable, inputs)

    def execute(self) -> None:
        """Run all steps on the inputs bound.

        Raises:
            DeviceError: as `run`.
        """
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
            raise DeviceError(what, where=self.program.name, next_step="open the plan again")

    def outputs(self) -> dict[str, Array]:
        """Copies of the outputs of the last run."""
        self._gpu.take()
        return outputs_of(self._executable)

    def _close(self) -> None:
        """After a failure, what the GPU may still write is left to the processor's own closing."""
        with self._opened:
            if not self._failed:
                self._lanes.close()
                self._gpu.free(self.arena)
