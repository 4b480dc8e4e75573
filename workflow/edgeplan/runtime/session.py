"""The simplest runner: prepare every step, then run them in order."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.executable import Executable, Prepared, Worker
from edgeplan.runtime.program import Program

Array = npt.NDArray[Any]


class SequentialSession:
    """A program prepared whole, run step by step in the calling thread.

    Args:
        dnnl: the library.
        program: what to run.
        folder: where the model file lies.
        threads: threads of every primitive.
    """

    def __init__(self, dnnl: Dnnl, program: Program, folder: Path, threads: int = 1) -> None:
        self.program = program
        self.worker = Worker(dnnl, threads)
        self.threads = threads
        with Executable(dnnl, program, folder) as executable:
            self.executable = executable
            self.steps: tuple[Prepared, ...] = tuple(
                executable.prepare(index, self.worker, threads) for index in range(len(program.steps))
            )

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """One inference: outputs by tensor name.

        Raises:
            ModelError: an input is missing or of another shape.
        """
        self.bind(inputs)
        self.execute()
        return self.outputs()

    def bind(self, inputs: Mapping[str, Array]) -> None:
        """Copy the inputs to their place. The arena is reused while running, so each run needs them again."""
        bind_inputs(self.executable, inputs)

    def execute(self) -> None:
        """Run all steps on the inputs bound."""
        self.worker.dnnl.set_threads(self.threads)
        execute, worker = self.executable.execute, self.worker
        for prepared in self.steps:
            execute(prepared, worker)

    def outputs(self) -> dict[str, Array]:
        """Copies of the outputs of the last run."""
        return outputs_of(self.executable)


def bind_inputs(executable: Executable, inputs: Mapping[str, Array]) -> None:
    """Copy the inputs of a run to their place in the arena.

    Raises:
        ModelError: an input is missing or of another shape.
    """
    program = executable.program
    for name in program.inputs:
        shape = program.shapes[name]
        value = inputs.get(name)
        dtype = program.dtype(name)
        if value is None or value.shape != shape or not np.can_cast(value.dtype, dtype, "same_kind"):
            given = "missing" if value is None else f"{value.dtype}{list(value.shape)}"
            raise ModelError(
                f"input {name!r} is {given}, not {dtype}{list(shape)}",
                where=program.name,
                next_step=f"correct the input: expected {dtype}{list(shape)}",
            )
        np.copyto(executable.activation(name), value)


def outputs_of(executable: Executable) -> dict[str, Array]:
    """Copies of the outputs of the last run."""
    return {name: np.array(executable.activation(name)) for name in executable.program.outputs}
