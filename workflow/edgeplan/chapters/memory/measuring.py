"""Rows of one model are measured: stock engines, plans for budgets, the least peak, and the same held to a limit."""

from __future__ import annotations

import json
import math
import signal
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.contained import contained
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner, RunCores
from edgeplan.chapters.memory.studies import StudiedModel, ablated, adapted, changed, cuts, layers, offline
from edgeplan.engines.onnxruntime.reference import reference_outputs
from edgeplan.errors import EdgeplanError, InfeasibleError
from edgeplan.measurement.process import stock
from edgeplan.measurement.process.inputs import relative_error
from edgeplan.measurement.process.memory_group import Limited, NoGroupError, run_limited
from edgeplan.measurement.process.page_cache import evict
from edgeplan.measurement.process.stock_memory import StockResult
from edgeplan.planning.memory import bounds
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import StreamRun, all_resident, run_apart
from edgeplan.runtime.folder import WEIGHTS_NAME
from edgeplan.runtime.streaming.again import workload_of
from edgeplan.support.workers import ColdRunError, answered

#: Columns of a row that are numbers; sizes in bytes, times in milliseconds. What a case does not have is missing.
NUMBERS = (
    "share", "budget", "peak", "anonymous", "file", "shared", "idle", "median_ms", "least_ms", "resident_ms", "predicted_ms",
    "plan_bound_ms", "bound_ms", "bytes_per_ms", "wait_ms", "read", "cpu_ms", "error", "equal", "steps", "parts", "bands",
    "needed", "major_faults", "failures", "pause_ms", "replan_ms", "planning_s", "pairs", "first_ms", "place", "weights",
    "activations", "compute_ms", "load_ms", "cutting_s", "profiling_s", "fresh_ms",
)  # fmt: skip
#: Columns that are text.
TEXTS = ("model", "case", "setting", "reason")
COLUMNS = (*TEXTS, *NUMBERS)
#: Columns that rows of before lack, with their values there.
LATER_COLUMNS = MappingProxyType({"fresh_ms": math.nan})
EARLIER_COLUMNS = tuple(name for name in COLUMNS if name not in LATER_COLUMNS)
_BACK_TO_BACK = Mode.back_to_back
_WORKER = "edgeplan.runtime.streaming.worker"


def measured(subject: StudiedModel) -> Iterator[dict[str, Any]]:
    """Measure the rows of a model, one after the other; what cannot be measured has a reason.

    Raises:
        ModelError: our runtime cannot run the model.
    """
    stocks = [_stock(subject, setting) for setting in subject.settings.settings]
    yield from stocks
    default = stocks[0].get("peak", 0)
    if not default:
        return
    (subject.work / "planner").mkdir()
    planner = Planner(subject.model, subject.work / "planner", subject.settings.threads, subject.cores, subject.settings.runs)
    made: dict[float, MemoryPlanned] = {}
    yield from _budgets(subject, planner, default, made)
    yield from _beside(subject, planner, made)
    yield from _second(subject, default)
    if subject.settings.contained_share:
        yield from contained(planner, subject.work, default, subject.settings.contained_share)


def _budgets(
    subject: StudiedModel, planner: Planner, default: int, made: dict[float, MemoryPlanned]
) -> Iterator[dict[str, Any]]:
    """Plans for shares of what the first setting takes; those that fit are added to `made`."""
    started = time.perf_counter()
    for share in subject.settings.shares:
        plan, row = _attempted(subject, planner, int(share * default), f"plan-{share:g}")
        if plan is not None:
            made[share] = plan
        seconds = time.perf_counter() - started
        yield {"case": "budget", "share": share, "budget": share * default, **row, "planning_s": seconds}
        started = time.perf_counter()


def _attempted(subject: StudiedModel, planner: Planner, budget: int, name: str) -> tuple[MemoryPlanned | None, dict[str, Any]]:
    """A plan for a budget and what it measures; or why there is none, and what is needed where that is proven.

    A run that crashed has no outputs that are right: `equal` is 0.
    """
    made = None
    try:
        made = planner.write(budget, _BACK_TO_BACK, subject.work / name)
        return made, _ran(subject, planner, made)
    except InfeasibleError as error:
        return made, {"reason": error.what} | ({"needed": planner.least_bytes()} if error.proven else {})
    except ColdRunError as error:
        return made, {"reason": error.what.splitlines()[0], "equal": 0.0}
    except EdgeplanError as error:
        return made, {"reason": error.what.splitlines()[0]}


def _beside(subject: StudiedModel, planner: Planner, made: Mapping[float, MemoryPlanned]) -> Iterator[dict[str, Any]]:
    """Measure the rest of a model: its layers, its least budget, and the studies."""
    yield from layers(planner)
    least = _least(subject, planner)
    yield _at_least(subject, planner, least)
    if least is not None and subject.name == subject.settings.slowed_model:
        yield _slowed(subject, planner, least)
    if subject.name == subject.settings.limited_model:
        yield from _held(subject, planner)
    if len(made) > 1:
        yield from _switched(subject, planner, made)
        yield from changed(made[min(made)])
    if (share := subject.settings.ablated_share) in made:
        yield from ablated(subject, planner, made[share])
    if made and subject.name == subject.settings.adapted_model:
        yield from adapted(subject, planner, [made[share] for share in sorted(made)])
    if subject.name in subject.settings.offline_mb:
        yield offline(subject, planner)
    yield from cuts(subject, planner)


def _at_least(subject: StudiedModel, planner: Planner, least: MemoryPlanned | None) -> dict[str, Any]:
    """The least budget that a run holds, as it ran."""
    if least is None:
        return {"case": "least", "reason": "no run held a budget near the proven least"}
    return {"case": "least", "budget": least.budget, **_ran(subject, planner, least)}


def _stock(subject: StudiedModel, setting: str) -> dict[str, Any]:
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


def _ran(subject: StudiedModel, planner: Planner, made: MemoryPlanned) -> dict[str, Any]:
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
    bound = bounds.period_ms(
        workload_of(candidate.program, compute.tolist()), replace(candidate.reader, bytes_per_ms=rate), arena
    )
    memory = {key: getattr(phase.memory, key) - getattr(found.idle, key) for key in ("anonymous", "file", "shared")}
    names = plan.steps
    row = memory | {
        "peak": found.peak_over_idle, "idle": found.idle.rss, "median_ms": statistics.median(phase.run_ms[1:]),
        "least_ms": min(phase.run_ms[1:]), "first_ms": phase.run_ms[0], "resident_ms": statistics.median(wide.run_ms[1:]),
        "predicted_ms": plan.predicted_ms, "plan_bound_ms": plan.lower_bound_ms, "bound_ms": bound, "bytes_per_ms": rate,
        "wait_ms": statistics.median(phase.wait_ms[1:]), "read": statistics.median(phase.read_bytes[1:]),
        "cpu_ms": phase.cpu_ms / len(phase.run_ms), "error": relative_error(outputs, [expected[b] for b in files]),
        "equal": float(phase.digests == wide.digests and len(phase.digests) == 1), "steps": len(names),
        "parts": sum("[" in name for name in names), "bands": sum("@" in name for name in names),
    }  # fmt: skip
    return row | _limited(subject, planner, made, phase.run_ms)


def _limited(subject: StudiedModel, planner: Planner, made: MemoryPlanned, outside_ms: Sequence[float]) -> dict[str, Any]:
    """The same, held to idle and the budget; `pause_ms` is here its median time over that outside."""
    gate = subject.work / f"gate-{made.budget}"
    gate.unlink(missing_ok=True)
    settings = planner.settings(subject.settings.runs)
    job = settings.job(made.folder, subject.settings.threads, [made.document.model_dump()]) | {"gate": str(gate)}
    evict([made.folder / WEIGHTS_NAME])
    found: dict[str, Any] = {}
    try:
        held = run_limited(_WORKER, json.dumps(job).encode(), gate, made.budget)
        found["failures"] = _failures(held)
        inside = _answered(held, made.folder)
    except (NoGroupError, ColdRunError, TimeoutError) as error:
        return found | {"reason": str(error).splitlines()[0]}
    return found | {
        "major_faults": inside.major_faults,
        "pause_ms": statistics.median(inside.phases[0].run_ms[1:]) / statistics.median(outside_ms[1:]),
    }  # fmt: skip


def _answered(held: Limited, folder: Path) -> StreamRun:
    return answered(StreamRun, f"plan in {folder}", held.code, held.stdout, held.stderr)


def _failures(held: Limited) -> int:
    """Failed allocations of a process: one that was killed had one at least."""
    return max(held.failures, int(held.code == -signal.SIGKILL))


def _least(subject: StudiedModel, planner: Planner) -> MemoryPlanned | None:
    """The least budget that a run holds, to an eighth of a MiB."""
    step = MIB // 8
    budget = -(-planner.least_bytes() // step) * step
    for _ in range(8):
        try:
            return planner.write(budget, _BACK_TO_BACK, subject.work / "plan-least")
        except InfeasibleError:
            budget += step
    return None


def _slowed(subject: StudiedModel, planner: Planner, least: MemoryPlanned) -> dict[str, Any]:
    """A processor that computes `slowed_ratio` times as long as weights take to be read, stood for by waiting awake.

    Where this one computes for longer by itself, nothing is slowed; the factor (`predicted_ms`) is below 1 then.
    """
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


def _held(subject: StudiedModel, planner: Planner) -> Iterator[dict[str, Any]]:
    """The last stock setting, and our plan, each held to idle and as much."""
    budget = int(subject.settings.limited_mib * MIB)
    setting = subject.settings.settings[-1]
    theirs: dict[str, Any] = {"case": "held", "setting": setting, "budget": budget}
    ours = theirs | {"setting": "edgeplan"}
    gate = subject.work / "gate-held"
    inputs = stock.inputs_of(subject.model)
    folder = subject.work / "held"
    folder.mkdir()
    try:
        artefact = stock.prepared(setting, subject.model, inputs, folder, subject.settings.threads)
        evict(artefact.files)
        job = stock.stock_job(setting, artefact, inputs, subject.cores.compute, subject.settings.runs, str(gate))
        held = run_limited(stock.MODULE, job.model_dump_json().encode(), gate, budget)
        theirs["failures"] = _failures(held)
        found = answered(StockResult, setting, held.code, held.stdout, held.stderr)
        yield theirs | {"median_ms": statistics.median(found.run_ms[1:]), "major_faults": found.major_faults}
    except (NoGroupError, ColdRunError, TimeoutError) as error:
        yield theirs | {"reason": str(error).splitlines()[0]}
    try:
        made = planner.write(budget, _BACK_TO_BACK, subject.work / "plan-held")
        gate.unlink(missing_ok=True)
        own = planner.settings(subject.settings.runs).job(made.folder, subject.settings.threads, [made.document.model_dump()])
        held = run_limited(_WORKER, json.dumps(own | {"gate": str(gate)}).encode(), gate, budget)
        ours["failures"] = _failures(held)
        run = _answered(held, made.folder)
        yield ours | {"median_ms": statistics.median(run.phases[0].run_ms[1:]), "major_faults": run.major_faults}
    except (InfeasibleError, NoGroupError, ColdRunError, TimeoutError) as error:
        yield ours | {"reason": str(error).splitlines()[0]}


def _switched(subject: StudiedModel, planner: Planner, made: Mapping[float, MemoryPlanned]) -> Iterator[dict[str, Any]]:
    """A running session changes its budget, up and down, by the program of the smallest one, and plans itself each time.

    `pause_ms` is what a change costs: planning, the pause, and what the first inference takes longer than those behind it,
    since it loads what stays from then on, less these bytes (`read`) over the bandwidth.
    """
    smallest = made[min(made)]
    budgets = [made[share].budget for share in (*sorted(made), *sorted(made, reverse=True)[1:])]
    settings = replace(planner.settings(4), bandwidth_passes=3)
    found = run_apart(smallest.folder, subject.settings.threads, budgets, settings)
    rate = statistics.median(found.bytes_per_ms)
    same = float(len({digest for phase in found.phases for digest in phase.digests}) == 1)
    for budget, phase in zip(budgets[1:], found.phases[1:], strict=True):
        longer = phase.run_ms[0] - statistics.median(phase.run_ms[1:])
        more = phase.read_bytes[0] - statistics.median(phase.read_bytes[1:])
        cost = phase.replan_ms + phase.pause_ms + longer - more / rate
        yield {
            "case": "switched", "budget": budget, "replan_ms": phase.replan_ms, "equal": same, "bytes_per_ms": rate,
            "pause_ms": cost, "read": more,
        }  # fmt: skip


def _second(subject: StudiedModel, default: int) -> Iterator[dict[str, Any]]:
    """Some budgets with more computing threads; where no processor is left, reading shares them."""
    settings = subject.settings
    threads = settings.second_threads
    if not settings.second_shares or threads > len(subject.cores.all):
        return
    again = replace(subject, cores=RunCores.of(subject.cores.all, threads), work=subject.work / "second")
    again = replace(again, settings=settings.model_copy(update={"threads": threads}))
    (again.work / "planner").mkdir(parents=True)
    planner = Planner(subject.model, again.work / "planner", threads, again.cores, settings.runs)
    for share in settings.second_shares:
        _, row = _attempted(again, planner, int(share * default), f"plan-{share:g}")
        yield {"case": "second", "setting": f"{threads} threads", "share": share, "budget": share * default, **row}
