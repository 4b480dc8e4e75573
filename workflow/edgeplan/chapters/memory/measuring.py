"""Rows of a model are measured part by part: stock engines, plans for budgets, the least peak, and what stands beside them."""

from __future__ import annotations

import math
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from edgeplan.chapters.memory import studies
from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.folders import RunCores
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner
from edgeplan.chapters.memory.programs import ModelPrograms
from edgeplan.chapters.memory.settings import MemorySettings
from edgeplan.chapters.memory.studies import ModelBench, StudiedModel, held_run, over_idle, stream_answer
from edgeplan.chapters.memory.turns import CHUNK, busy, in_turns, slowed
from edgeplan.engines.onnxruntime.reference import onnxruntime_reference
from edgeplan.engines.program import OverTimeError
from edgeplan.errors import EdgeplanError, InfeasibleError
from edgeplan.graph.model_file import model_files
from edgeplan.measurement.process import stock
from edgeplan.measurement.process.memory_group import NoGroupError
from edgeplan.measurement.process.page_cache import FixedReadAheadError, evict, read_ahead_kb, reading_ahead
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import run_apart
from edgeplan.runtime.streaming.schedules import BF16
from edgeplan.support.store import Protocol
from edgeplan.support.tensors import relative_error
from edgeplan.support.workers import ColdRunError

#: Our plans, among the settings.
OWN = "edgeplan"
KILLED = "killed: out of memory"
_KINDS = ("anonymous", "file")
_MAPPED_SHARE = 0.5  # of the model's bytes that are pages of files where its weights are mapped
#: Runs a setting held to a limit over idle, or free.
_Runner = Callable[[int | None], dict[str, Any]]


def _stock_runner(subject: StudiedModel, setting: str) -> _Runner:
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
        return over_idle(found, found.peak, _KINDS) | times

    return run


def _own_runner(subject: StudiedModel, planner: Planner, limits: Sequence[int]) -> _Runner:
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
            return over_idle(free, free.phases[0].memory, _KINDS) | _times(free.phases[0].run_ms, free.major_faults)
        held = held_run(subject, planner, made, limit)
        if held.code == -signal.SIGKILL:
            return {"reason": KILLED, "failures": max(held.failures, 1)}
        inside = stream_answer(made, held)
        return {"failures": held.failures} | _times(inside.phases[0].run_ms, inside.major_faults)

    return run


def frugal(subject: StudiedModel, planner: Planner) -> Iterator[dict[str, Any]]:
    """Run a model by every setting that people would pick for little memory, free and held to every limit, beside our plans.

    An engine whose weights are pages of a file lives under any limit, since the system drops pages and reads them again; how
    slow it is then depends on how much is read ahead of a page. So each is run by the system's own number, which is told, and
    by a small one. What takes longer for an inference than it may is stopped, and what the system kills is told as killed.
    """
    settings = subject.settings
    limits, files = [int(mib * MIB) for mib in settings.frugal_mib], model_files(subject.model)
    runners: dict[str, _Runner] = {}
    mapped: list[str] = []
    for setting in settings.frugal_settings:
        try:
            runners[setting] = _own_runner(subject, planner, limits) if setting == OWN else _stock_runner(subject, setting)
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


#: Since 2 a stock engine is started by a file that imports it alone.
_STOCK = Protocol("memory-stock/2")
#: Columns of a row that are numbers; sizes in bytes, times in milliseconds. What a case does not have is missing.
NUMBERS = (
    "share", "budget", "peak", "anonymous", "file", "shared", "idle", "median_ms", "least_ms", "resident_ms", "predicted_ms",
    "plan_bound_ms", "bound_ms", "bytes_per_ms", "wait_ms", "read", "cpu_ms", "error", "equal", "steps", "parts", "bands",
    "needed", "major_faults", "failures", "pause_ms", "replan_ms", "planning_s", "pairs", "first_ms", "place", "weights",
    "activations", "compute_ms", "load_ms", "cutting_s", "profiling_s", "ratio", "factor", "read_ahead",
    "resident_peak", "full_ms",
)  # fmt: skip
#: Columns that are text.
TEXTS = ("model", "case", "setting", "reason")
COLUMNS = (*TEXTS, *NUMBERS)
_BACK_TO_BACK = Mode.back_to_back
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class RowsPart:
    """A part of a model's rows is measured at once, and kept once it is measured.

    Attributes:
        name: unique among those of a model.
        seconds, inferences: estimated to take, whatever the model is, and of it with all weights in memory.
        depends: settings that decide its rows besides threads and inferences, by name.
        bars: whether bars rest on it; these parts of all models are measured first.
    """

    name: str
    rows: Callable[[ModelBench], Iterator[Row]]
    seconds: float
    inferences: int
    depends: Mapping[str, Any] = field(default_factory=dict)
    bars: bool = True

    def estimated(self, inference_ms: float) -> float:
        """Return the seconds that the part takes of a model with such inferences."""
        return self.seconds + self.inferences * inference_ms / 1e3


def _budget(bench: ModelBench, share: float) -> Iterator[dict[str, Any]]:
    """A plan for a share of what the first setting takes, and what it measures; nothing where that did not run."""
    if not bench.default:
        return
    subject, budget, started = bench.subject, bench.budget(share), time.perf_counter()
    name = f"budget {share:g}"
    _, found = _attempted(subject, bench.planner, partial(bench.plan, budget), name)
    seconds = time.perf_counter() - started
    row, *turns = found
    yield {"case": "budget", "share": share, "budget": share * bench.default, **row, "planning_s": seconds}
    yield from turns


def _attempted(
    subject: StudiedModel, planner: Planner, make: Callable[[], MemoryPlanned], name: str
) -> tuple[MemoryPlanned | None, list[dict[str, Any]]]:
    """A plan and what it measures, its turns behind; or why there is none, and what is needed where that is proven.

    A run that crashed has no outputs that are right: `equal` is 0.
    """
    made = None
    try:
        made = make()
        return made, _ran(subject, planner, made, name)
    except InfeasibleError as error:
        return made, [{"reason": error.what} | ({"needed": planner.programs.least_bytes()} if error.proven else {})]
    except ColdRunError as error:
        return made, [{"reason": error.headline, "equal": 0.0}]
    except EdgeplanError as error:
        return made, [{"reason": error.headline}]


def _at_least(bench: ModelBench) -> Iterator[dict[str, Any]]:
    """The least budget that a run holds, as it ran."""
    if bench.least is None:
        yield {"case": "least", "reason": "no run held a budget near the proven least"}
        return
    row, *turns = _ran(bench.subject, bench.planner, bench.least, "least")
    yield {"case": "least", "budget": bench.least.budget, **row}
    yield from turns


def _stock(bench: ModelBench, setting: str) -> Iterator[dict[str, Any]]:
    subject = bench.subject
    row: dict[str, Any] = {"case": "stock", "setting": setting}
    folder = subject.work / setting
    folder.mkdir()
    try:
        found = stock.run_model(setting, subject.model, folder, subject.cores.compute, subject.settings.runs)
    except ColdRunError as error:
        yield row | {"reason": error.reason}
        return
    row |= over_idle(found, found.peak) | {
        "median_ms": statistics.median(found.run_ms), "least_ms": min(found.run_ms), "cpu_ms": found.cpu_ms,
        "major_faults": found.major_faults,
    }  # fmt: skip
    bench.stock[setting] = row
    yield row


def _ran(subject: StudiedModel, planner: Planner, made: MemoryPlanned, name: str) -> list[dict[str, Any]]:
    """A plan run alone, in turns with all weights in memory, and held to its budget by the system; its turns behind its row."""
    candidate, plan = made.candidate, made.document
    expected = onnxruntime_reference(subject.model, planner.programs.values)
    files = {border.name: subject.work / f"out-{k}.bin" for k, border in enumerate(candidate.program.outputs)}
    settings = replace(planner.programs.settings(subject.settings.runs), outputs=files)  # no times of steps: they take memory
    found = run_apart(made.folder, [plan.model_dump()], settings)
    outputs = [np.fromfile(files[border.name], border.dtype).reshape(border.shape) for border in candidate.program.outputs]
    phase = found.phases[0]
    turns = in_turns(candidate, plan.model_dump(), planner.programs, subject.settings.alternations)
    names = plan.steps
    row = over_idle(found, phase.memory) | {
        "median_ms": turns.median(lambda turn: turn.median_ms),
        "least_ms": min(turn.median_ms for turn in turns.turns), "first_ms": phase.run_ms[0],
        "resident_ms": turns.median(lambda turn: turn.resident_ms), "resident_peak": turns.peak,
        "predicted_ms": plan.predicted_ms, "plan_bound_ms": plan.lower_bound_ms,
        "bound_ms": turns.median(lambda turn: turn.bound_ms), "bytes_per_ms": turns.median(lambda turn: turn.bytes_per_ms),
        "wait_ms": turns.median(lambda turn: turn.wait_ms), "read": statistics.median(phase.read_bytes[1:]),
        "pairs": len(turns.turns), "cpu_ms": phase.cpu_ms / len(phase.run_ms),
        "error": relative_error(outputs, [expected[b] for b in files]),
        "equal": float(turns.digests == set(phase.digests) and len(phase.digests) == 1), "steps": len(names),
        "parts": sum("[" in name for name in names), "bands": sum("@" in name for name in names),
    }  # fmt: skip
    return [row | _limited(subject, planner, made, phase.run_ms), *turns.rows(name)]


def _limited(subject: StudiedModel, planner: Planner, made: MemoryPlanned, outside_ms: Sequence[float]) -> dict[str, Any]:
    """The same, held to idle and the budget; `pause_ms` is here its median time over that outside."""
    found: dict[str, Any] = {}
    try:
        held = held_run(subject, planner, made, made.budget)
        found["failures"] = max(held.failures, int(held.code == -signal.SIGKILL))  # one that was killed had one at least
        inside = stream_answer(made, held)
    except (NoGroupError, ColdRunError, TimeoutError) as error:
        return found | {"reason": str(error).splitlines()[0]}
    return found | {
        "major_faults": inside.major_faults,
        "pause_ms": statistics.median(inside.phases[0].run_ms[1:]) / statistics.median(outside_ms[1:]),
    }  # fmt: skip


def _second(bench: ModelBench) -> Iterator[dict[str, Any]]:
    """Some budgets with more computing threads; where no processor is left, reading shares them."""
    subject, settings = bench.subject, bench.subject.settings
    threads = settings.second_threads
    if threads > len(subject.cores.all) or not bench.default:
        return
    again = replace(subject, cores=RunCores.of(subject.cores.all, threads), work=subject.work / "second")
    again = replace(
        again, settings=settings.model_copy(update={"threads": threads, "alternations": min(CHUNK, settings.alternations)})
    )
    (again.work / "planner").mkdir(parents=True)
    planner = Planner(ModelPrograms(subject.model, again.work / "planner", threads, again.cores, settings.runs))
    for share in settings.second_shares:
        make = partial(planner.write, bench.budget(share), _BACK_TO_BACK, again.work / f"plan-{share:g}")
        row, *turns = _attempted(again, planner, make, f"second {share:g}")[1]
        yield {"case": "second", "setting": f"{threads} threads", "share": share, "budget": share * bench.default, **row}
        yield from turns


def _for_least(bench: ModelBench, rows: Callable[[StudiedModel, Planner, MemoryPlanned], Iterator[Row]]) -> Iterator[Row]:
    """Measure what is of the least plan, where there is one."""
    if bench.least is not None:
        yield from rows(bench.subject, bench.planner, bench.least)


def parts_of(model: str, settings: MemorySettings) -> tuple[RowsPart, ...]:
    """Return the parts that the rows of a model are measured in, those that bars rest on first."""
    s, default, found = settings, settings.settings[0], list[RowsPart]()

    def add(
        name: str, rows: Callable[[ModelBench], Iterator[Row]], needs: tuple[float, int], *,
        when: object = True, bars: bool = True, **depends: Any,
    ) -> None:  # fmt: skip
        if when:
            found.append(RowsPart(name, rows, *needs, depends, bars))

    turns: dict[str, Any] = {"alternations": s.alternations}
    plans: dict[str, Any] = {"default": default, **turns}
    for name in s.settings:
        add(f"stock {name}", partial(_stock, setting=name), (4, s.runs), by=_STOCK.name)
    add("least", _at_least, (20, 4 * s.alternations), **turns)
    for share in s.shares:
        add(f"budget {share:g}", partial(_budget, share=share), (8, 4 * s.alternations), **plans)
    how: dict[str, Any] = {"when": model == s.slowed_model, "ratio": s.slowed_ratio, "beside": s.slowed_beside, **turns}
    add("slowed", partial(_for_least, rows=slowed), (30, 10 * s.alternations), **how)
    add("busy", partial(_for_least, rows=busy), (10, 8 * s.alternations), **how)
    how = {name: getattr(s, name) for name in ("frugal_settings", "frugal_mib", "frugal_seconds", "frugal_read_ahead_kb")}
    runs, when = len(s.frugal_settings) * (1 + 2 * len(s.frugal_mib)), model in s.frugal_models
    add("frugal", lambda b: frugal(b.subject, b.planner), (4.0 * runs, 3 * runs), when=when, **how, by=_STOCK.name)
    beside = (default, *(name for name in studies.BESIDE if name in s.settings))
    add("same", partial(studies.same_memory, beside=beside), (15, 6 * s.runs), bars=False, beside=beside)
    add("layers", studies.layer_needs, (1, 0), bars=False)
    share = s.ablated_share
    add("ablated", studies.ablated, (8, 6 * s.runs), when=share, bars=False, default=default, share=share)
    needs, when = (3, len(s.shares) * s.adapted_runs), model == s.adapted_model
    add("adapted", studies.adapted, needs, when=when, bars=False, **plans, shares=s.shares, runs=s.adapted_runs)
    share = s.contained_share
    add("contained", partial(studies.contained, share=share), (60, 120), when=share, default=default, share=share)
    needs, when = (40, 2 * len(s.halved_shares) * s.halved_pairs * s.runs), model == s.halved_model
    how = {"default": default, "shares": s.halved_shares, "pairs": s.halved_pairs}
    add(BF16, studies.halved, needs, when=when, **how)
    when = model in s.offline_mb
    add("offline", studies.plan_effort, (15, 10), when=when, bars=False, budget=s.offline_mb.get(model))
    how = {"threads": s.second_threads, "shares": s.second_shares}
    add("second", _second, (20, 4 * CHUNK), when=s.second_shares, bars=False, **plans, **how)
    return tuple(found)
