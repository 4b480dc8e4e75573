"""What a kernel pays at its first execution in a process: tables that the library generates when they are first needed.

oneDNN's `gemm:jit` generates its matrix kernels then, which takes longer than many a model's whole cold start. A profiling
process has paid that long before most samples, so each is measured in a fresh process, as processor time: nothing but the
thread itself counts. The processes are forked from one that has imported everything and executed nothing
(`python -m edgeplan.cold.profiling.once FOLDER`): to import takes a second, to fork and measure a fifth of one.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec
import numpy as np

from edgeplan.cold.clock import Clock
from edgeplan.cold.profiling.store import Row
from edgeplan.cold.profiling.trials import Trials
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Shape
from edgeplan.planning.cold_start.profile import kernel_name
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.linked import LinkedStep
from edgeplan.runtime.linked_file import read_linked, write_linked
from edgeplan.runtime.plan_folder import PROGRAM_NAME
from edgeplan.runtime.preparation import Executor, Preparer, Shared
from edgeplan.runtime.process import prepare_process
from edgeplan.runtime.steps import Step
from edgeplan.subprocesses import ending, environment

#: Signatures of these rows begin with this.
ONCE = "once-"
_STAGE, _STEPS_NAME = "once", "steps.jsonl"
_LEAST_MS = 0.5  # below, it is what cold caches do, and in every first execution
_TIMEOUT_SECONDS = 300


def work_of(step: Step, shapes: Mapping[str, Shape]) -> str:
    """What a kernel of a step does: the step's kind, where a product of a single row is apart.

    The library runs that one by other code, which generates nothing at its first execution.
    """
    one_row = step.kind == "fc" and math.prod(shapes[step.outputs[0]][:-1]) == 1
    return f"{step.kind}-row" if one_row else step.kind


def kernel_of(work: str, implementation: str) -> str:
    """The kernel of a candidate, whatever layouts it converts from and to; a name means different code for other work."""
    return f"{work} {kernel_name(implementation)}"


def once_ms(rows: Iterable[Row]) -> Mapping[str, float]:
    """Kernel -> milliseconds of its first execution in a process, of those rows that are about it."""
    return {row.implementation: row.samples_ms[_STAGE][0] for row in rows if row.signature.startswith(ONCE)}


def measure_once(trials: Trials, known: Collection[str], scratch: Path, clock: Clock) -> list[Row]:
    """Measure the kernels of a model that are not known yet, each by the candidate with the least weights.

    Args:
        trials: the candidates.
        known: kernels that were measured.
        scratch: folder to write to.
        clock: of the machine.

    Raises:
        DeviceError: the process failed.
    """
    program = trials.subject.program
    smallest: dict[str, tuple[int, int, int]] = {}
    for index, group in trials.group.items():
        for position, implementation in enumerate(group.implementations):
            kernel = kernel_of(work_of(program.steps[index], program.shapes), implementation.name)
            if kernel not in known:
                candidate = (group.sizes[position].weights, index, position)
                smallest[kernel] = min(smallest.get(kernel, candidate), candidate)
    if not smallest:
        return []
    folder = scratch / f"once-{trials.program.layout}"
    folder.mkdir(exist_ok=True)
    write_linked(trials.program, folder / PROGRAM_NAME)
    chosen = {kernel: (index, trials.step(index, position, 1)) for kernel, (_, index, position) in sorted(smallest.items())}
    lines = [msgspec.json.encode(chosen_step) for chosen_step in chosen.values()]
    (folder / _STEPS_NAME).write_bytes(b"\n".join(lines))
    with _FreshProcesses(folder) as fresh:
        times_ms = [fresh.first_execution_ms(number, clock) for number in range(len(chosen))]
    now = time.time()
    return [
        Row(ONCE + kernel, kernel, 0, 0, 0, 0, {_STAGE: (_stored(time_ms),)}, now)
        for kernel, time_ms in zip(chosen, times_ms, strict=True)
    ]


def _stored(time_ms: float) -> float:
    return float(np.float32(time_ms)) if time_ms >= _LEAST_MS else 0.0  # as rows are stored


class _FreshProcesses:
    """Asks for first executions, one in each process, since some kernels share what they generate."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed with the process
        self._process = subprocess.Popen(  # noqa: S603  our own interpreter and module, no shell
            [sys.executable, "-m", "edgeplan.cold.profiling.once", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environment(),
        )

    def first_execution_ms(self, number: int, clock: Clock) -> float:
        """How much longer the first execution of the step of that number takes, at nominal speed."""
        clock.watch.wait()
        before = clock.now()
        answer = ""
        with contextlib.suppress(BrokenPipeError):
            print(number, file=self._process.stdin, flush=True)
            answer = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not answer:
            self._said.seek(0)
            raise DeviceError(
                f"a first execution could not be measured: {self._said.read().strip()[-300:]}",
                where=str(self._folder),
                next_step="run it again",
            )
        return float(answer) / clock.slowness(before, clock.now())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()


def _first_execution_ms(folder: Path, number: int) -> float:
    """How much longer the first execution of a step takes than the second."""
    program = read_linked(folder / PROGRAM_NAME)
    line = (folder / _STEPS_NAME).read_bytes().splitlines()[number]
    index, step = msgspec.json.decode(line, type=tuple[int, LinkedStep])
    dnnl = Dnnl()
    prepare_process(dnnl)
    dnnl.warm_up(1)
    with Shared(dnnl, program, folder) as shared:
        shared.memory.data[: program.arena_bytes] = 0
        preparer, executor = Preparer(shared), Executor(dnnl)
        calls = preparer.prepare(index, step, [])
        start = time.thread_time()
        executor.execute(calls)
        first = time.thread_time()
        executor.execute(calls)
        return 1e3 * ((first - start) - (time.thread_time() - first))


def _serve(folder: Path) -> None:
    """Answer each number on stdin by what a forked process has measured; end where one fails, which has said why."""
    for line in sys.stdin:
        child = os.fork()
        if not child:
            signal.alarm(_TIMEOUT_SECONDS)
            print(_first_execution_ms(folder, int(line)), flush=True)  # noqa: T201  the answer to the asking process
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"the process {ending(os.waitstatus_to_exitcode(status))}")


if __name__ == "__main__":
    _serve(Path(sys.argv[1]))
