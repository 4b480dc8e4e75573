"""Profiles models, and makes and builds the chapter's plans: one of each model first, then others while there is time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import pandas as pd

from edgeplan.chapters.cold_start.evaluation.evidence import EVICTED_PLAN, OPTIMAL
from edgeplan.chapters.cold_start.measuring.artefacts import ColdModel, Tools
from edgeplan.chapters.cold_start.planners.registry import Options, plan_start, with_warm_kernels
from edgeplan.errors import DeviceError, EdgeplanError
from edgeplan.graph.ir import Graph
from edgeplan.measurement.process.job import PrepareResult
from edgeplan.measurement.settings import TimeBudget
from edgeplan.planning.document import Plan, Target, plan_of, plan_text
from edgeplan.planning.optimal import Search
from edgeplan.planning.profile import Disk, Profile
from edgeplan.profiling.disk import kept_disk
from edgeplan.profiling.frame import to_frame
from edgeplan.profiling.subjects import target_of
from edgeplan.support.frames import TableStore
from edgeplan.support.store import Protocol, key_of

_PLANS = Protocol("d26aa98db46a6227")
_WARM = "warm"  # Figure 6 draws it over the number of cores
#: Model, plan and threads.
_Job = tuple[str, str, int]
#: Of kept plans: the document is JSON.
PLAN_COLUMNS = ("document",)


@dataclass(frozen=True, slots=True)
class PlanVariant:
    """Describes a plan that is executed: its planner, where its costs come from, and what it is for.

    An `uneven` one is for one big and one little core, the little one stood for by waiting; a `continuous` one has the kernels
    for later runs beside it (section 3.5); with `disk` its weights come from there.
    """

    planner: str
    costs: Literal["profiled", "predicted"] = "profiled"
    uneven: bool = False
    continuous: bool = False
    disk: bool = False


#: Plans by the name that they have in tables and in params.yaml.
VARIANTS: Mapping[str, PlanVariant] = MappingProxyType(
    {
        "optimal": PlanVariant("optimal"),
        "evicted": PlanVariant("evicted", disk=True),
        "nnv12": PlanVariant("nnv12"),
        "warm": PlanVariant("warm"),
        "K": PlanVariant("K"),
        "K+C": PlanVariant("K+C"),
        "predicted": PlanVariant("optimal", costs="predicted"),
        "continuous": PlanVariant("optimal", continuous=True),
        "asymmetric": PlanVariant("optimal", uneven=True),
        "asymmetric-nnv12": PlanVariant("nnv12", uneven=True),
    }
)


def on_cores(profiles: Sequence[Profile], threads: int) -> tuple[Profile, ...]:
    """Return the profiles for fewer equal cores than they were measured on; none where that width was not measured."""
    narrowed = tuple(replace(p, big_cores=threads) for p in profiles)
    return narrowed if all(threads in p.layers[0].candidates[0].execute_ms for p in profiles) else ()


def uneven(profiles: Sequence[Profile], little_ratio: float) -> tuple[Profile, ...]:
    """Return the profiles on one big and one little core, on which a preparation takes `little_ratio` times as long."""
    return tuple(replace(p, big_cores=1, little_cores=1, little_ratio=little_ratio) for p in profiles)


def planned_once(
    plans: TableStore, search: Search, name: str, profiles: Sequence[Profile], target: Target, disk: Disk | None = None
) -> Plan:
    """Plan a variant, once: plans decide which runs count, and a search with a time limit may end differently.

    The profiles are those of one model, one a home layout, on the cores that the variant is for.
    """
    variant = VARIANTS[name]
    costs = to_frame(profiles).to_json(orient="split", double_precision=12)
    come = [disk.mb_per_s, disk.latency_ms] if disk is not None else None
    # False: that nothing is measured while planning, as the keys of all stored plans say
    parts: list[object] = [variant.planner, come, variant.costs, False, (search.gap, search.time_limit_s), costs]
    parts += [{field: getattr(target, field) for field in target.__slots__}, _PLANS.name]
    key = f"{Path(target.model).stem}-{name}-{target.threads}-{key_of(parts)}"
    if (found := plans.get(key)) is not None:
        return plan_of(found["document"].iloc[0], key)
    options = Options(search=search, disk=disk)
    made = plan_start(profiles, variant.planner, target, costs=variant.costs, options=options)
    plans.commit({key: pd.DataFrame({"document": [plan_text(made)]})})
    return made


#: Columns of `plans.parquet` that are fields of a plan.
_COPIED: tuple[str, ...] = (
    *("threads", "little_ratio", "planner", "costs", "layout", "widen_from", "makespan_ms", "lower_bound_ms", "gap"),
    *("planning_ms", "read_bytes", "cache_bytes", "note"),
)


@dataclass(frozen=True)
class Planning:
    """Makes the plans of the chapter, unless they were made before; beyond its budget the optimal plans alone.

    What the notes say of those left out is `no_time`. The folder of predictors may be absent. Kept are the folders of plans,
    rows of `plans.parquet`, and notes why others are lacking.
    """

    tools: Tools
    plans: TableStore
    predictors: Path
    work: Path
    budget: TimeBudget
    no_time: str
    folders: dict[_Job, PrepareResult] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    def plan(self, models: Sequence[ColdModel], graphs: Mapping[str, Graph], profiles: Mapping[str, Sequence[Profile]]) -> None:
        """Plan all models by their profiles under every layout."""
        by_name, disk = {model.name: model for model in models}, self._measured_disk(models)
        names = (OPTIMAL, *(name for name in VARIANTS if name in self.tools.settings.plans))
        jobs = [(model.name, name, threads) for model in models for name in names for threads in self._thread_counts(name)]
        made, left_out = dict[_Job, dict[str, Any]](), list[_Job]()
        for job in sorted(jobs, key=lambda job: names.index(job[1])):
            model, name, _ = job
            if name != OPTIMAL and self.budget.over:
                left_out.append(job)
            elif (row := self._plan_one(job, by_name[model], graphs[model], profiles[model], disk)) is not None:
                made[job] = row
        self.rows.extend(made[job] for job in jobs if job in made)
        if left_out:
            listed = ", ".join("-".join(map(str, job)) for job in left_out)
            self.notes["plans"] = f"left out were {listed}: {self.no_time}"

    def _measured_disk(self, models: Sequence[ColdModel]) -> Disk | None:
        """Measure the disk through the largest model; None where it cannot be measured, or no plan asks for it."""
        if not any(VARIANTS[name].disk for name in self.tools.settings.plans):
            return None
        largest, seconds = max(models, key=lambda m: m.size), self.tools.settings.lock_timeout_seconds
        try:
            return kept_disk(self.tools.profiles / "disk.json", largest.files, lock_timeout_seconds=seconds)
        except DeviceError as error:
            self.notes["disk"] = error.what
            return None

    def _thread_counts(self, name: str) -> tuple[int, ...]:
        """Return every count where figures compare counts, else all cores; one core for plans of a big and a little one."""
        if name in (OPTIMAL, EVICTED_PLAN, _WARM):
            return self.tools.settings.threads
        return (1,) if VARIANTS[name].uneven else (max(self.tools.settings.threads),)

    def _plan_one(
        self, job: _Job, model: ColdModel, graph: Graph, profiles: Sequence[Profile], disk: Disk | None
    ) -> dict[str, Any] | None:
        """Make and build a plan; return its row, or None where it cannot be made."""
        _, name, threads = job
        variant, settings = VARIANTS[name], self.tools.settings
        if variant.uneven:
            if len(self.tools.cores.all) < 2:  # one big, one little
                self.notes["asymmetric"] = "this machine has one core"
                return None
            known = uneven(profiles, settings.little_ratio)
        else:
            known = on_cores(profiles, threads)
        if not known or (variant.disk and disk is None):
            return None
        costs = known
        if variant.costs == "predicted":
            try:
                costs = on_cores(self.tools.predict(model.path, graph, model.name, self.predictors), threads)
            except EdgeplanError as error:
                self.notes[f"predicted.{model.name}"] = error.what
                return None
        target = target_of(model.path, self.tools.dnnl, threads)
        search = Search(settings.gap, settings.time_limit_s)
        made = planned_once(self.plans, search, name, costs, target, disk if variant.disk else None)
        if variant.continuous:
            made = with_warm_kernels(made, known)
        self.folders[job] = self.tools.plan_folder(model, made, self.work / "-".join(map(str, job)))
        copied = {field: getattr(made, field) for field in _COPIED}
        return {"model": model.name, "plan": name, "steps": len(made.steps), **copied, "document": plan_text(made)}
