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


def copy_inputs(views: Mapping[str, Array], inputs: Mapping[str, Array], model: str) -> None:
    """Copy the inputs of a run to their place.

    Args:
        views: of the arena, where each input belongs.
        inputs: the values.
        model: for messages.

    Raises:
        ModelError: an input is missing or of another shape.
    """
    for name, view in views.items():
        value, expected = inputs.get(name), f"{view.dtype}{list(view.shape)}"
        if value is None or value.shape != view.shape or not np.can_cast(value.dtype, view.dtype, "same_kind"):
            given = "missing" if value is None else f"{value.dtype}{list(value.shape)}"
            what, correct = f"input {name!r} is {given}, not {expected}", f"correct the input: expected {expected}"
            raise ModelError(what, where=model, next_step=correct)
        np.copyto(view, value)


def bind_inputs(executable: Executable, inputs: Mapping[str, Array]) -> None:
    """Copy the inputs of a run to their place in the arena; see `copy_inputs`."""
    program = executable.program
    copy_inputs({name: executable.activation(name) for name in program.inputs}, inputs, program.name)


def outputs_of(executable: Executable) -> dict[str, Array]:
    """Copies of the outputs of the last run."""
    return {name: np.array(executable.activation(name)) for name in executable.program.outputs}
