"""What a processor offers to a pair: kernels of steps on memory that both share, and how the two wait for each other.

A new processor is one file that subclasses `Processor`, and one line in `registry.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType, TracebackType
from typing import Self

from edgeplan.errors import DeviceError
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.executable import Buffer, Executable


class Sharing(StrEnum):
    """How the other processor sees what this one writes."""

    #: At once, by address, while kernels run (fine-grained shared virtual memory, or plain memory of a CPU).
    fine = "fine"
    #: The same addresses, but only between kernels, after the memory was handed over (mapped or unmapped).
    coarse = "coarse"
    #: By copies.
    copies = "copies"


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a processor is and can do.

    Attributes:
        name: of the processor, as people read it.
        version: of its library or driver; plans are for one.
        sharing: of its memory with the other's.
        atomics: whether kernels see another processor's stores to fine-grained memory while they run, as polling needs.
        cores: CPU cores that it computes on; empty for a processor of its own.
        units: compute units.
        memory_bytes: that it can allocate at once.
    """

    name: str
    version: str
    sharing: Sharing
    atomics: bool = False
    cores: tuple[int, ...] = ()
    units: int = 1
    memory_bytes: int = 1 << 62


@dataclass(frozen=True, slots=True)
class Kernel:
    """A step, or a part of one, ready to run on one processor.

    Attributes:
        implementation: of the kernel, such as "conv.winograd".
        features: what was dispatched, by name, for predictors; empty where the library does not tell.
        handle: what the processor runs.
    """

    implementation: str
    handle: object
    features: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


class Processor(ABC):
    """One of a pair. It is used from the thread that made it, and closed there."""

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What it is and can do."""

    @abstractmethod
    def refuses(self, lowered: Lowered, step: Step, layouts: Mapping[str, str]) -> str:
        """Why it cannot run a step whose activations lie in these layouts; "" if it can."""

    @abstractmethod
    def allocate(self, size: int) -> Buffer:
        """Memory for activations that both processors address, zeroed.

        Raises:
            DeviceError: there is not so much.
        """

    def free(self, buffer: Buffer) -> None:  # noqa: B027  where nobody else holds it, it is free
        """Let go of memory from `allocate`; kernels on it have finished, and none is enqueued any more."""

    @abstractmethod
    def prepare(self, executable: Executable, index: int) -> Kernel:
        """Make the kernel of a step of `executable.program`, with its weights read and transformed.

        Activations are at `executable.program.offsets` of `executable.arena`, which `allocate` of either processor gave.

        Raises:
            ModelError: the weights cannot be read, or the processor refuses the step.
            DeviceError: the kernel cannot be made.
        """

    @abstractmethod
    def empty(self) -> Kernel:
        """A kernel that does nothing: what handing over costs is measured with it.

        Raises:
            DeviceError: the kernel cannot be made.
        """

    @abstractmethod
    def enqueue(self, kernel: Kernel) -> None:
        """Run a kernel after all that were enqueued before. It may have run when this returns, or not.

        Raises:
            DeviceError: the processor reports a failure.
        """

    @abstractmethod
    def finish(self) -> None:
        """Wait until all that was enqueued has run.

        Raises:
            DeviceError: the processor reports a failure, or does not answer in its time.
        """

    def flush(self) -> None:  # noqa: B027  a processor without a queue has begun
        """See to it that what was enqueued is begun."""

    def enqueue_wait(self, counter_address: int, value: int) -> None:
        """Have the queue wait until a counter has reached a value; after too long it gives up, as `finish` tells.

        Only processors whose capabilities say `atomics` can.

        Args:
            counter_address: of an int32 in memory from `allocate`.
            value: at least which it must be.

        Raises:
            DeviceError: this processor does not see the host's stores while it runs.
        """
        del counter_address, value
        raise self._cannot_poll()

    def enqueue_signal(self, counter_address: int, value: int) -> None:
        """Have the queue store a value in a counter once all that was enqueued before has run; all that was written is seen.

        Args:
            counter_address: of an int32 in memory from `allocate`.
            value: to store.

        Raises:
            DeviceError: the host does not see this processor's stores while it runs.
        """
        del counter_address, value
        raise self._cannot_poll()

    def enqueue_hand_over(self, own_address: int, own_value: int, other_address: int, other_value: int) -> None:
        """As `enqueue_signal` of the first counter and then `enqueue_wait` for the second, at once where that is faster.

        Args:
            own_address: of the counter to store in.
            own_value: to store.
            other_address: of the counter to wait for.
            other_value: at least which that must be.

        Raises:
            DeviceError: as these.
        """
        self.enqueue_signal(own_address, own_value)
        self.enqueue_wait(other_address, other_value)

    def _cannot_poll(self) -> DeviceError:
        return DeviceError(
            f"{self.capabilities.name} sees no counters while it runs", where="polling", next_step="synchronise by events"
        )

    def give_up(self) -> None:  # noqa: B027  a processor that does not poll has nothing to end
        """End all waits for counters now; `finish` then raises."""

    def spans(self) -> Sequence[tuple[int, int]]:
        """When each kernel began and ended that was enqueued since this was asked last, in order; all have finished.

        In ns of `time.perf_counter_ns`; nothing where it is not measured.
        """
        return ()

    def take(self) -> None:  # noqa: B027  with fine-grained sharing there is nothing to do
        """The host is to read and write shared memory now; all kernels have finished."""

    def give(self) -> None:  # noqa: B027  with fine-grained sharing there is nothing to do
        """Kernels that are enqueued from now on read and write shared memory; the host does not until `take`."""

    @abstractmethod
    def close(self) -> None:
        """Free everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
