"""Studies of one model beside its budgets: layers, what makes plans fast, a session that adapts, planning."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.costed import CostedProgram
from edgeplan.chapters.memory.plan import LIMITS, MemoryPlanned, Planner, RunCores
from edgeplan.chapters.memory.settings import MemorySettings
from edgeplan.errors import InfeasibleError
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import on_demand, run_apart


@dataclass(frozen=True, slots=True)
class StudiedModel:
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
    cores: RunCores
    settings: MemorySettings


def layers(planner: Planner) -> Iterator[dict[str, Any]]:
    """Measure the needs of each layer, no step cut: bytes of weights and of live activations, and times to load and compute."""
    candidate = planner.candidate(planner.forms[0])
    work = candidate.workload
    rows = zip(candidate.program.steps, work.weight_bytes, work.live_bytes, work.compute_ms, strict=True)
    for place, (step, weights, live, ms) in enumerate(rows):
        yield {
            "case": "layer", "setting": step.name, "place": place, "weights": weights, "activations": live, "compute_ms": ms,
            "load_ms": weights / candidate.profile.bytes_per_ms,
        }  # fmt: skip


def cut_name(candidate: CostedProgram) -> str:
    """Name the cut of a program as tables do."""
    limit = candidate.form.limit
    parts = "whole layers" if limit == LIMITS[0] else f"weights in parts of {limit / MIB:g} MiB"
    heights = sorted({region.rows for region in candidate.form.regions})
    return parts + (f", inputs in bands of {' and '.join(map(str, heights))} rows" if heights else "")


def ablated(subject: StudiedModel, planner: Planner, made: MemoryPlanned) -> Iterator[dict[str, Any]]:
    """A plan without what makes it fast: memory that goes back to the system, weights loaded once they are needed."""
    plan = made.document
    static = planner.settings(subject.settings.runs)
    kinds = {
        "edgeplan": (plan.model_dump(), static),
        "without static memory": (plan.model_dump(), replace(static, gives_back=True)),
        "without loading ahead": (on_demand(plan), static),
        "without both": (on_demand(plan), replace(static, gives_back=True)),
    }
    for setting, (schedule, settings) in kinds.items():
        found = run_apart(made.folder, [schedule], settings)
        times = found.phases[0].run_ms[1:]
        yield {
            "case": "ablated", "setting": setting, "budget": made.budget, "peak": found.peak_over_idle,
            "median_ms": statistics.median(times), "least_ms": min(times),
            "wait_ms": statistics.median(found.phases[0].wait_ms[1:]),
        }  # fmt: skip


def adapted(subject: StudiedModel, planner: Planner, made: Sequence[MemoryPlanned]) -> Iterator[dict[str, Any]]:
    """A running session goes through budgets, the smallest one first, with many inferences of each."""
    settings = planner.settings(subject.settings.adapted_runs)
    budgets = [one.budget for one in made]
    found = run_apart(made[0].folder, budgets, settings)
    place = 0
    for budget, phase in zip(budgets, found.phases, strict=True):
        for number, ms in enumerate(phase.run_ms):
            switch = {"replan_ms": phase.replan_ms, "pause_ms": phase.pause_ms} if not number else {}
            peak = phase.memory.rss - found.idle.rss
            yield {"case": "adapted", "place": place, "budget": budget, "peak": peak, "median_ms": ms} | switch
            place += 1


def offline(subject: StudiedModel, planner: Planner) -> dict[str, Any]:
    """Measure planning at a budget of the paper's: storage, cutting, profiling, and planning in the process that runs."""
    budget = int(subject.settings.offline_mb[subject.name] * 1e6)
    row: dict[str, Any] = {"case": "offline", "budget": budget}
    try:
        made = planner.write(budget, Mode.back_to_back, subject.work / "plan-offline")
    except InfeasibleError as error:
        return row | {"reason": error.what}
    found = run_apart(made.folder, [budget, budget], planner.settings(2))
    candidate = made.candidate
    return row | {
        "weights": candidate.program.weights_bytes, "cutting_s": candidate.cutting_s, "profiling_s": candidate.profiling_s,
        "replan_ms": max(phase.replan_ms for phase in found.phases),
    }  # fmt: skip
