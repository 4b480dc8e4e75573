"""Executes one job in a process of its own, `python -m edgeplan.measurement.process.worker`: JSON on stdin and stdout.

With `--fork` it takes one job a line, each done by a child of this process, which has imported everything and loaded no
library. What engines write to stdout goes to stderr.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from typing import Annotated, NoReturn

from pydantic import Field, TypeAdapter

from edgeplan.engines.cold import Artefact
from edgeplan.engines.description import UnsupportedError, named_object
from edgeplan.engines.program import Program
from edgeplan.engines.registry import setting, version_of
from edgeplan.measurement.others import Preemption
from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.measurement.process.job import OnceJob, OnceResult, PrepareJob, PrepareResult, RunJob, RunResult
from edgeplan.measurement.process.prepare_machine import map_code, prepare_machine
from edgeplan.support import lifeline
from edgeplan.support.own_process import take_stdout
from edgeplan.support.subprocesses import ending
from edgeplan.support.workers import ColdRunError

Job = PrepareJob | RunJob | OnceJob
#: The argument that has jobs done by children.
FORK = "--fork"
_TIMEOUT_SECONDS = 300
_JOB: TypeAdapter[Job] = TypeAdapter(Annotated[Job, Field(discriminator="kind")])


def main() -> None:
    """Read a job, do it, write its result."""
    real_stdout = take_stdout()
    if sys.argv[1:] == [FORK]:
        _serve(real_stdout)
    else:
        _answer(sys.stdin.buffer.read(), real_stdout)


def _answer(text: bytes, real_stdout: int) -> NoReturn:
    job = _JOB.validate_json(text)
    if not isinstance(job, OnceJob) and job.cpus:
        os.sched_setaffinity(0, job.cpus)
    with os.fdopen(real_stdout, "w") as file:
        file.write(_done(job).model_dump_json() + "\n")
        file.flush()
    sys.stderr.flush()
    os._exit(0)  # some engines crash or hang in their own atexit handlers; nothing is left to do


def _done(job: Job) -> PrepareResult | RunResult | OnceResult:
    if isinstance(job, PrepareJob):
        return prepare(job)
    if isinstance(job, RunJob):
        return run(job)
    from edgeplan.measurement.process.record_bench import first_execution_ms  # noqa: PLC0415  other workers need none of it

    return OnceResult(time_ms=first_execution_ms(job.program, job.cache, job.record))


def _serve(real_stdout: int) -> None:
    """Do each job in a child; end where one fails, which has said why."""
    from edgeplan.engines.onednn import cold  # noqa: F401, PLC0415  before the first fork

    gc.collect()
    gc.freeze()  # what is shared with the children is not looked through, which would copy it
    for line in sys.stdin.buffer:
        child = lifeline.fork()
        if not child:
            signal.alarm(_TIMEOUT_SECONDS)
            try:
                _answer(line, real_stdout)
            except BaseException:  # noqa: BLE001  the child must not go on as the server
                traceback.print_exc()
                os._exit(1)
        _, status = os.waitpid(child, 0)
        if status:
            sys.exit(f"the process {ending(os.waitstatus_to_exitcode(status))}")


def prepare(job: PrepareJob) -> PrepareResult:
    """Build what a setting loads."""
    known = setting(job.setting)
    if not (version := version_of(job.setting)):
        return PrepareResult(reason=f"{known.engine} is not installed")
    start = time.perf_counter()
    try:
        artefact: Artefact = named_object(known.prepare)(job.model, job.inputs, job.folder, job.threads)
        if known.starts_once:
            artefact = _started_once(job, artefact)
    except UnsupportedError as error:
        return PrepareResult(reason=_one_line(error))
    except ColdRunError as error:
        return PrepareResult(reason=error.reason)
    return PrepareResult(engine_version=version, artefact=artefact, prepare_ms=(time.perf_counter() - start) * 1e3)


def _started_once(job: PrepareJob, artefact: Artefact) -> Artefact:
    """Start the program once, and name what it has left among the files that the next one reads."""
    inputs = random_inputs(job.inputs, 0, job.types, job.below)
    with Program(job.setting, artefact, inputs, threads=job.threads) as program:
        program.go()
    left = [path for path in artefact.companions.values() if path not in artefact.files]
    if missing := [path.name for path in left if not path.is_file()]:
        raise UnsupportedError(f"{job.setting} stored no {missing[0]} for this model")
    return artefact.model_copy(update={"files": (*artefact.files, *left)})


def run(job: RunJob) -> RunResult:
    """Start a plan of ours cold in this process, for profiles: many of them, forked from one that has imported everything."""
    from edgeplan import native  # noqa: PLC0415  preparing needs none of it
    from edgeplan.engines.onednn.cold import require_as_planned  # noqa: PLC0415  likewise
    from edgeplan.runtime.library import open_library  # noqa: PLC0415  likewise
    from edgeplan.runtime.native_session import open_session  # noqa: PLC0415  likewise

    files = job.artefact.files
    if job.state == "cached":
        page_cache.read_through(files)
    native.library()
    (_, library), cores = open_library(), tuple(sorted(os.sched_getaffinity(0)))
    inputs, how = random_inputs(job.inputs, job.seed, job.types, job.below), setting(job.setting).options["how"]
    map_code()
    gc.collect()  # to go through all that was imported takes longer than some cold starts
    gc.freeze()
    prepare_machine(files, job.cpus or cores, evicted=job.state == "evicted", usual_us=job.usual_us)
    lost, start = Preemption.now(), time.perf_counter()
    session = open_session(job.artefact.main.parent, library=library.path, processors=cores, **how)
    session.run(inputs)
    cold_ms, lost = (time.perf_counter() - start) * 1e3, Preemption.now().since(lost)
    try:
        require_as_planned(session)
    except UnsupportedError as error:
        return RunResult(reason=_one_line(error))
    for _ in range(job.warm_runs):
        session.run(inputs)
    return RunResult(
        cold_ms=cold_ms,
        stages_ms=session.stages_ms(),
        switches=lost.switches,
        waited_ms=lost.waited_ms,
        stolen_ms=lost.stolen_ms,
        state_reached=True,
    )


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


if __name__ == "__main__":
    main()
