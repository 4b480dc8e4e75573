"""Starts a setting as a program of one's own would: a file that imports the engine, and nothing of this package beside it.

The file (`Setting.start`) is told a job as its argument: `main`, the file to open, and `companions` of the artefact, `threads`,
`inputs` (an .npz), `outputs` (where to write them), `shapes` of the outputs by name, where the artefact names them, and the
options of the setting. Each of its answers is a line of JSON. With its library loaded and its inputs there it answers `{}`, and
waits for a line; then it opens the model, runs it, and answers the seconds of both, `open` and `first_run`, parts beside them.
For each line `run` it runs the model again and answers the seconds, for `save` it writes its outputs in the order of the model,
and for `inputs`, of stock engines, it reads its inputs again.

All that is looked at beside is looked at from here: processors, page cache, counters, limits of memory and time.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from edgeplan.engines.cold import Artefact
from edgeplan.engines.registry import setting
from edgeplan.support.answers import Answering
from edgeplan.support.cpus import pinned
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.subprocesses import ending, program_command
from edgeplan.support.tensors import Array, read_outputs
from edgeplan.support.workers import ColdRunError

if TYPE_CHECKING:
    from edgeplan.measurement.process.memory_group import MemoryGroup

_AT_ONCE = 100  # inferences that are asked for before one is answered
#: Waits for a line before it runs the command behind it.
_WAITING = ("sh", "-c", 'read -r line; exec "$@"', "sh")


def words_of(name: str, artefact: Artefact, threads: int, inputs: Path, outputs: Path) -> tuple[str, ...]:
    """Return the command of a setting's program: its interpreter, its file and its job."""
    known = setting(name)
    job = {
        "main": str(artefact.main), "companions": {role: str(path) for role, path in artefact.companions.items()},
        "threads": threads, "inputs": str(inputs), "outputs": str(outputs), "shapes": artefact.outputs, **known.options,
    }  # fmt: skip
    return known.interpreter, "-P", str(known.program), json.dumps(job)


class OverTimeError(ColdRunError):
    """Reports that a program took longer than it may, and was ended."""


class Program:
    """A setting's program, its library loaded and its inputs there. Use it as a context manager.

    It opens an artefact, takes inputs by name, in the order of the model, may use the processors named (none: any), and so many
    seconds for all of it; a group pays for all of its memory.
    """

    def __init__(
        self,
        name: str,
        artefact: Artefact,
        inputs: Mapping[str, Array],
        *,
        threads: int,
        processors: Sequence[int] = (),
        timeout_seconds: float = 300.0,
        group: MemoryGroup | None = None,
    ) -> None:
        self._what, self._seconds = f"{name} on {artefact.main.name}", timeout_seconds
        self._end = time.monotonic() + timeout_seconds
        with contextlib.ExitStack() as stack:
            folder = Path(stack.enter_context(ScratchFolder("program")))
            self._outputs = folder / "outputs.npz"
            self._inputs = folder / "inputs.npz"
            np.savez(self._inputs, allow_pickle=False, **dict(inputs))
            words = words_of(name, artefact, threads, self._inputs, self._outputs)
            command = program_command(*(() if group is None else _WAITING), *words)
            with pinned(*processors):
                self._asked = stack.enter_context(Answering(command))
            if group is not None:
                group.add(self.number)
                self._asked.tell("")
            self._answer(timeout_seconds)
            self._stack = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    @property
    def number(self) -> int:
        """Return the number of the process."""
        return self._asked.process.pid

    @property
    def exit_code(self) -> int | None:
        """Return how the process ended; None while it lives."""
        return self._asked.process.poll()

    def go(self, seconds: float = 0.0) -> dict[str, float]:
        """Have the model opened and run once; return the seconds of `open`, `first_run` and of what else is told.

        It may take so many seconds; 0: what is left of all.
        """
        self._asked.tell("")
        return self._answer(seconds)

    def run(self, count: int, seconds: float = 0.0) -> Iterator[float]:
        """Have the model run again, so often; yield the ms of each inference.

        Each may take so many seconds, and is asked for by itself then; 0: what is left of all.
        """
        at_once = 1 if seconds else _AT_ONCE
        for first in range(0, count, at_once):
            asked = min(at_once, count - first)
            self._asked.tell(*["run"] * asked)
            for _ in range(asked):
                yield self._answer(seconds)["run"] * 1e3

    def bind(self, inputs: Mapping[str, Array]) -> None:
        """Give the model other inputs, by name; of stock engines alone."""
        np.savez(self._inputs, allow_pickle=False, **dict(inputs))
        self._asked.tell("inputs")
        self._answer(0.0)

    def outputs(self) -> list[Array]:
        """Return the outputs, in the order of the model: of our plans those of the first run, of other engines of the last."""
        self._asked.tell("save")
        self._answer(0.0)
        return [*read_outputs(self._outputs).values()]

    def _answer(self, seconds: float) -> dict[str, Any]:
        """Wait for an answer; whatever else an engine prints is passed over."""
        deadline = min(self._end, time.monotonic() + seconds) if seconds else self._end
        while True:
            line = self._asked.answer(deadline - time.monotonic())
            if line is None:
                what = f"{self._what}: no result within {min(seconds or self._seconds, self._seconds):g} s{self._asked.words()}"
                self._asked.close()
                raise OverTimeError(what, next_step="run it on a quieter machine, raise the time limit, or leave it out")
            if not line:
                raise ColdRunError(
                    f"{self._what}: the process {ending(self._asked.process.wait())}{self._asked.words()}",
                    next_step="correct what it complains of, or leave it out",
                )
            with contextlib.suppress(ValueError):
                if isinstance(told := json.loads(line), dict):
                    return told
