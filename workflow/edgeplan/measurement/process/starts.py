"""Starts settings and plans cold, each time in a fresh process, where nothing of the model, engine or its caches is left."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from edgeplan.engines.cold import Artefact
from edgeplan.engines.program import Program
from edgeplan.engines.registry import version_of
from edgeplan.errors import DeviceError
from edgeplan.measurement.others import stolen_ms
from edgeplan.measurement.process import page_cache
from edgeplan.measurement.process.counters import Counters, first_touch_ms, reset_peak
from edgeplan.measurement.process.inputs import job_inputs, outputs_digest, random_inputs
from edgeplan.measurement.process.interference import LIMIT, Interference, least_times, together_us
from edgeplan.measurement.process.job import OnceJob, OnceResult, PrepareJob, PrepareResult, RunJob, RunResult
from edgeplan.measurement.process.prepare_machine import prepare_machine, read_libraries
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.runtime.folder import CACHE_NAME, COLD_START, PlanFolder, read_folder
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.program_file import PROGRAM_BIN, ProgramHead, Section, rows_of, text_of
from edgeplan.support.answers import Answering
from edgeplan.support.subprocesses import module_command
from edgeplan.support.tensors import Array, read_outputs, relative_error
from edgeplan.support.workers import ColdRunError, work_apart

Result = TypeVar("Result", bound=BaseModel)


def run_cold(job: RunJob, timeout_seconds: float = 300.0) -> RunResult:
    """Measure one cold run in a fresh process: a program as a user of the engine would write it (`program`)."""
    files = job.artefact.files
    if job.state == "cached":  # before the imports, so that these push the model out of the processor's own caches again
        page_cache.read_through(files)
    inputs = random_inputs(job.inputs, job.seed, job.types, job.below)
    processors = job.cpus or tuple(sorted(os.sched_getaffinity(0)))
    with Program(
        job.setting, job.artefact, inputs, threads=job.threads, processors=job.cpus, timeout_seconds=timeout_seconds
    ) as program:
        read_libraries(program.number)
        stamps = _stamps(files)
        found = prepare_machine(files, processors, evicted=job.state == "evicted", usual_us=job.usual_us)
        cached = page_cache.cached_share(files)
        reset_peak(program.number)
        before, stolen = Counters.of(program.number), stolen_ms()
        told = {stage: seconds * 1e3 for stage, seconds in program.go().items()}
        after, stolen = Counters.of(program.number), stolen_ms() - stolen
        beside = max(found, together_us(processors) / job.usual_us) if job.usual_us else 1.0
        rewritten = [path.name for path, old, new in zip(files, stamps, _stamps(files), strict=True) if old != new]
        if rewritten:  # an engine that rejects a cache rebuilds it, and says nothing
            return RunResult(reason=f"the run wrote {', '.join(rewritten)} again: the engine rejected what was stored for it")
        outputs = program.outputs()
        warm = tuple(program.run(job.warm_runs))
    if job.save_outputs is not None:
        np.savez(job.save_outputs, *outputs, allow_pickle=False)
    anonymous = max(0, after.anonymous - before.anonymous)
    return RunResult(
        engine_version=version_of(job.setting),
        cold_ms=sum(told.get(stage, 0.0) for stage in ("open", "first_run")),
        warm_ms=warm,
        stages_ms=told,
        first_touch_ms=first_touch_ms(anonymous),
        anonymous_bytes=anonymous,
        rss_before_bytes=before.rss,
        peak_rss_bytes=after.peak,
        minor_faults=after.minor_faults - before.minor_faults,
        major_faults=after.major_faults - before.major_faults,
        read_bytes=after.read - before.read,
        file_bytes=sum(path.stat().st_size for path in files),
        cached_before=cached,
        state_reached=cached == (1.0 if job.state == "cached" else 0.0),
        interference=beside,
        switches=max(0, after.switches - before.switches),
        waited_ms=max(0.0, after.waited_ms - before.waited_ms),
        stolen_ms=max(0.0, stolen),
        output_digest=outputs_digest(outputs),
        output_error=None if job.reference is None else relative_error(outputs, [*read_outputs(job.reference).values()]),
    )


def _stamps(files: Sequence[Path]) -> list[tuple[int, int]]:
    return [(status.st_size, status.st_mtime_ns) for status in (path.stat() for path in files)]


def prepare_offline(job: PrepareJob, timeout_seconds: float = 900.0) -> PrepareResult:
    """Build what a setting loads, in a process of its own: converters crash, and leave libraries and threads behind."""
    what = f"preparing {job.setting} for {job.model.name}"
    return work_apart("edgeplan.measurement.process.worker", job, PrepareResult, what, timeout_seconds)


class Forks:
    """Forks fresh processes from one that has imported everything: to import takes seconds, to fork none.

    The first job waits for the imports. Use it as a context manager.
    """

    def __init__(self) -> None:
        self._process: Answering | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._process is not None:
            self._process.close(None if error is None else 0.0)  # nothing more is asked: it ends

    def run_cold(self, job: RunJob) -> RunResult:
        """Run a plan of our own runtime cold, as `run_cold` does."""
        return self._ask(job, RunResult)

    def first_execution_ms(self, job: OnceJob) -> float:
        """Measure how much longer the first execution of a step takes than its second, in ms of processor time."""
        return self._ask(job, OnceResult).time_ms

    def open(self) -> Answering:
        """Start the process that is forked; the first job does it where nobody did."""
        if self._process is None:
            self._process = Answering(module_command("edgeplan.measurement.process.worker", "--fork"))
        return self._process

    def _ask(self, job: BaseModel, result: type[Result]) -> Result:
        process = self.open()
        process.tell(job.model_dump_json())
        try:
            return result.model_validate_json(process.answer() or b"")
        except ValidationError as error:
            raise ColdRunError(
                f"a job failed in a fresh process{process.words()}", next_step="run the same command again"
            ) from error


#: How often a start is made whose processors were disturbed, or whose pages came or went between the preparation of the page
#: cache and the clock.
ATTEMPTS = 4


@dataclass(frozen=True, slots=True)
class ObservedStart:
    """A cold start, and the least times of the references of two looks, before and after."""

    result: RunResult
    references: ReferenceTimes


def start_cold(
    job: RunJob,
    look: Callable[[], ReferenceTimes],
    watch: Interference | None,
    timeout_seconds: float = 300.0,
    attempts: int = ATTEMPTS,
) -> ObservedStart:
    """Start cold until a start was not disturbed.

    What disturbs is looked for beside the start, never in its own time, so that this favours no engine: by `look`, which times
    the references, and by a watch over the job's processors, or more; None where they are loaded on purpose.

    Returns:
        The first start that was not disturbed, or one that cannot count for another reason; of disturbed ones, the least
        disturbed.
    """
    made: list[ObservedStart] = []
    for _ in range(attempts):
        if watch:
            watch.look()  # the worker waits: processors that are free now may not be when it is ready
        before = look()
        result = run_cold(job.model_copy(update={"usual_us": watch.usual_us if watch else 0.0}), timeout_seconds)
        made.append(ObservedStart(result, least_times((before, look()))))
        if result.reason or (result.state_reached and result.interference <= LIMIT):
            return made[-1]
    reached = [attempt for attempt in made if attempt.result.state_reached]
    return min(reached or made, key=lambda attempt: attempt.result.interference)


_DIGITS = 12


def prepared_plan(folder: Path) -> PrepareResult:
    """Describe a plan folder as a prepared artefact: every file that a first run reads is named in it.

    Its engine version changes with its content.
    """
    plan, program = read_folder(folder, COLD_START), (folder / PROGRAM_BIN).resolve()
    files = [program, *([program.with_name(CACHE_NAME)] if plan.head.cache_bytes else []), *_model_files(program)]
    artefact = Artefact(main=program, files=tuple(files), note=f"layout {plan.head.layout}")
    return PrepareResult(engine_version=f"{plan.made_for.library}+{plan.sha256[:_DIGITS]}", artefact=artefact)


def _model_files(program: Path) -> list[Path]:
    """The model's files that raw weights are made from: beside the plan, else where they were when it was planned."""
    texts, files, raw = rows_of(program, Section.TEXT, Section.FILES, Section.RAW)
    if not len(raw):
        return []
    paths = [Path(text_of(texts, at)) for at in files["path"]]
    return [near.resolve() if (near := program.with_name(path.name)).is_file() else path for path in paths]


def start_apart(
    plan: PlanFolder, values: Mapping[str, Array], repeat: int, cores: Sequence[int], *, evicted: bool
) -> tuple[tuple[float, ...], bool]:
    """Start a plan cold in fresh processes, on random inputs: the time of each start (ms), and whether the plan is continuous.

    A run in this process, on `values`, says what is wrong where a fresh one fails.
    """
    program = plan.head
    executing, preparing = _processors_of(program, cores)
    if preparing and preparing[0] < executing[-1]:  # a fresh process takes the lowest-numbered ones to execute
        raise DeviceError(
            f"little core {preparing[0]} is numbered below big core {executing[-1]}: a fresh process would execute on it",
            where="the device, fields big_cores and little_cores",
            next_step="run without --cold, which takes the cores as they are named",
        )
    fields = {
        "setting": "edgeplan-continuous" if program.continuous else "edgeplan",
        "threads": program.threads,
        "cpus": (*executing, *preparing),
        "state": "evicted" if evicted else "cached",
        **job_inputs(program.inputs),
    }

    def start() -> float:
        try:
            result = run_cold(RunJob.model_validate(fields | {"artefact": prepared_plan(plan.path).artefact}))
            if result.cold_ms is not None:
                return result.cold_ms
            reason = result.reason
        except ColdRunError as error:
            reason = error.reason
        with open_session(plan.path, processors=cores) as session:
            session.run(values)
        what, again = f"cannot start cold: {reason}", "plan the model again: edgeplan plan cold-start"
        raise ColdRunError(what, where=str(plan.path), next_step=again)

    return tuple(start() for _ in range(repeat)), program.continuous


def _processors_of(program: ProgramHead, given: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The processors that execute a program, and those that only prepare, as asymmetric chips have them.

    They are chosen from those given, those that execute first; without any, from those that this process may use.
    """
    executing, preparing = program.threads, 0 if program.equal_cores else program.queues
    found = tuple(given) or tuple(sorted(os.sched_getaffinity(0)))
    if len(found) < executing + preparing:
        raise DeviceError(
            f"the plan needs {executing} processors to execute and {preparing} beside them to prepare, "
            f"there are {len(found[:executing])} and {len(found[executing:])}",
            where="the processors named" if given else "processors that this process may use",
            next_step="name the device that it was planned for with --device, allow more processors, or plan the model again",
        )
    # sorted, as a fresh process takes them: cores of one class stand for each other
    return tuple(sorted(found[:executing])), tuple(sorted(found[executing : executing + preparing]))
