"""Studies of one model beside its budgets: layers, what makes plans fast, sessions that adapt, planning, containers, halves."""

from __future__ import annotations

import json
import math
import shutil
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.folders import RunCores, all_bytes
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner, TooSmallError
from edgeplan.chapters.memory.programs import ModelPrograms
from edgeplan.chapters.memory.proof import WORKER, Proof
from edgeplan.chapters.memory.settings import MemorySettings
from edgeplan.errors import EdgeplanError, InfeasibleError
from edgeplan.measurement.process.memory_group import Limited, run_limited
from edgeplan.measurement.process.page_cache import evict
from edgeplan.measurement.process.stock import StockResult
from edgeplan.planning.memory.document import MemoryPlan
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import StreamRun, on_demand, run_apart
from edgeplan.runtime.folder import WEIGHTS_NAME
from edgeplan.runtime.streaming.schedules import BF16, F32, Stored
from edgeplan.support.workers import answered

_STEP_BYTES = MIB // 8  # to which the least budget is looked for
_STEPS = 8


@dataclass(frozen=True, slots=True)
class StudiedModel:
    """A model that is measured: its name and file, an empty folder, processors of all runs, and what is measured."""

    name: str
    model: Path
    work: Path
    cores: RunCores
    settings: MemorySettings


class ModelBench:
    """Keeps what parts of a model share.

    `save` writes the subject's file; its folder is emptied first: a run that was killed may have left some.

    Attributes:
        stock: rows of stock engines, by setting: those measured before, and those that parts add.
    """

    def __init__(
        self, subject: StudiedModel, save: Callable[[Path], None], stock: Mapping[str, Mapping[str, Any]] | None = None
    ) -> None:
        self._subject, self._save, self.stock = subject, save, dict(stock or {})
        self._plans: dict[int, MemoryPlanned | EdgeplanError] = {}

    @cached_property
    def subject(self) -> StudiedModel:
        """Write the model into an empty folder."""
        shutil.rmtree(self._subject.work, ignore_errors=True)
        self._subject.work.mkdir(parents=True)
        self._save(self._subject.model)
        return self._subject

    @cached_property
    def planner(self) -> Planner:
        """The planner, and what it has profiled so far."""
        subject = self.subject
        (subject.work / "planner").mkdir()
        settings = subject.settings
        return Planner(ModelPrograms(subject.model, subject.work / "planner", settings.threads, subject.cores, settings.runs))

    @property
    def default(self) -> int:
        """Bytes that the first stock setting takes over idle; 0 where it does not run."""
        return int(self.stock.get(self._subject.settings.settings[0], {}).get("peak", 0))

    def budget(self, share: float) -> int:
        """Return the bytes of a share of what the first setting takes."""
        return int(share * self.default)

    def plan(self, budget: int) -> MemoryPlanned:
        """A plan for a budget; it is made once."""
        if budget not in self._plans:
            try:
                self._plans[budget] = self.planner.write(budget, Mode.back_to_back, self.subject.work / f"plan-{budget}")
            except EdgeplanError as error:
                self._plans[budget] = error
        found = self._plans[budget]
        if isinstance(found, EdgeplanError):
            raise found
        return found

    def plans(self) -> dict[float, MemoryPlanned]:
        """Plans for the shares of the settings that fit, by share."""
        found: dict[float, MemoryPlanned] = {}
        for share in self._subject.settings.shares:
            try:
                found[share] = self.plan(self.budget(share))
            except EdgeplanError:
                continue
        return found

    @cached_property
    def least(self) -> MemoryPlanned | None:
        """The plan for the least budget that a run holds, to an eighth of a MiB; None if none was found."""
        budget = -(-self.planner.programs.least_bytes() // _STEP_BYTES) * _STEP_BYTES
        for _ in range(_STEPS):
            try:
                return self.planner.write(budget, Mode.back_to_back, self.subject.work / "plan-least")
            except TooSmallError as error:  # runs took more: less than what is enough for them is not worth a try
                budget = max(budget + _STEP_BYTES, -(-error.enough // _STEP_BYTES) * _STEP_BYTES)
            except InfeasibleError:
                budget += _STEP_BYTES
        return None

    def close(self) -> None:
        """Delete the folder with all plans."""
        shutil.rmtree(self._subject.work, ignore_errors=True)


#: The paper's other baselines.
BESIDE = ("ncnn", "ncnn-direct")
ON_DEMAND = "on demand"
_LAYOUTS = 16  # from the least memory of whole layers up, to find a layout
_SLACK_BYTES = MIB
_CONTAINED, _LEAST = "contained", "least"
_SEARCHES = 8
_CONTAINED_RUNS = 3
_KINDS: tuple[Stored, ...] = (F32, BF16)


def held_run(subject: StudiedModel, planner: Planner, made: MemoryPlanned, limit: int) -> Limited:
    """Run a plan, weights evicted before, in a group that holds it to so many bytes over idle."""
    gate = subject.work / f"gate-{limit}"
    gate.unlink(missing_ok=True)
    evict([made.folder / WEIGHTS_NAME])
    settings = planner.programs.settings(subject.settings.runs)
    job = settings.job(made.folder, [made.document.model_dump()]) | {"gate": str(gate)}
    return run_limited(WORKER, json.dumps(job).encode(), gate, limit)


def stream_answer(made: MemoryPlanned, held: Limited) -> StreamRun:
    """Return what the process of a plan measured; ColdRunError where it did not."""
    return answered(StreamRun, f"plan in {made.folder}", held.code, held.stdout, held.stderr)


def over_idle(
    found: StreamRun | StockResult, memory: object, names: Sequence[str] = ("anonymous", "file", "shared")
) -> dict[str, Any]:
    """Return kinds of memory, in bytes, more than the process of a run had when it was idle, its peak, and that."""
    kinds = {name: getattr(memory, name) - getattr(found.idle, name) for name in names}
    return kinds | {"peak": found.peak_over_idle, "idle": found.idle.rss}


def layer_needs(bench: ModelBench) -> Iterator[dict[str, Any]]:
    """Measure the needs of each layer, no step cut: bytes of weights and of live activations, and times to load and compute."""
    candidate = bench.planner.programs.candidate(bench.planner.programs.forms[0])
    work = candidate.workload
    rows = zip(candidate.program.steps, work.weight_bytes, work.live_bytes, work.compute_ms, strict=True)
    for place, (step, weights, live, ms) in enumerate(rows):
        yield {
            "case": "layer", "setting": step.name, "place": place, "weights": weights, "activations": live, "compute_ms": ms,
            "load_ms": weights / candidate.profile.bytes_per_ms,
        }  # fmt: skip


def ablated(bench: ModelBench) -> Iterator[dict[str, Any]]:
    """A plan without what makes it fast: memory that goes back to the system, weights loaded once they are needed."""
    settings = bench.subject.settings
    try:
        made = bench.plan(bench.budget(settings.ablated_share))
    except InfeasibleError:
        return
    plan, static = made.document, bench.planner.programs.settings(settings.runs)
    kinds = {
        "edgeplan": (plan.model_dump(), static),
        "without static memory": (plan.model_dump(), replace(static, gives_back=True)),
        "without loading ahead": (on_demand(plan), static),
        "without both": (on_demand(plan), replace(static, gives_back=True)),
    }
    for setting, (schedule, how) in kinds.items():
        found = run_apart(made.folder, [schedule], how)
        times = found.phases[0].run_ms[1:]
        yield {
            "case": "ablated", "setting": setting, "budget": made.budget, "peak": found.peak_over_idle,
            "median_ms": statistics.median(times), "least_ms": min(times),
            "wait_ms": statistics.median(found.phases[0].wait_ms[1:]),
        }  # fmt: skip


def adapted(bench: ModelBench) -> Iterator[dict[str, Any]]:
    """A running session goes through the budgets that fit, the smallest one first, with many inferences of each."""
    fitting = bench.plans()
    if not fitting:
        return
    made = [fitting[share] for share in sorted(fitting)]
    settings = bench.planner.programs.settings(bench.subject.settings.adapted_runs)
    budgets = [one.budget for one in made]
    found = run_apart(made[0].folder, budgets, settings)
    place = 0
    for budget, phase in zip(budgets, found.phases, strict=True):
        for number, ms in enumerate(phase.run_ms):
            switch = {"replan_ms": phase.replan_ms, "pause_ms": phase.pause_ms} if not number else {}
            peak = phase.memory.rss - found.idle.rss
            yield {"case": "adapted", "place": place, "budget": budget, "peak": peak, "median_ms": ms} | switch
            place += 1


def plan_effort(bench: ModelBench) -> Iterator[dict[str, Any]]:
    """Measure planning at a budget of the paper's: storage, cutting, profiling, and planning in the process that runs."""
    subject, planner = bench.subject, bench.planner
    budget = int(subject.settings.offline_mb[subject.name] * 1e6)
    row: dict[str, Any] = {"case": "offline", "budget": budget}
    try:
        made = planner.write(budget, Mode.back_to_back, subject.work / "plan-offline")
    except InfeasibleError as error:
        yield row | {"reason": error.what}
        return
    found = run_apart(made.folder, [budget, budget], planner.programs.settings(2))
    candidate = made.candidate
    yield row | {
        "weights": candidate.program.weights_bytes, "cutting_s": candidate.cutting_s, "profiling_s": candidate.profiling_s,
        "replan_ms": max(phase.replan_ms for phase in found.phases),
    }  # fmt: skip


def same_memory(bench: ModelBench, beside: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Whole layers on demand, and our plan in as much memory as these and as some stock engines take.

    `median_ms` is ours, `full_ms` theirs, `budget` the memory of both. The paper's third baseline loads a layer once the one
    before has ended and keeps nothing: no cutting, no loading ahead.
    """
    demand = _on_demand(bench)
    theirs = {name: bench.stock[name] for name in beside if name in bench.stock}
    if "peak" not in demand:
        yield {"case": "same", "setting": ON_DEMAND} | demand
    else:
        theirs[ON_DEMAND] = demand
    all_in_memory = all_bytes(bench.planner.programs.candidate(bench.planner.programs.forms[0])) + _SLACK_BYTES
    measured: dict[int, dict[str, Any]] = {}
    for setting, row in theirs.items():
        budget = min(int(row["peak"]), all_in_memory)
        if budget not in measured:
            measured[budget] = _own_in(bench, budget)
        yield {"case": "same", "setting": setting, "budget": row["peak"], "full_ms": row["median_ms"]} | measured[budget]


def _own_in(bench: ModelBench, budget: int) -> dict[str, Any]:
    try:
        made = bench.plan(budget)
        settings = bench.planner.programs.settings(bench.subject.settings.runs)
        return _taken(run_apart(made.folder, [made.document.model_dump()], settings))
    except EdgeplanError as error:
        return {"reason": error.headline}


def _taken(found: StreamRun) -> dict[str, Any]:
    """What a run took, the first inference left out."""
    return {"peak": found.peak_over_idle, "median_ms": statistics.median(found.phases[0].run_ms[1:])}


def _on_demand(bench: ModelBench) -> dict[str, Any]:
    """Run whole layers in the least arena that they have a plan for, each loaded when it is needed."""
    planner = bench.planner
    candidate = planner.programs.candidate(planner.programs.forms[0])
    least = candidate.least_bytes()
    for step in range(_LAYOUTS):
        made = candidate.tried(least + step * max(MIB // 4, least // 100), Mode.back_to_back)
        if made is None:
            continue
        schedule = in_own_step(candidate.documented(made))
        settings = planner.programs.settings(bench.subject.settings.runs)
        return _taken(run_apart(candidate.folder, [schedule], settings))
    return {"reason": "no layout was found near the least memory of whole layers"}


def in_own_step(plan: MemoryPlan) -> dict[str, Any]:
    """The schedule of a plan that keeps no weights and loads none ahead, those of the first step at the end of the last."""
    last = len(plan.steps) - 1
    loads = [offset >= 0 for offset in plan.weight_offset]
    after = [k - 1 if load else -1 for k, load in enumerate(loads)]
    return plan.model_dump() | {"after": after, "again": [last if load and not k else -1 for k, load in enumerate(loads)]}


def contained(bench: ModelBench, share: float) -> Iterator[dict[str, Any]]:
    """Run plans of a model for total budgets, several times each in a fresh group that pays for all that it has in memory.

    Two limits hold `edgeplan-run` from the start of its process on: the least in which a plan was proven, and what our process
    takes idle with a share of the bytes that ONNX Runtime takes over idle, where that ran. A run holds where the process lives,
    waits for no page once all of its code has run, and meets its limit nowhere once it was idle; what is killed or fails does
    not.
    """
    if not bench.default:
        return
    planner, work, more = bench.planner, bench.subject.work, bench.budget(share)
    ways: dict[str, Callable[[], MemoryPlanned]] = {
        _LEAST: lambda: least_total(planner, work / "contained-least"),
        f"{100 * share:g} %": lambda: total_plan(planner, planner.idle_in_group + more, work / "contained-share"),
    }
    for setting, plan in ways.items():
        try:
            made = plan()
            limit = made.budget + planner.beside_bytes
            for place in range(_CONTAINED_RUNS):
                row = {"case": _CONTAINED, "setting": setting, "place": place, "budget": limit}
                yield row | _row_of(planner.prover(made.run.files).contained(made.folder, limit))
        except EdgeplanError as error:
            yield {"case": _CONTAINED, "setting": setting, "reason": error.headline}
        finally:
            planner.hold_over_idle()


def total_plan(planner: Planner, limit: int, folder: Path) -> MemoryPlanned:
    """A plan for a limit of the whole process."""
    planner.hold_total()
    return planner.write(limit - planner.beside_bytes, Mode.back_to_back, folder)


def least_total(planner: Planner, folder: Path) -> MemoryPlanned:
    """The plan for the least limit of the whole process that one was proven in; each refusal says what to try next."""
    limit = planner.programs.least_bytes() + planner.idle_in_group
    for _ in range(_SEARCHES):
        try:
            return total_plan(planner, limit, folder)
        except TooSmallError as refusal:
            limit, last = max(limit + MIB, refusal.enough + planner.beside_bytes), refusal
    raise last


def _row_of(proof: Proof) -> dict[str, Any]:
    """The columns of a run in a group; one that was killed or failed had an allocation that hit the limit."""
    if proof.reason:
        return {"reason": proof.reason}
    return {
        "idle": proof.idle_bytes, "peak": proof.peak_bytes, "failures": max(proof.failures, int(bool(proof.ended))),
        "major_faults": proof.major_faults, "reason": proof.ended,
    }  # fmt: skip


def halved(bench: ModelBench) -> Iterator[dict[str, Any]]:
    """Measure plans with weights whole and halved, process by process in turns."""
    subject, default, planners = bench.subject, bench.default, dict[Stored, Planner]()
    settings = subject.settings
    for kind in _KINDS:
        (subject.work / kind).mkdir()
        folder, threads, runs = subject.work / kind, settings.threads, settings.runs
        planners[kind] = Planner(ModelPrograms(subject.model, folder, threads, subject.cores, runs, kind))
    for share in settings.halved_shares:
        row: dict[str, Any] = {"case": BF16, "share": share, "budget": share * default}
        made: dict[Stored, MemoryPlanned] = {}
        for kind, planner in planners.items():
            try:
                made[kind] = planner.write(int(share * default), Mode.back_to_back, subject.work / f"plan-{kind}-{share:g}")
            except InfeasibleError as error:
                yield row | {"setting": kind, "reason": error.what}
        found_runs: dict[Stored, list[StreamRun]] = {kind: [] for kind in made}
        for turn in range(settings.halved_pairs):
            for kind in reversed(made) if turn % 2 else made:  # none is always the first
                plan, how = made[kind], planners[kind].programs.settings(settings.runs)
                found_runs[kind].append(run_apart(plan.folder, [plan.document.model_dump()], how))
        for kind, found in found_runs.items():
            yield row | {"setting": kind} | _over_runs(made[kind], found)


def _over_runs(made: MemoryPlanned, runs: list[StreamRun]) -> dict[str, Any]:
    """Summarise runs of one plan; the first inference of each process waits for what stays, and is left out."""
    phases = [run.phases[0] for run in runs]
    times, waits, read = (
        [value for phase in phases for value in getattr(phase, name)[1:]] for name in ("run_ms", "wait_ms", "read_bytes")
    )
    return {
        "peak": max(run.peak_over_idle for run in runs), "idle": runs[0].idle.rss, "median_ms": statistics.median(times),
        "least_ms": min(times), "wait_ms": statistics.median(waits), "read": statistics.median(read),
        "predicted_ms": made.document.predicted_ms, "plan_bound_ms": made.document.lower_bound_ms,
        "bytes_per_ms": made.document.bytes_per_ms, "error": math.nan if made.error is None else made.error,
        "pairs": len(runs), "weights": made.candidate.program.weights_bytes,
    }  # fmt: skip
