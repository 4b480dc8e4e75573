"""Times the first execution of a step in a process beside its second, for `edgeplan.profiling.first_call_costs`."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import PROGRAM_NAME
from edgeplan.runtime.linked import Linked, LinkedStep
from edgeplan.runtime.preparation import Executor, Preparer, Shared
from edgeplan.runtime.process import prepare_process
from edgeplan.runtime.tape_file import tape_of

#: The file of the steps, a line each.
STEPS_NAME = "steps.jsonl"


def first_execution_ms(folder: Path, number: int) -> float:
    """Measure how much longer the first execution of a step takes than the second, in this process.

    Args:
        folder: of the program and its steps.
        number: of the step.
    """
    linked = msgspec.json.decode((folder / PROGRAM_NAME).read_bytes(), type=Linked)
    program = linked.program
    line = (folder / STEPS_NAME).read_bytes().splitlines()[number]
    index, step = msgspec.json.decode(line, type=tuple[int, LinkedStep])
    dnnl = Dnnl()
    prepare_process(dnnl)
    dnnl.warm_up(1)
    with Shared(dnnl, program, folder, tape=tape_of(linked), reserve=lambda: linked.reserve) as shared:
        shared.memory.data[: program.arena_bytes] = 0
        preparer, executor = Preparer(shared), Executor(dnnl)
        calls = preparer.prepare(index, step, [])
        start = time.thread_time()
        executor.execute(calls)
        first = time.thread_time()
        executor.execute(calls)
        return 1e3 * ((first - start) - (time.thread_time() - first))
