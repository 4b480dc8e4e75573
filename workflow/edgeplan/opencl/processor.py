"""A processor that runs the kernels of `sources` dispatches steps alike, whichever driver builds and launches them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from edgeplan.errors import DeviceError, ModelError
from edgeplan.graph.steps import Lowered, Step
from edgeplan.opencl import dispatch as dispatcher
from edgeplan.opencl.building import ProgramSource
from edgeplan.opencl.launch import (
    FEATURES,
    ArenaOffset,
    Argument,
    DeviceNumbers,
    Dispatch,
    Launch,
    Memory,
    packed_buffer,
    stored_numbers,
)
from edgeplan.opencl.spaces import tensor_of
from edgeplan.runtime.executable import Buffer, Executable
from edgeplan.runtime.partitioned.program import is_view
from edgeplan.runtime.processor import Capabilities, Dispatcher, Kernel, Layouts, Processor, Region, Shapes
from edgeplan.runtime.program import Program
from edgeplan.runtime.transform import folded

#: How long the host, and kernels that wait for it, wait before they give up.
LIMIT_SECONDS = 20.0
FLOAT_BYTES = 4


class OpenclDispatcher(Dispatcher):
    """The white-box dispatcher works from the numbers of a device (`DeviceNumbers`)."""

    features = FEATURES

    def __init__(self, numbers: Mapping[str, int]) -> None:
        self.device = stored_numbers(numbers)
        super().__init__(numbers)

    def refusal(self, step: Step, shapes: Shapes, layouts: Layouts) -> str:
        """Return the dispatcher's refusal; see `Dispatcher`."""
        return dispatcher.refusal(step, shapes, layouts, self.device)

    def dispatch(self, step: Step, shapes: Shapes, layouts: Layouts) -> Dispatch:
        """Return the dispatcher's choice; see `Dispatcher`."""
        return dispatcher.dispatch(step, shapes, layouts, self.device)

    def alternatives(self, step: Step, shapes: Shapes, layouts: Layouts) -> Mapping[str, Dispatch]:
        """See `Dispatcher`: other tiles and kernels of convolutions and fully connected steps."""
        return dispatcher.alternative_dispatches(step, shapes, layouts, self.device)


#: What no kernel runs, whatever the step.
OTHER_TYPES = "values that are not of float32"


def has_other_types(step: Step, types: Mapping[str, str]) -> bool:
    """Tell whether a step reads or writes values of another type than float32."""
    return any(tensor in types for tensor in (*step.reads, *step.outputs))


class DispatchingProcessor(Processor):
    """A dispatching processor takes its kernels from the white-box dispatcher; a driver's own builds and launches them."""

    dispatcher = OpenclDispatcher
    device_numbers: DeviceNumbers
    _capabilities: Capabilities

    @property
    def capabilities(self) -> Capabilities:
        """Describe the device and what it can do."""
        return self._capabilities

    @property
    def numbers(self) -> Mapping[str, int]:
        """Return the device's numbers; see `Processor`."""
        return asdict(self.device_numbers)

    def refuses(self, lowered: Lowered, step: Step, layouts: Mapping[str, str]) -> str:
        """Return why there are no kernels for a step, or ""."""
        if has_other_types(step, lowered.types):
            return OTHER_TYPES
        return dispatcher.refusal(step, lowered.shapes, layouts, self.device_numbers)

    def prepare(self, executable: Executable, index: int) -> Kernel:
        """Dispatch a step, build its kernels, read and pack its weights, and set all arguments."""
        program, step = executable.program, executable.program.steps[index]
        if is_view(step, program.shapes, program.layouts, program.offsets, self.device_numbers.block):
            return Kernel("reshape.view", ())
        if has_other_types(step, program.types):
            raise ModelError(OTHER_TYPES, where=f"step {step.name!r}", next_step="leave it to the CPU")
        leading = step.sizes("written")[2] if step.kind == "fc" and "written" in step.settings else 0
        found = dispatcher.dispatch(step, program.shapes, program.layouts, self.device_numbers, leading=leading)
        if self.choose is not None:
            chosen = self.choose(step, program.shapes, program.layouts)
            found = chosen if isinstance(chosen, Dispatch) else found
        self._announce(executable, found)
        values = np.zeros(1, np.float32)
        if found.packing.elements:
            values = packed_buffer(found.packing, folded(step, executable.read(index)))
        memories = self._memories_of(executable, values, found.workspace_elements)
        commands = []
        for launch in found.launches:
            planned = [planned_argument(program, step, argument) for argument in launch.arguments]
            commands.append(self.command(launch, [argument_of(one, memories) for one in planned]))
        return Kernel(found.implementation, tuple(commands), found.features())

    def joined(self, kernels: Sequence[Kernel]) -> Kernel:
        """Return a kernel that runs all commands of others, one after the other."""
        return Kernel("joined", tuple(command for kernel in kernels for command in self.commands(kernel)))

    @staticmethod
    def commands(kernel: Kernel) -> tuple[Any, ...]:
        """Return the launches of a kernel from `prepare`."""
        assert isinstance(kernel.handle, tuple)  # noqa: S101  from `prepare`
        return kernel.handle

    def _announce(self, executable: Executable, found: Dispatch) -> None:
        """Tell the driver which kernels are going to be built."""

    # Kernels that are made late: while others run, by threads of a cold start (`gpu_start`)

    @classmethod
    @abstractmethod
    def load_library(cls, options: Mapping[str, str]) -> None:
        """Load driver and compiler, and look for the device, as a process does once."""

    @classmethod
    @abstractmethod
    def open_late(cls, options: Mapping[str, str], block: int, vector: int = 0, *, profiling: bool = False) -> Self:
        """Open the processor as `open` does for kernels that are made late: nothing is tried or run ahead.

        Kernels were planned with vectors of so many floats (`vector`); 0: as the options say.
        """

    @property
    @abstractmethod
    def code_identity(self) -> str:
        """Return what machine code of this processor depends on besides its source: device, driver and compiler."""

    @abstractmethod
    def source_of(self, launch: Launch) -> ProgramSource:
        """Return the source that a launch's kernel is built from."""

    @abstractmethod
    def compile(self, asked: ProgramSource) -> None:
        """Compile a source for `command`, whatever earlier processes kept of it. Some drivers go on at the first run."""

    @abstractmethod
    def code_of(self, asked: ProgramSource) -> bytes:
        """Return the machine code of a source that was compiled, for `load`: whole once its kernels have run."""

    @abstractmethod
    def load(self, asked: ProgramSource, code: bytes) -> None:
        """Take machine code of an earlier process for a source, for `command`."""

    def merged(self, sources: Sequence[ProgramSource]) -> ProgramSource | None:
        """One program with the kernels of sources, for `code_of`, `compile` and `load`; None where programs stay apart."""
        del sources
        return None

    def take_from(self, whole: ProgramSource, sources: Sequence[ProgramSource]) -> None:
        """Take the kernels of sources from a merged program, which was loaded, from now on."""
        raise NotImplementedError

    def enter(self) -> None:
        """Let the calling thread compile, load and upload; the thread that opened the processor needs no leave."""

    @abstractmethod
    def own_memory(self, size: int) -> Any:
        """Return zeroed memory of the device alone, as kernels are given it; it is freed with the processor."""

    @abstractmethod
    def upload(self, values: npt.NDArray[np.float32]) -> Any:
        """Return memory of the device that holds values, as kernels are given it, once they are there.

        The values stay as they are: a device that shares the host's memory reads them in place. Any thread may call it.
        """

    @abstractmethod
    def reserve(self, size: int) -> Any:
        """Return memory of the device alone, its content undefined, for `fill` and `part_of`; freed with the processor."""

    @abstractmethod
    def fill(self, memory: Any, values: npt.NDArray[Any]) -> None:
        """Copy values to memory from `reserve`, and return once they are there. Any thread may call it."""

    @abstractmethod
    def part_of(self, memory: Any, offset: int, size: int) -> Any:
        """Return a part of memory from `reserve` as kernels are given it; offsets are whole pages."""

    @abstractmethod
    def enqueue_write(self, memory: Any, offset: int, values: npt.NDArray[Any]) -> None:
        """Have the queue copy values of the host to a place in memory from `own_memory`; they stay until it has finished."""

    @abstractmethod
    def enqueue_read(self, memory: Any, offset: int, values: npt.NDArray[Any]) -> None:
        """Have the queue copy a place in memory from `own_memory` to an array of the host, filled once it has finished."""

    @abstractmethod
    def command(self, launch: Launch, arguments: Sequence[Any]) -> Any:
        """Return a launch with its arguments in place: memory as the processor gave it, numbers of 32 bits."""

    @abstractmethod
    def _memories_of(self, executable: Executable, weights: npt.NDArray[np.float32], workspace: int) -> Mapping[Memory, Any]:
        """Return the memory that kernels are given: packed weights, and so many elements between the launches of a step."""

    def enqueue_in(self, buffer: Buffer, region: Region) -> None:
        """Have the queue move a region to the device's copy; see `Processor`."""
        self._move(buffer, region, inwards=True)

    def enqueue_out(self, buffer: Buffer, region: Region) -> None:
        """Have the queue move a region to the host's copy; see `Processor`."""
        self._move(buffer, region, inwards=False)

    @abstractmethod
    def _move(self, buffer: Buffer, region: Region, *, inwards: bool) -> None:
        """Have the queue move a region of memory from `allocate` between its two copies."""

    def _error(self, what: str, next_step: str) -> DeviceError:
        return DeviceError(what, where=self._capabilities.name, next_step=next_step)

    def _not_allocated(self, what: str, next_step: str) -> DeviceError:
        return self._error(f"{what} in memory that this processor has not allocated", next_step)


def planned_argument(program: Program, step: Step, argument: Argument) -> int | str:
    """Return an argument of a step's launch as plans hold it: a number, a float as `float.hex` has it, a memory's name."""
    if isinstance(argument, Memory):
        return argument.value
    if isinstance(argument, ArenaOffset):
        return program.offsets[tensor_of(step, argument.role)] // FLOAT_BYTES + argument.extra
    return float(argument).hex() if isinstance(argument, float) else int(argument)


def argument_of(planned: int | str, memories: Mapping[Memory, Any]) -> Any:
    """Return a planned argument as processors take it: memory that they gave, or a number of 32 bits."""
    if isinstance(planned, int):
        return np.int32(planned)
    return memories[Memory(planned)] if planned in memories else np.float32(float.fromhex(planned))
