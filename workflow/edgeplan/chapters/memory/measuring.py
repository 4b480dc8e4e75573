"""What is measured of one model: stock engines, plans for budgets, the least peak, and the same held to a limit."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.plan import Cores, MemoryPlanned, Planner
from edgeplan.chapters.memory.settings import MemorySettings
from edgeplan.engines.onnxruntime.reference import reference_outputs
from edgeplan.errors import EdgeplanError, InfeasibleError
from edgeplan.measurement.process import stock
from edgeplan.measurement.process.child import ColdRunError, answered
from edgeplan.measurement.process.inputs import relative_error
from edgeplan.measurement.process.memory_group import Limited, NoGroupError, run_limited
from edgeplan.measurement.process.page_cache import evict
from edgeplan.measurement.process.stock_memory import StockResult
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.planner import Mode
from edgeplan.planning.memory.workload import Reader
from edgeplan.profiling.streaming import StreamRun, StreamRunError, all_resident, answer, run_apart, workload_of
from edgeplan.runtime.streaming.session import WEIGHTS_NAME

#: Columns of a row that are numbers; sizes in bytes, times in milliseconds. What a case does not have is missing.
NUMBERS = (
    "share", "budget", "peak", "anonymous", "file", "shared", "idle", "median_ms", "least_ms", "resident_ms", "predicted_ms",
    "plan_bound_ms", "bound_ms", "bytes_per_ms", "wait_ms", "read", "cpu_ms", "error", "equal", "steps", "parts", "bands",
    "needed", "major_faults", "failures", "pause_ms", "replan_ms", "planning_s", "pairs",
)  # fmt: skip
#: Columns that are text.
TEXTS = ("case", "setting", "reason")
COLUMNS = (*TEXTS, *NUMBERS)
_BACK_TO_BACK = Mode.back_to_back
_WORKER = "edgeplan.runtime.streaming.worker"
_SWITCHED = (0.5, 0.2, 0.5)  # shares that a running session changes between


@dataclass(frozen=True, slots=True)
class Subject:
    """A model that is measured.

    Attributes:
        name: of the model.
        model: its file.
        work: an empty folder.
        cores: of all runs.
        settings: what is measured.
    """

    name: str
    model: Path
    work: Path
    cores: Cores
    settings: MemorySettings


def measured(subject: Subject) -> Iterator[dict[str, Any]]:
    """All rows of a model, one after the other; what cannot be measured has a reason.

    Raises:
        ModelError: our runtime cannot run the model.
    """
    stocks = [_stock(subject, setting) for setting in subject.settings.settings]
    yield from stocks
    default = stocks[0].get("peak", 0)
    if not default:
        return
    (subject.work / "planner").mkdir()
    started = time.perf_counter()
    planner = Planner(subject.model, subject.work / "planner", subject.settings.threads, subject.cores, subject.settings.runs)
    made: dict[float, MemoryPlanned] = {}
    for share in subject.settings.shares:
        row: dict[str, Any] = {"case": "budget", "share": share, "budget": share * default}
        try:
            made[share] = planner.write(int(share * default), _BACK_TO_BACK, subject.work / f"plan-{share:g}")
            row |= _ran(subject, planner, made[share])
        except InfeasibleError as error:
            row |= {"reason": error.what, "needed": planner.least_bytes()}
        except (StreamRunError, EdgeplanError) as error:
            row |= {"reason": error.what.splitlines()[0]}
        yield row | {"planning_s": time.perf_counter() - started}
        started = time.perf_counter()
    least = _least(subject, planner)
    if least is not None:
        yield {"case": "least", "budget": least.budget, **_ran(subject, planner, least)}
        if subject.name == subject.settings.slowed_model:
            yield _slowed(subject, planner, least)
    if subject.name == subject.settings.limited_model:
        yield from _held(subject, planner)
    if len({share for share in _SWITCHED if share in made}) > 1:
        yield _switched(subject, planner, made)


def _stock(subject: Subject, setting: str) -> dict[str, Any]:
    row: dict[str, Any] = {"case": "stock", "setting": setting}
    folder = subject.work / setting
    folder.mkdir()
    try:
        inputs = stock.inputs_of(subject.model)
        artefact = stock.prepared(setting, subject.model, inputs, folder, subject.settings.threads)
        found = stock.run_stock(stock.stock_job(setting, artefact, inputs, subject.cores.compute, subject.settings.runs))
    except ColdRunError as error:
        return row | {"reason": error.reason}
    memory = {key: getattr(found.peak, key) - getattr(found.idle, key) for key in ("anonymous", "file", "shared")}
    return row | memory | {
        "peak": found.peak_over_idle, "idle": found.idle.rss, "median_ms": statistics.median(found.run_ms),
        "least_ms": min(found.run_ms), "cpu_ms": found.cpu_ms / len(found.run_ms), "major_faults": found.major_faults,
    }  # fmt: skip


def _ran(subject: Subject, planner: Planner, made: MemoryPlanned) -> dict[str, Any]:
    """A plan run beside the same program with all weights in memory, and held to its budget by the system."""
    candidate, plan = made.candidate, made.document
    expected = reference_outputs(subject.model, planner.values)
    files = {border.name: subject.work / f"out-{k}.bin" for k, border in enumerate(candidate.program.outputs)}
    settings = replace(planner.settings(subject.settings.runs), outputs=files, steps=True, bandwidth_passes=3)
    beside = run_apart(candidate.folder, subject.settings.threads, [all_resident(candidate.program)], settings)
    alone = replace(settings, steps=False)  # to keep their times takes memory
    found = run_apart(made.folder, subject.settings.threads, [plan.model_dump()], alone)
    outputs = [np.fromfile(files[border.name], border.dtype).reshape(border.shape) for border in candidate.program.outputs]
    phase, wide = found.phases[0], beside.phases[0]
    rate = statistics.median([*found.bytes_per_ms, *beside.bytes_per_ms])
    compute = np.median(np.array(wide.step_ms[1:]), axis=0)
    arena = made.budget - candidate.profile.objects_bytes
    bound = bounds.period_ms(workload_of(candidate.program, compute.tolist()), Reader(rate, candidate.profile.lanes), arena)
    begun = time.perf_counter()
    candidate.planned(made.budget, _BACK_TO_BACK)
    replan = (time.perf_counter() - begun) * 1e3
    memory = {key: getattr(phase.memory, key) - getattr(found.idle, key) for key in ("anonymous", "file", "shared")}
    names = plan.steps
    row = memory | {
        "peak": found.peak_over_idle, "idle": found.idle.rss, "median_ms": statistics.median(phase.run_ms[1:]),
        "least_ms": min(phase.run_ms[1:]), "resident_ms": statistics.median(wide.run_ms[1:]),
        "predicted_ms": plan.predicted_ms, "plan_bound_ms": plan.lower_bound_ms, "bound_ms": bound, "bytes_per_ms": rate,
        "wait_ms": statistics.median(phase.wait_ms[1:]), "read": statistics.median(phase.read_bytes[1:]),
        "cpu_ms": phase.cpu_ms / len(phase.run_ms), "error": relative_error(outputs, [expected[b] for b in files]),
        "equal": float(phase.digests == wide.digests and len(phase.digests) == 1), "steps": len(names),
        "parts": sum("[" in name for name in names), "bands": sum("@" in name for name in names), "replan_ms": replan,
    }  # fmt: skip
    return row | _limited(subject, planner, made, phase.run_ms)


def _limited(subject: Subject, planner: Planner, made: MemoryPlanned, outside_ms: Sequence[float]) -> dict[str, Any]:
    """The same, held to idle and the budget; `pause_ms` is here its median time over that outside."""
    gate = subject.work / f"gate-{made.budget}"
    gate.unlink(missing_ok=True)
    settings = planner.settings(subject.settings.runs)
    job = settings.job(made.folder, subject.settings.threads, [made.document.model_dump()]) | {"gate": str(gate)}
    evict([made.folder / WEIGHTS_NAME])
    try:
        held = run_limited(_WORKER, json.dumps(job).encode(), gate, made.budget)
        inside = _answered(held, made.folder)
    except (NoGroupError, StreamRunError, TimeoutError) as error:
        return {"reason": str(error).splitlines()[0]}
    return {
        "failures": held.failures, "major_faults": inside.major_faults,
        "pause_ms": statistics.median(inside.phases[0].run_ms[1:]) / statistics.median(outside_ms[1:]),
    }  # fmt: skip


def _answered(held: Limited, folder: Path) -> StreamRun:
    return answer(held.code, held.stdout, held.stderr, folder)


def _least(subject: Subject, planner: Planner) -> MemoryPlanned | None:
    """The least budget that a run holds, to an eighth of a MiB."""
    step = MIB // 8
    budget = -(-planner.least_bytes() // step) * step
    for _ in range(8):
        try:
            return planner.write(budget, _BACK_TO_BACK, subject.work / "plan-least")
        except InfeasibleError:
            budget += step
    return None


def _slowed(subject: Subject, planner: Planner, least: MemoryPlanned) -> dict[str, Any]:
    """A processor that computes `slowed_ratio` times as long as weights take to be read, stood for by waiting awake."""
    candidate = least.candidate
    weights = sum(step.weight_bytes for step in candidate.program.steps)
    compute = np.array(candidate.profile.compute_ms)
    factor = subject.settings.slowed_ratio * weights / candidate.profile.bytes_per_ms / compute.sum()
    slowed = tuple(int(1e6 * ms) for ms in compute * max(0.0, factor - 1))
    settings = replace(planner.settings(4), slowed_ns=slowed)
    pairs: list[float] = []
    waits: list[float] = []
    while len(pairs) < subject.settings.slowed_pairs:
        wide = run_apart(candidate.folder, subject.settings.threads, [all_resident(candidate.program)], settings)
        found = run_apart(least.folder, subject.settings.threads, [least.document.model_dump()], settings)
        both = list(zip(found.phases[0].run_ms, wide.phases[0].run_ms, strict=True))[1:]
        pairs += [one / other - 1 for one, other in both]
        own, other = (statistics.median(run.phases[0].wait_ms[1:]) for run in (found, wide))
        waits.append((own - other) / statistics.median(wide.phases[0].run_ms[1:]))
    return {
        "case": "slowed", "setting": "overhead", "predicted_ms": factor, "median_ms": statistics.median(pairs),
        "least_ms": min(pairs), "wait_ms": statistics.median(waits), "pairs": len(pairs), "peak": least.run.peak_over_idle,
    }  # fmt: skip


def _held(subject: Subject, planner: Planner) -> Iterator[dict[str, Any]]:
    """The last stock setting, and our plan, each held to idle and as much."""
    budget = int(subject.settings.limited_mib * MIB)
    setting = subject.settings.settings[-1]
    row: dict[str, Any] = {"case": "held", "setting": setting, "budget": budget}
    gate = subject.work / "gate-held"
    inputs = stock.inputs_of(subject.model)
    folder = subject.work / "held"
    folder.mkdir()
    try:
        artefact = stock.prepared(setting, subject.model, inputs, folder, subject.settings.threads)
        evict(artefact.files)
        job = stock.stock_job(setting, artefact, inputs, subject.cores.compute, subject.settings.runs, str(gate))
        held = run_limited(stock.MODULE, job.model_dump_json().encode(), gate, budget)
        found = answered(StockResult, setting, held.code, held.stdout, held.stderr)
        yield row | {
            "median_ms": statistics.median(found.run_ms[1:]), "major_faults": found.major_faults, "failures": held.failures,
        }  # fmt: skip
    except (NoGroupError, ColdRunError, TimeoutError) as error:
        yield row | {"reason": str(error).splitlines()[0]}
    try:
        made = planner.write(budget, _BACK_TO_BACK, subject.work / "plan-held")
        gate.unlink(missing_ok=True)
        own = planner.settings(subject.settings.runs).job(made.folder, subject.settings.threads, [made.document.model_dump()])
        held = run_limited(_WORKER, json.dumps(own | {"gate": str(gate)}).encode(), gate, budget)
        run = _answered(held, made.folder)
        yield row | {
            "setting": "edgeplan", "median_ms": statistics.median(run.phases[0].run_ms[1:]),
            "major_faults": run.major_faults, "failures": held.failures,
        }  # fmt: skip
    except (InfeasibleError, NoGroupError, StreamRunError, TimeoutError) as error:
        yield row | {"setting": "edgeplan", "reason": str(error).splitlines()[0]}


def _switched(subject: Subject, planner: Planner, made: dict[float, MemoryPlanned]) -> dict[str, Any]:
    """A running session changes its budget, with the program of the smallest one; the longest pause less what is read."""
    smallest = made[min(share for share in _SWITCHED if share in made)]
    candidate = smallest.candidate
    plans = []
    for share in _SWITCHED:
        if share in made:
            planned = candidate.planned(made[share].budget, _BACK_TO_BACK)
            plans.append(planner.documented(candidate, planned))
    settings = replace(planner.settings(2, isolated=True), bandwidth_passes=3)
    found = run_apart(smallest.folder, subject.settings.threads, [plan.model_dump() for plan in plans], settings)
    rate = statistics.median(found.bytes_per_ms)
    pauses = []
    for plan, phase in zip(plans[1:], found.phases[1:], strict=True):
        filled = sum(size for size, after in zip(plan.weight_bytes, plan.after, strict=True) if size and after < 0)
        pauses.append(phase.pause_ms - filled / rate)
    digests = {digest for phase in found.phases for digest in phase.digests}
    return {"case": "switched", "pause_ms": max(pauses), "equal": float(len(digests) == 1), "bytes_per_ms": rate}
