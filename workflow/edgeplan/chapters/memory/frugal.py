"""Settings that people would pick for little memory are run free and held to limits, beside plans for the same limits.

An engine whose weights are pages of a file lives under any limit, since the system drops pages and reads them again; how slow
it is then depends on how much is read ahead of a page. So each is run by the system's own number, which is told, and by a small
one. What takes longer for an inference than it may is stopped, and what the system kills is told as killed.
"""

from __future__ import annotations

import math
import signal
import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner
from edgeplan.chapters.memory.studies import StudiedModel, held_run, over_idle, stream_answer
from edgeplan.engines.program import OverTimeError
from edgeplan.errors import InfeasibleError
from edgeplan.graph.model_file import model_files
from edgeplan.measurement.process import stock
from edgeplan.measurement.process.memory_group import NoGroupError
from edgeplan.measurement.process.page_cache import FixedReadAheadError, evict, read_ahead_kb, reading_ahead
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import run_apart
from edgeplan.support.workers import ColdRunError

#: Our plans, among the settings.
OWN = "edgeplan"
KILLED = "killed: out of memory"
_KINDS = ("anonymous", "file")
_MAPPED_SHARE = 0.5  # of the model's bytes that are pages of files where its weights are mapped


#: Runs a setting held to a limit over idle, or free.
_Runner = Callable[[int | None], dict[str, Any]]


def _stock(subject: StudiedModel, setting: str) -> _Runner:
    """Return what runs an engine's setting, weights evicted before each run."""
    folder, settings = subject.work / f"frugal-{setting}", subject.settings
    folder.mkdir(exist_ok=True)
    inputs, seconds = stock.inputs_of(subject.model), settings.frugal_seconds
    artefact = stock.prepared(setting, subject.model, inputs, folder, settings.threads)

    def run(limit: int | None) -> dict[str, Any]:
        evict(artefact.files)
        try:
            found = stock.run_stock(
                setting, artefact, inputs, subject.cores.compute, settings.runs, patience_seconds=seconds, budget=limit
            )
        except stock.OutOfMemoryError:
            return {"reason": KILLED, "failures": 1}
        except OverTimeError:
            return {"reason": f"stopped: over {seconds:g} s an inference", "failures": 0}
        times = _times(found.run_ms, found.major_faults)
        if limit is not None:
            return {"failures": found.failures} | times
        return over_idle(found.peak, found.idle, _KINDS) | {"peak": found.peak_over_idle, "idle": found.idle.rss} | times

    return run


def _own(subject: StudiedModel, planner: Planner, limits: Sequence[int]) -> _Runner:
    """Return what runs our plan for a limit; free, the one for the least limit that there is a plan for."""
    plans: dict[int, MemoryPlanned] = {}
    reasons: dict[int, str] = {}
    for limit in limits:
        try:
            plans[limit] = planner.write(limit, Mode.back_to_back, subject.work / f"plan-frugal-{limit}")
        except InfeasibleError as error:
            reasons[limit] = error.what

    def run(limit: int | None) -> dict[str, Any]:
        if limit in reasons or (limit is None and not plans):
            return {"reason": reasons[limit] if limit else next(iter(reasons.values()), "there is no limit")}
        made = plans[min(plans) if limit is None else limit]
        if limit is None:
            settings = planner.programs.settings(subject.settings.runs)
            free = run_apart(made.folder, [made.document.model_dump()], settings)
            over = over_idle(free.phases[0].memory, free.idle, _KINDS)
            return (
                over | {"peak": free.peak_over_idle, "idle": free.idle.rss} | _times(free.phases[0].run_ms, free.major_faults)
            )
        held = held_run(subject, planner, made, limit)
        if held.code == -signal.SIGKILL:
            return {"reason": KILLED, "failures": max(held.failures, 1)}
        inside = stream_answer(made, held)
        return {"failures": held.failures} | _times(inside.phases[0].run_ms, inside.major_faults)

    return run


def frugal(subject: StudiedModel, planner: Planner) -> Iterator[dict[str, Any]]:
    """Run a model by every setting, free and held to every limit, by the system's read-ahead and by a small one."""
    settings = subject.settings
    limits, files = [int(mib * MIB) for mib in settings.frugal_mib], model_files(subject.model)
    runners: dict[str, _Runner] = {}
    mapped: list[str] = []
    for setting in settings.frugal_settings:
        try:
            runners[setting] = _own(subject, planner, limits) if setting == OWN else _stock(subject, setting)
        except ColdRunError as error:
            yield _row(setting, None, read_ahead_kb(subject.work)) | {"reason": error.reason}
    for setting, runner in runners.items():
        free = _row(setting, None, read_ahead_kb(subject.work)) | _run(runner, None)
        if setting == OWN or free.get("file", 0) >= _MAPPED_SHARE * sum(path.stat().st_size for path in files):
            mapped.append(setting)
        yield free
        for limit in limits:
            yield _row(setting, limit, read_ahead_kb(subject.work)) | _run(runner, limit)
    if not settings.frugal_read_ahead_kb:
        return
    for setting in mapped:
        for limit in limits:
            yield _row(setting, limit, settings.frugal_read_ahead_kb) | _run(
                runners[setting], limit, settings.frugal_read_ahead_kb, subject.work
            )


def _row(setting: str, limit: int | None, kilobytes: int | None) -> dict[str, Any]:
    budget = math.nan if limit is None else limit
    return {"case": "frugal", "setting": setting, "budget": budget, "read_ahead": kilobytes}


def _run(runner: _Runner, limit: int | None, kilobytes: int = 0, disk: Path | None = None) -> dict[str, Any]:
    """Run a setting, or say why it did not run."""
    try:
        with reading_ahead(disk, kilobytes) if disk else nullcontext():
            return runner(limit)
    except ColdRunError as error:
        return {"reason": error.reason}
    except (NoGroupError, FixedReadAheadError, TimeoutError) as error:
        return {"reason": str(error).splitlines()[0]}


def _times(run_ms: Sequence[float], major_faults: int) -> dict[str, Any]:
    """Times of inferences but for the first one."""
    return {
        "first_ms": run_ms[0], "median_ms": statistics.median(run_ms[1:]), "least_ms": min(run_ms[1:]),
        "pairs": len(run_ms) - 1, "major_faults": major_faults,
    }  # fmt: skip
