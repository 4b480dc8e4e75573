"""Runs steps by oneDNN on some cores: the CPU of a pair."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.candidates import candidates
from edgeplan.runtime.creation import Creator
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Buffer, Executable, Worker
from edgeplan.runtime.processor import Capabilities, Host, Kernel, Sharing
from edgeplan.runtime.session import PreparedSteps
from edgeplan.support.machine import memory_bytes


class OnednnProcessor(Host):
    """This processor is oneDNN, on a thread for each core. The thread that makes it is pinned to the cores until it is closed.

    Args:
        cores: to compute on; none: one thread, wherever the system puts it.
    """

    def __init__(self, cores: Sequence[int] = ()) -> None:
        self.threads = max(1, len(cores))
        self.dnnl = Dnnl()  # before the thread is pinned: OpenMP counts processors when it is loaded
        self._before: set[int] | None = None
        if cores:
            self._before = os.sched_getaffinity(0)
            _pin(cores)
        self._cores = tuple(sorted(cores)) or tuple(sorted(os.sched_getaffinity(0)))
        self.dnnl.warm_up(self.threads)
        if self.threads > 1:
            self.dnnl.bind_threads(cores)
        self.worker = Worker(self.dnnl, self.threads)

    @classmethod
    def open(cls, options: Mapping[str, str], cores: Sequence[int], block: int = 0, *, profiling: bool = False) -> Self:
        del options, block, profiling
        return cls(cores)

    @property
    def capabilities(self) -> Capabilities:
        info = self.dnnl.info
        return Capabilities(
            f"oneDNN ({info.isa})",
            info.version,
            Sharing.fine,
            cores=self._cores,
            units=self.threads,
            memory_bytes=memory_bytes(),
        )

    def refuses(self, lowered: Lowered, step: Step, layouts: Mapping[str, str]) -> str:
        self.dnnl.set_threads(self.threads)
        try:
            candidates(Creator(self.dnnl, lowered.shapes, layouts, {}, lowered.types), step)
        except ModelError as error:
            return error.what
        return ""

    def allocate(self, size: int) -> Buffer:
        try:
            data = np.frombuffer(mmap.mmap(-1, max(1, size)), np.uint8)
        except (OSError, OverflowError, ValueError) as error:
            raise DeviceError(
                f"cannot allocate {size} bytes: {error}", where=self.capabilities.name, next_step="use a smaller model"
            ) from error
        return Buffer(data, data.ctypes.data)

    def prepare(self, executable: Executable, index: int) -> Kernel:
        prepared = PreparedSteps(executable.through(self.dnnl), self.worker, self.threads, (index,))
        return Kernel(executable.program.choices[index].name, prepared)

    def empty(self) -> Kernel:
        return Kernel("empty", None)

    def enqueue(self, kernel: Kernel) -> None:
        self.ready()
        if kernel.handle is not None:
            _prepared(kernel).run()

    def finish(self) -> None:
        """Nothing is left to do: all has run."""

    def ready(self) -> None:
        self.dnnl.set_threads(self.threads)

    def close(self) -> None:
        if self._before is not None:
            os.sched_setaffinity(0, self._before)
            self._before = None


def _prepared(kernel: Kernel) -> PreparedSteps:
    handle: Any = kernel.handle
    if not isinstance(handle, PreparedSteps):
        raise DeviceError("a kernel of another processor", where=kernel.implementation, next_step="prepare it here")
    return handle


def _pin(cores: Sequence[int]) -> None:
    try:
        os.sched_setaffinity(0, cores)
        missing = set(cores) - os.sched_getaffinity(0)
    except (OSError, ValueError, OverflowError):
        missing = set(cores)
    if missing:
        allowed = ", ".join(map(str, sorted(os.sched_getaffinity(0))))
        raise DeviceError(
            f"cannot compute on the cores {', '.join(map(str, sorted(cores)))}",
            where="the cores of a processor",
            next_step=f"name cores that this process may use: {allowed}",
        )
