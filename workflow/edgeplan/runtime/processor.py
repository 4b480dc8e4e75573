"""A processor offers kernels of steps to a pair, on memory that both share, and ways of waiting for each other.

A new processor is a subclass of `Processor`, named in the `Description` of its engine (`engines.registry`), of this package or
of another one. `edgeplan.testing.processors` holds it to what ours are held to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import ClassVar, Protocol, Self

from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Lowered, Step
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Buffer, Executable, Worker
from edgeplan.runtime.plan_session import Closing

Shapes = Mapping[str, Shape]
Layouts = Mapping[str, str]


class Sharing(StrEnum):
    """A sharing says how the other processor sees what this one writes."""

    #: At once, by address, while kernels run (fine-grained shared virtual memory, or plain memory of a CPU).
    fine = "fine"
    #: Each has its own copy of the memory: what crosses is moved (`Processor.enqueue_in`, `Processor.enqueue_out`).
    mirrored = "mirrored"


#: A region of memory in bytes: where it begins in a buffer, bytes of a row, rows, and bytes from one row to the next.
Region = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Capabilities describe a processor to its pair.

    Attributes:
        version: of its library or driver; plans are for one.
        sharing: of its memory with the other's.
        atomics: whether its queue sees the host's stores to counters while it runs, and the host its own, as polling needs.
        cores: CPU cores that it computes on; empty for a processor of its own.
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

    The implementation is the kernel's name, such as "conv.winograd", the handle what the processor runs. `features` are what
    was dispatched, by name, for predictors; empty where the library does not tell.
    """

    implementation: str
    handle: object
    features: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))


class Dispatched(Protocol):
    """A kernel that a processor would run a step by, as far as it tells before anything is built."""

    @property
    def implementation(self) -> str:
        """The kernel's name, such as "conv.winograd"; "" where the library does not tell."""

    def features(self) -> Mapping[str, float]:
        """Features of the dispatch, by the names in `Dispatcher.features`, for predictors of latency."""


@dataclass(frozen=True, slots=True)
class _Untold:
    implementation: str = ""

    def features(self) -> Mapping[str, float]:
        return {}


class Dispatcher:
    """Tells from numbers alone which kernels a processor would run steps by; no device is opened, no driver needed.

    Models are planned with it and rows are read by it where the processor is not there. Numbers are those of an open processor
    (`Processor.numbers`), as they are stored beside rows and predictors. A processor's own is a subclass; this one stands for
    libraries that tell nothing: it refuses no step, and knows no kernel by name.
    """

    #: Names of the features, the same for every step and in this order; predictors are trained on them.
    features: ClassVar[tuple[str, ...]] = ()

    def __init__(self, numbers: Mapping[str, int]) -> None:
        if "block" not in numbers:
            raise ValueError("they lack the channels of a block")
        self.numbers, self.block = dict(numbers), numbers["block"]

    def refusal(self, step: Step, shapes: Shapes, layouts: Layouts) -> str:
        """Why the processor has no kernel for a step of float32; "" if it has one."""
        del step, shapes, layouts
        return ""

    def dispatch(self, step: Step, shapes: Shapes, layouts: Layouts) -> Dispatched:
        """The kernel of a step that is not refused."""
        del step, shapes, layouts
        return _Untold()

    def alternatives(self, step: Step, shapes: Shapes, layouts: Layouts) -> Mapping[str, object]:
        """The tuning space of a step: kernels that compute the same as its own, by name, for `Processor.choose`."""
        del step, shapes, layouts
        return {}


#: Takes one of `Dispatcher.alternatives` for a step that is prepared; None for the dispatcher's own kernel.
Choose = Callable[[Step, Shapes, Layouts], object | None]


class Processor(Closing, ABC):
    """A processor of a pair: it runs kernels of steps one after the other, on memory that the other one addresses, too.

    A processor is used in this order:

    1. `open` makes it, with what its device file and the pair file say. Until then its `dispatcher` tells, from numbers that
       are stored, which steps it refuses and which kernels it would run; nothing of it has to be installed for that.
    2. `allocate` gives memory and `prepare` makes a kernel of one step of a program whose activations lie there. Both may be
       called at any time at which all that was enqueued has finished, and as often as there are programs.
    3. A run is `enqueue` for each kernel in order, after the host has written the inputs; among them `enqueue_wait`,
       `enqueue_signal` or `enqueue_hand_over` where both processors poll, and, where `capabilities.sharing` is mirrored,
       `enqueue_in` for what the host has written and `enqueue_out` for what it reads; `flush`; `finish`; `spans`. What is
       enqueued alike in each run may be `recorded` once.
    4. `free` returns the memory of a program that has ended; its kernels are never enqueued again.
    5. `close` ends all. It may be called twice, after any failure, and while kernels still wait; nothing else may follow it.

    All calls come from the thread that opened the processor, one at a time. Only `give_up` may come from another thread, also
    while `finish` waits. A processor may use threads of its own.

    A `DeviceError` of a method whose name begins with `enqueue`, of `flush` or of `finish` ends the run: what its kernels have
    written is worth nothing. Who gets it calls `give_up` and `finish`, whose second error is left out, and
    may then enqueue again or close. A `ModelError` of `enqueue` says that an input is wrong, and the next run may have
    another one. An error of any other method leaves the processor as it was. No wait is unbounded: not that of a kernel for a
    counter, nor that of `finish`.
    """

    #: Whether kernels run in the thread that enqueues them: the first of a pair has to be such a one, a `Host`.
    here: ClassVar[bool] = False
    #: Tells which kernels steps would run by, without a processor that is open.
    dispatcher: ClassVar[type[Dispatcher]] = Dispatcher
    #: Set for autotuning, and asked by `prepare`; None: the dispatcher's own kernels.
    choose: Choose | None = None

    @classmethod
    @abstractmethod
    def open(cls, options: Mapping[str, str], cores: Sequence[int], block: int, *, profiling: bool = False) -> Self:
        """Open the processor that options of a device file describe, on the CPU cores that its pair file gives it, if any.

        A block of the layout `blocked16` has so many channels on this machine; a `Host` knows it itself. With `profiling` it is
        to note when kernels begin and end (`spans`), if it can.
        """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """Return the capabilities; the same from `open` to `close`."""

    @property
    @abstractmethod
    def numbers(self) -> Mapping[str, int]:
        """Numbers of the device that decide its kernels, for `dispatcher`; `block` is one. They are part of row keys."""

    @abstractmethod
    def refuses(self, lowered: Lowered, step: Step, layouts: Layouts) -> str:
        """Why it cannot run a step whose activations lie in these layouts; "" if it can.

        It refuses at least what its dispatcher does, and types of elements besides.
        """

    @abstractmethod
    def allocate(self, size: int) -> Buffer:
        """Memory for activations that both processors address, zeroed."""

    def free(self, buffer: Buffer) -> None:
        """Let go of memory from `allocate`; kernels on it have finished, and none is enqueued any more."""

    @abstractmethod
    def prepare(self, executable: Executable, index: int) -> Kernel:
        """Make the kernel of a step of `executable.program`, with its weights read and transformed.

        Activations are at `executable.program.offsets` of `executable.arena`, which `allocate` of either processor gave.
        """

    @abstractmethod
    def empty(self) -> Kernel:
        """A kernel that does nothing: what handing over costs is measured with it."""

    @abstractmethod
    def enqueue(self, kernel: Kernel) -> None:
        """Run a kernel after all that were enqueued before. It may have run when this returns, or not."""

    @abstractmethod
    def finish(self) -> None:
        """Wait until all that was enqueued has run."""

    def flush(self) -> None:
        """See to it that what was enqueued is begun."""

    def enqueue_wait(self, counter_address: int, value: int) -> None:
        """Have the queue wait until a counter, an int32 in memory from `allocate`, is at least a value.

        After too long it gives up, as `finish` tells. Only processors whose capabilities say `atomics` can.
        """
        del counter_address, value
        raise self._cannot_poll()

    def enqueue_signal(self, counter_address: int, value: int) -> None:
        """Store a value in a counter, an int32 in memory from `allocate`, once all that was enqueued before has run.

        All that was written is seen then.
        """
        del counter_address, value
        raise self._cannot_poll()

    def enqueue_hand_over(self, own_address: int, own_value: int, other_address: int, other_value: int) -> None:
        """As `enqueue_signal` of the first counter and then `enqueue_wait` for the second, at once where that is faster."""
        self.enqueue_signal(own_address, own_value)
        self.enqueue_wait(other_address, other_value)

    def _cannot_poll(self) -> DeviceError:
        return DeviceError(
            f"{self.capabilities.name} sees no counters while it runs", where="polling", next_step="synchronise by events"
        )

    def give_up(self) -> None:
        """End all waits for counters now, from any thread; `finish` then raises, and what is enqueued later runs."""

    def spans(self) -> Sequence[tuple[int, int]]:
        """When each kernel began and ended that was enqueued since this was asked last, in order; all have finished.

        In ns of `time.perf_counter_ns`; nothing where it is not measured. A pair is only measured, and planned for without
        costs of one's own, if its second processor tells when it is opened with `profiling`.
        """
        return ()

    def enqueue_in(self, buffer: Buffer, region: Region) -> None:
        """Have the queue move a region of memory from `allocate` from the host's copy to the processor's own.

        The host leaves it as it is until what is enqueued next has run.
        """

    def enqueue_out(self, buffer: Buffer, region: Region) -> None:
        """Have the queue move a region of memory from `allocate` from the processor's own copy to the host's."""

    def recorded(self, enqueue_all: Callable[[], None]) -> Callable[[], None]:
        """Return a function that enqueues the same again and again, at once where the processor can.

        What is given calls methods whose names begin with `enqueue`, the same ones with the same arguments each time.
        """
        return enqueue_all

    @abstractmethod
    def close(self) -> None:
        """Free everything; also what kernels still write, once they have ended. It raises nothing."""


class Host(Processor):
    """The first processor of a pair: it computes in the calling thread, by calls of the runtime's library.

    `enqueue` has run the kernel when it returns. The steps of a pair's program are made and called without it, by the loop that
    also runs plans of memory (`runtime.streaming.calls`). The library also chooses the kernels of a program; the worker's
    stream is what calls are given, and the calling thread is among those that compute.
    """

    here = True
    dnnl: Dnnl
    threads: int
    worker: Worker

    @property
    def numbers(self) -> Mapping[str, int]:
        """The block alone: the library does not tell what its kernels depend on."""
        return {"block": self.dnnl.info.block}

    @abstractmethod
    def ready(self) -> None:
        """The calling thread computes on `threads` threads from now on; called before a run."""
