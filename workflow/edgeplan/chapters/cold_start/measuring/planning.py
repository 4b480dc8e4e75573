"""Makes and builds the plans of the chapter: a plan of each model first, then further ones while there is time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from edgeplan.chapters.cold_start.evaluation.evidence import EVICTED_PLAN, OPTIMAL
from edgeplan.chapters.cold_start.measuring.artefacts import ColdModel
from edgeplan.chapters.cold_start.measuring.tools import Tools
from edgeplan.chapters.cold_start.measuring.variants import VARIANTS, on_cores, plan_row, planned_once, uneven
from edgeplan.chapters.cold_start.planners.later import with_warm_kernels
from edgeplan.errors import DeviceError, EdgeplanError
from edgeplan.graph.ir import Graph
from edgeplan.measurement.budget import TimeBudget
from edgeplan.measurement.process.job import PrepareResult
from edgeplan.planning.document import Plan
from edgeplan.planning.optimal import Search
from edgeplan.planning.profile import Disk, Profile
from edgeplan.profiling.disk import kept_disk
from edgeplan.profiling.target import target_of
from edgeplan.support.table_store import TableStore

_WARM = "warm"  # Figure 6 draws it over the number of cores
#: Model, plan and threads.
_Job = tuple[str, str, int]


@dataclass
class PlanningResult:
    """The result of planning holds plans, folders, rows and notes.

    Attributes:
        folders: plan folders to run.
        documents: the plans, by the names of their files.
        rows: rows of `plans.parquet`.
        notes: what was not planned and why, by topic.
    """

    folders: dict[_Job, PrepareResult] = field(default_factory=dict)
    documents: dict[str, Plan] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


class Planning:
    """This class makes the plans of the chapter.

    Args:
        tools: of the device, with the settings of the chapter.
        plans: plans made before.
        predictors: folder of the device's predictors; may be absent.
        work: folder of the plan folders.
        budget: beyond it the optimal plans alone are made.
        no_time: what the notes say of those left out.
    """

    def __init__(self, tools: Tools, plans: TableStore, predictors: Path, work: Path, budget: TimeBudget, no_time: str) -> None:
        self._tools, self._plans, self._predictors = tools, plans, predictors
        self._work, self._budget, self._no_time = work, budget, no_time
        self._settings = tools.settings
        self._search = Search(tools.settings.gap, tools.settings.time_limit_s)

    def plan(
        self, models: Sequence[ColdModel], graphs: Mapping[str, Graph], profiles: Mapping[str, Sequence[Profile]]
    ) -> PlanningResult:
        """Plan all models by their profiles under every layout."""
        found, by_name = PlanningResult(), {model.name: model for model in models}
        disk = self._measured_disk(models, found.notes)
        names = (OPTIMAL, *(name for name in VARIANTS if name in self._settings.plans))
        jobs = [(model.name, name, threads) for model in models for name in names for threads in self._thread_counts(name)]
        made, left_out = dict[_Job, dict[str, Any]](), list[_Job]()
        for job in sorted(jobs, key=lambda job: names.index(job[1])):
            model, name, threads = job
            if name != OPTIMAL and self._budget.over:
                left_out.append(job)
                continue
            row = self._plan_one(found, by_name[model], graphs[model], name, threads, profiles[model], disk)
            if row is not None:
                made[job] = row
        found.rows += [made[job] for job in jobs if job in made]
        if left_out:
            listed = ", ".join(f"{model}-{name}-{threads}" for model, name, threads in left_out)
            found.notes["plans"] = f"left out were {listed}: {self._no_time}"
        return found

    def _measured_disk(self, models: Sequence[ColdModel], notes: dict[str, str]) -> Disk | None:
        """Measure the disk through the largest model; None where it cannot be measured, or no plan asks for it."""
        if not any(VARIANTS[name].disk for name in self._settings.plans):
            return None
        largest = max(models, key=lambda m: sum(path.stat().st_size for path in m.files))
        try:
            lock_timeout_seconds = self._settings.lock_timeout_seconds
            return kept_disk(self._tools.profiles / "disk.json", largest.files, lock_timeout_seconds=lock_timeout_seconds)
        except DeviceError as error:
            notes["disk"] = error.what
            return None

    def _thread_counts(self, name: str) -> tuple[int, ...]:
        """Return every count where figures compare counts, else all cores; one core for plans of a big and a little one."""
        if name in (OPTIMAL, EVICTED_PLAN, _WARM):
            return self._settings.threads
        return (1,) if VARIANTS[name].uneven else (max(self._settings.threads),)

    def _plan_one(
        self,
        found: PlanningResult,
        model: ColdModel,
        graph: Graph,
        name: str,
        threads: int,
        profiles: Sequence[Profile],
        disk: Disk | None,
    ) -> dict[str, Any] | None:
        """Make and build a plan; return its row, or None where it cannot be made."""
        variant = VARIANTS[name]
        if variant.uneven:
            if len(self._tools.cores.all) < 2:  # one big, one little
                found.notes["asymmetric"] = "this machine has one core"
                return None
            known = uneven(profiles, self._settings.little_ratio)
        else:
            known = on_cores(profiles, threads)
        if not known or (variant.disk and disk is None):
            return None
        costs = known
        if variant.costs == "predicted":
            try:
                costs = on_cores(self._tools.predict(model.path, graph, model.name, self._predictors), threads)
            except EdgeplanError as error:
                found.notes[f"predicted.{model.name}"] = error.what
                return None
        target = target_of(model.path, self._tools.dnnl, threads)
        made = planned_once(self._plans, self._search, name, costs, target, disk if variant.disk else None)
        if variant.continuous:
            made = with_warm_kernels(made, known)
        stem = f"{model.name}-{name}-{threads}"
        found.folders[model.name, name, threads] = self._tools.plan_folder(model, made, self._work / stem)
        found.documents[stem] = made
        return plan_row(model.name, name, made)
