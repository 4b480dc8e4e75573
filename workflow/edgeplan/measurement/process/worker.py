"""Executes one job in a process of its own, `python -m edgeplan.measurement.process.worker`: JSON on stdin and stdout.

With `--fork` it takes one job a line, each done by a child of this process, which has imported everything and loaded no
library.

Engines write to stdout as they please, so the worker keeps the real stdout to itself and sends theirs to stderr.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, NoReturn

import numpy as np
from pydantic import Field, TypeAdapter

from edgeplan.engines.cold import Baseline, BaselineSession, UnsupportedError
from edgeplan.engines.registry import setting
from edgeplan.measurement.preemption import Preemption
from edgeplan.measurement.process import host_memory, page_cache
from edgeplan.measurement.process.counters import Counters, first_touch_ms, reset_peak
from edgeplan.measurement.process.inputs import Array, digest, random_inputs
from edgeplan.measurement.process.interference import together_us
from edgeplan.measurement.process.job import OnceJob, OnceResult, PrepareJob, PrepareResult, RunJob, RunResult
from edgeplan.measurement.process.prepare_machine import prepare_machine
from edgeplan.support import lifeline
from edgeplan.support.answers import take_stdout
from edgeplan.support.subprocesses import ending
from edgeplan.support.tensors import relative_error

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
    from edgeplan.measurement.process.first_execution import first_execution_ms  # noqa: PLC0415  other workers need none of it

    return OnceResult(time_ms=first_execution_ms(job.folder, job.number))


def _serve(real_stdout: int) -> None:
    """Do each job in a child; end where one fails, which has said why."""
    from edgeplan.measurement.process import first_execution  # noqa: F401, PLC0415  before the first fork

    setting("edgeplan").create()
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
    baseline = setting(job.setting).create()
    try:
        baseline.load_library(job.threads)
        start = time.perf_counter()
        artefact = baseline.prepare(job.model, job.inputs, job.folder, job.threads)
        elapsed = (time.perf_counter() - start) * 1e3
    except UnsupportedError as error:
        return PrepareResult(reason=_one_line(error))
    return PrepareResult(engine_version=baseline.version(), artefact=artefact, prepare_ms=elapsed)


def run(job: RunJob) -> RunResult:
    """Run a model cold once, and warm after it."""
    files = job.artefact.files
    if job.state == "cached":  # before the imports, so that these push the model out of the processor's own caches again
        page_cache.read_through(files)
    baseline = setting(job.setting).create()
    try:
        baseline.load_library(job.threads)
        inputs = baseline.prepare_inputs(random_inputs(job.inputs, job.seed, job.types, job.below))
        processors = job.cpus or tuple(sorted(os.sched_getaffinity(0)))
        host_memory.map_code()
        stamps = _stamps(files)
        gc.collect()  # to go through all that was imported takes longer than some cold starts, and is no engine's work
        gc.freeze()
        before = prepare_machine(files, processors, evicted=job.state == "evicted", usual_us=job.usual_us)
        cached = page_cache.cached_share(files)
        session, timed = _cold(baseline, job, inputs)
        beside = max(before, together_us(processors) / job.usual_us) if job.usual_us else 1.0
        _require_unchanged(files, stamps)
    except UnsupportedError as error:
        return RunResult(reason=_one_line(error))
    outputs = {name: np.array(value) for name, value in session.outputs().items()}
    if job.save_outputs is not None:
        np.savez(job.save_outputs, allow_pickle=False, **outputs)
    warm = [_timed_ms(session) for _ in range(job.warm_runs)]
    return timed.model_copy(
        update={
            "engine_version": baseline.version(),
            "warm_ms": tuple(warm),
            "stages_ms": {**timed.stages_ms, **session.stages_ms()},
            "first_touch_ms": first_touch_ms(timed.anonymous_bytes),
            "file_bytes": sum(path.stat().st_size for path in files),
            "cached_before": cached,
            "interference": beside,
            "state_reached": cached == (1.0 if job.state == "cached" else 0.0),
            "output_digest": digest(outputs),
            "output_error": None if job.reference is None else _error(outputs, job.reference),
        }
    )


def _cold(baseline: Baseline, job: RunJob, inputs: Mapping[str, Array]) -> tuple[BaselineSession, RunResult]:
    reset_peak()
    before, lost = Counters.now(), Preemption.now()
    start = time.perf_counter()
    session = baseline.open(job.artefact, inputs, job.threads)
    opened = time.perf_counter()
    session.run()
    done = time.perf_counter()
    after, lost = Counters.now(), Preemption.now().since(lost)
    return session, RunResult(
        cold_ms=(done - start) * 1e3,
        stages_ms={"open": (opened - start) * 1e3, "first_run": (done - opened) * 1e3},
        anonymous_bytes=max(0, after.anonymous - before.anonymous),
        rss_before_bytes=before.rss,
        peak_rss_bytes=after.peak_rss,
        minor_faults=after.minor_faults - before.minor_faults,
        major_faults=after.major_faults - before.major_faults,
        read_bytes=after.read - before.read,
        switches=lost.switches,
        waited_ms=lost.waited_ms,
        stolen_ms=lost.stolen_ms,
    )


def _stamps(files: Sequence[Path]) -> list[tuple[int, int]]:
    return [(status.st_size, status.st_mtime_ns) for status in (path.stat() for path in files)]


def _require_unchanged(files: Sequence[Path], before: Sequence[tuple[int, int]]) -> None:
    """Refuse a run that wrote its files again: an engine that rejects a cache rebuilds it, and says nothing."""
    changed = [path.name for path, old, new in zip(files, before, _stamps(files), strict=True) if old != new]
    if changed:
        raise UnsupportedError(f"the run wrote {', '.join(changed)} again: the engine rejected what was stored for it")


def _timed_ms(session: BaselineSession) -> float:
    start = time.perf_counter()
    session.run()
    return (time.perf_counter() - start) * 1e3


def _error(outputs: Mapping[str, Array], reference: Path) -> float:
    with np.load(reference, allow_pickle=False) as expected:
        return relative_error(list(outputs.values()), [expected[name] for name in expected.files])


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]


if __name__ == "__main__":
    main()
