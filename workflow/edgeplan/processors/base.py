"""What a processor offers to a pair: kernels of steps on memory that both share, and how the two wait for each other.

A new processor is one file that subclasses `Processor`, and one line in `registry.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType, TracebackType
from typing import Self

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

    @abstractmethod
    def prepare(self, executable: Executable, index: int) -> Kernel:
        """Make the kernel of a step of `executable.program`, with its weights read and transformed.

        Activations are at `executable.program.offsets` of `executable.arena`, which `allocate` of either processor gave.

        Raises:
            ModelError: the weights cannot be read, or the processor refuses the step.
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
