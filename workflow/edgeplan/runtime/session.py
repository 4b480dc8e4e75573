"""Steps of a model that is run whole, from its file: a program of one lane and one buffer, run by the loop of all plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from edgeplan.errors import DeviceError
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable, Worker, allocate, transformed
from edgeplan.runtime.program import Program
from edgeplan.runtime.streaming.build import Places, Segment, StepInMaking, stream_program
from edgeplan.runtime.streaming.calls import BoundCalls
from edgeplan.runtime.streaming.program import Buffer, Operand

Array = npt.NDArray[Any]


class _OneBuffer(Places):
    """The arena as the only buffer of a program: a token is an offset in it."""

    def __init__(self, program: Program) -> None:
        self.tokens, self._program = dict(program.offsets), program

    def buffers(self, _lowered: Lowered, rows: Sequence[StepInMaking]) -> tuple[Buffer, ...]:
        return (Buffer("arena", self._program.arena_bytes, 0, len(rows)),)

    def operand(self, token: int) -> Operand:
        return Operand(0, token)

    def scratch(self, _step: int, offset: int) -> Operand:
        return Operand(0, self._program.scratch_offset + offset)


class PreparedSteps:
    """Steps of a program, ready to run: their kernels made, their weights transformed, their operands in the arena.

    Many kernels fix their split over threads, and their scratch, when they are made: `width` is of the threads that they run
    on, the worker of the thread that prepares. `converts` is of each step and each of its calls the activation that it
    converts, or "" for the step's own work.
    """

    def __init__(self, executable: Executable, worker: Worker, width: int = 1, steps: Sequence[int] | None = None) -> None:
        program, dnnl = executable.program, executable.dnnl
        dnnl.set_threads(width)
        rows = [_row(executable, index) for index in (range(len(program.steps)) if steps is None else steps)]
        lowered = Lowered(program.name, program.steps, (), (), program.shapes, program.types)  # who binds knows its border
        built = stream_program(executable.creator, lowered, _OneBuffer(program), rows, width)
        self.converts = tuple(tuple(call.converts for call in row.created.calls) for row in rows)
        self.calls = BoundCalls(dnnl, built, worker.stream)
        self._weights, self._arena = allocate(built.weights_bytes), executable.arena
        written, places = set[int](), [step.weights_at for step in built.steps]
        for row, at in zip(rows, places, strict=True):
            if row.segment is not None and at not in written:
                written.add(at)
                made = transformed(dnnl, row.step, row.created, executable.read(row.origin), worker)
                self._weights.data[at : at + row.segment.size] = made.data
        segments = [self._weights.address + at for at in places]
        self.calls.place([self._arena.address], segments)

    def run(self) -> None:
        """Run all of them once, in order."""
        self.calls.run(0, len(self.converts))


def _row(executable: Executable, index: int) -> StepInMaking:
    """A step under its implementation, with its segment of weights."""
    program = executable.program
    step, choice = program.steps[index], program.choices[index]
    created = executable.creator.create(step, choice, generate=False)
    if program.scratch_offset + created.scratch_bytes > program.arena_bytes:
        raise DeviceError(
            f"a step needs {created.scratch_bytes} bytes of scratch, more than was planned",
            where=program.name,
            next_step="plan again with the number of threads that it runs on",
        )
    segment = Segment(((step, created, 0),), created.weight_bytes) if created.slots else None
    return StepInMaking(step, choice, created, index, -1, segment)


class SequentialSession:
    """A program of a model in a folder, prepared whole, run step by step in the calling thread."""

    def __init__(self, dnnl: Dnnl, program: Program, folder: Path, threads: int = 1) -> None:
        self.program = program
        self.worker = Worker(dnnl, threads)
        self.threads = threads
        with Executable(dnnl, program, folder) as executable:
            self.executable = executable
            self.steps = PreparedSteps(executable, self.worker, threads)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One inference: outputs by tensor name."""
        self.executable.bind(inputs)
        self.execute()
        return self.executable.outputs()

    def execute(self) -> None:
        """Run all steps on the inputs bound."""
        self.worker.dnnl.set_threads(self.threads)
        self.steps.run()
