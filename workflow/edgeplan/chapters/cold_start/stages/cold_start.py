"""Stage `cold_start`: models profiled, plans made and executed beside the stock engines; all that measures is here."""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.cold_start.evaluation.evidence import EVICTED_PLAN, FRAMES, OPTIMAL, TABLE2_CONV
from edgeplan.chapters.cold_start.measuring.artefacts import ArtefactStore, ColdModel
from edgeplan.chapters.cold_start.measuring.bench import Bench, SharedJournal, measure_all, stored_only
from edgeplan.chapters.cold_start.measuring.checks import COLUMNS as CHECK_COLUMNS
from edgeplan.chapters.cold_start.measuring.checks import check_outputs
from edgeplan.chapters.cold_start.measuring.energy import energy_or_reason
from edgeplan.chapters.cold_start.measuring.timeline import COLUMNS as SPAN_COLUMNS
from edgeplan.chapters.cold_start.measuring.timeline import measured_timeline, timeline_rows
from edgeplan.chapters.cold_start.measuring.tools import Tools
from edgeplan.chapters.cold_start.measuring.variants import (
    VARIANTS,
    PlanStore,
    on_cores,
    plan_row,
    planned_timeline,
    uneven,
)
from edgeplan.chapters.cold_start.planners.later import with_warm_kernels
from edgeplan.chapters.cold_start.settings import Params
from edgeplan.devices.config import load_device
from edgeplan.devices.machine import environment
from edgeplan.errors import DeviceError, EdgeplanError, StoreError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.cost import graph_macs, graph_parameters
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.budget import Budget
from edgeplan.measurement.process.job import PrepareResult
from edgeplan.planning.document import Plan, write_plan
from edgeplan.planning.optimal import Search
from edgeplan.planning.profile import Disk, Profile
from edgeplan.profiling.frame import to_frame
from edgeplan.support.files import write_atomically, write_json
from edgeplan.support.frames import write_parquet
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

log = logging.getLogger(__name__)
#: Files of the stage; `plans/` beside them holds the plan documents.
DOCUMENTS = (*(f"{name}.parquet" for name in FRAMES), "notes.json", "environment.json")
_PLANS = "plans"
_SNAPSHOT = "snapshot"
_PROFILES_SHARE = 0.5  # of the budget; the rest is for runs
_WARM = "warm"  # Figure 6 draws it over the number of cores


def measure_cold_start(params: Params, *, device: Path, predictors: Path, rows: Path, work: Path, measured: Path) -> None:
    """Measure what the rows lack, and write all of it.

    Args:
        params: params.yaml.
        device: the device file.
        predictors: folder of the device's predictors, for plans from predicted costs; may be absent.
        rows: rows of earlier runs: profiles, plans, runs, and a snapshot of the written files.
        work: models, artefacts and plan folders; may be deleted, costs only building again.
        measured: where the tables of this stage go.

    Raises:
        StoreError: only stored rows may be used and there are none.
        EdgeplanError: of the profiler, the planners, the runtime and the baselines.
    """
    if stored_only():
        _restore(rows / _SNAPSHOT, measured)
        return
    tools = Tools(load_device(device), params.cold_start, rows / "profiles")
    _Stage(params, tools, rows, work.resolve(), predictors).write(measured)
    shutil.rmtree(rows / _SNAPSHOT, ignore_errors=True)
    _copy(measured, rows / _SNAPSHOT)


def _restore(snapshot: Path, measured: Path) -> None:
    if not all((snapshot / name).is_file() for name in DOCUMENTS):
        raise StoreError(
            "there are no stored measurements of cold starts",
            where=str(snapshot),
            next_step="unset EDGEPLAN_STORED_ROWS_ONLY to measure here, or restore the shipped rows with git checkout",
        )
    _copy(snapshot, measured)


def _copy(source: Path, target: Path) -> None:
    for name in (*DOCUMENTS, *(f"{_PLANS}/{path.name}" for path in sorted((source / _PLANS).glob("*.json")))):
        write_atomically(target / name, lambda temporary, name=name: shutil.copyfile(source / name, temporary))  # type: ignore[misc]


@dataclass
class _Planned:
    """What planning gave: plan folders to run, and the tables."""

    folders: dict[tuple[str, str, int], PrepareResult] = field(default_factory=dict)
    documents: dict[str, Plan] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    spans: list[pd.DataFrame] = field(default_factory=list)


class _Stage:
    def __init__(self, params: Params, tools: Tools, rows: Path, work: Path, predictors: Path) -> None:
        self._settings, self._seed = params.cold_start, params.seed
        self._tools, self._rows, self._work = tools, rows, work
        self._plans = PlanStore(rows / "plans", Search(self._settings.gap, self._settings.time_limit_s))
        self._notes: dict[str, str] = {}
        self._disk: Disk | None = None
        self._budget = Budget.of(self._settings.budget_seconds)
        self._predictors = predictors

    def write(self, measured: Path) -> None:
        """Do all of it, and write the tables."""
        graphs = {name: COLD_START_MODELS[name]() for name in self._settings.models}
        models = [self._export(name, graph) for name, graph in graphs.items()]
        single = self._export(TABLE2_CONV, table2_graph())
        profiles = self._profiles([*models, single], graphs | {TABLE2_CONV: table2_graph()})
        alone = profiles.pop(TABLE2_CONV)
        models = [model for model in models if model.name in profiles]
        store = ArtefactStore(self._work / "artefacts")
        checks = [self._check(m, graphs[m.name], store) for m in models]
        planned = self._plan(models, graphs, profiles)
        with SharedJournal(self._rows / "runs.jsonl", self._tools.device.name) as journal:
            bench = Bench(self._settings, self._tools.cores.all, self._seed, store, journal, self._budget)
            runs, bandwidth, left_out = measure_all(bench, models, planned.folders)
        if left_out:
            self._notes["runs"] = f"{left_out} further repeats were left out: {self._no_time}"
        energy, reason = energy_or_reason(bench, models, planned.folders, self._rows / "energy.jsonl")
        if reason:
            self._notes["energy"] = reason
        if not self._settings.load_percents:
            self._notes["load"] = "cold_start.load_percents is empty"
        spans = self._timelines(models, profiles, planned)
        every = [p for model in models for p in profiles[model.name]] + list(alone)
        frames = {
            "runs": runs.assign(slowness=self._slowness(runs)),
            "bandwidth": bandwidth,
            "profiles": to_frame(every),
            "plans": pd.DataFrame(planned.rows),
            "models": pd.DataFrame([_model_row(m, graphs[m.name]) for m in models]),
            "checks": pd.concat(checks, ignore_index=True) if checks else pd.DataFrame(columns=list(CHECK_COLUMNS)),
            "spans": spans,
            "energy": energy,
        }
        for name in FRAMES:
            write_parquet(frames[name], measured / f"{name}.parquet")
        for name, plan in planned.documents.items():
            write_plan(plan, measured / _PLANS / f"{name}.json")
        write_json(measured / "notes.json", self._notes)
        latest = float(runs["measured_at"].max()) if len(runs) else time.time()
        about = environment() | {"load_1min": None, "measured_at": time.strftime("%Y-%m-%d", time.gmtime(latest))}
        write_json(measured / "environment.json", about | {"library": f"oneDNN {self._tools.dnnl.info.version}"})

    @property
    def _no_time(self) -> str:
        return f"cold_start.budget_seconds ({self._settings.budget_seconds:g}) was over"

    def _profiles(self, models: Sequence[ColdModel], graphs: Mapping[str, Graph]) -> dict[str, tuple[Profile, ...]]:
        """Profiles by model, each within its part of the budget; at least the first and the last one are made."""
        budget, found = self._budget.part(_PROFILES_SHARE), {}
        for number, model in enumerate(models):
            left = len(models) - number
            if 1 < left < len(models) and budget.over and not self._tools.profiled(graphs[model.name]):
                self._notes[f"profile.{model.name}"] = f"the model was left out: {self._no_time}"
                continue
            made = self._tools.profile(model.path, graphs[model.name], model.name, budget.part(1 / left))
            if noise := max(profile.noise for profile in made):
                self._notes[f"noise.{model.name}"] = f"{100 * noise:.1f} % of the costs were measured beside other work only"
            found[model.name] = made
        return found

    def _slowness(self, runs: pd.DataFrame) -> pd.Series[float]:
        """Of runs under a background load apart: the references are slowed by it."""
        parts = [self._tools.slowness(part) for _, part in runs.groupby(runs["load_percent"] > 0)]
        return pd.concat(parts).reindex(runs.index) if parts else pd.Series(dtype="float64")

    def _export(self, name: str, graph: Graph) -> ColdModel:
        """The ONNX file of a model, written unless it is there: plan folders know it by its time stamp."""
        path = self._work / "models" / f"{name}.onnx"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            building = path.with_name(f"{name}.building.onnx")
            save_onnx(graph, building, self._seed)
            building.replace(path)
        return ColdModel(name, path, {i: tuple(graph.shape(i)) for i in graph.inputs})

    def _check(self, model: ColdModel, graph: Graph, store: ArtefactStore) -> pd.DataFrame:
        log.info("comparing outputs of %s", model.name)
        return check_outputs(
            self._tools.dnnl,
            model,
            graph,
            lambda: store.reference(model, self._seed),
            threads=self._settings.threads,
            seed=self._seed,
            choices=self._settings.checked_choices,
            kept=self._rows / "checks",
            lock_timeout_seconds=self._settings.lock_timeout_seconds,
        )

    def _plan(
        self, models: Sequence[ColdModel], graphs: Mapping[str, Graph], profiles: Mapping[str, Sequence[Profile]]
    ) -> _Planned:
        planned = _Planned()
        self._disk = self._measured_disk(models)
        for model in models:
            mine = profiles[model.name]
            for name in (OPTIMAL, *(n for n in VARIANTS if n in self._settings.plans)):
                for threads in self._thread_counts(name):
                    self._plan_one(planned, model, graphs[model.name], name, threads, mine)
        return planned

    def _measured_disk(self, models: Sequence[ColdModel]) -> Disk | None:
        """The disk, read through the largest model; None where it cannot be measured, or no plan asks for it."""
        if not any(VARIANTS[name].disk for name in self._settings.plans):
            return None
        largest = max(models, key=lambda m: sum(path.stat().st_size for path in m.files))
        try:
            return self._tools.disk(largest.files)
        except DeviceError as error:
            self._notes["disk"] = error.what
            return None

    def _thread_counts(self, name: str) -> tuple[int, ...]:
        """For every count where figures compare counts, else for all cores; uneven ones for the one big core."""
        if name in (OPTIMAL, EVICTED_PLAN, _WARM):
            return self._settings.threads
        return (1,) if VARIANTS[name].uneven else (max(self._settings.threads),)

    def _plan_one(
        self, planned: _Planned, model: ColdModel, graph: Graph, name: str, threads: int, profiles: Sequence[Profile]
    ) -> None:
        variant = VARIANTS[name]
        if variant.uneven:
            if len(self._tools.cores.all) < 2:  # noqa: PLR2004  one big, one little
                self._notes["asymmetric"] = "this machine has one core"
                return
            known = uneven(profiles, self._settings.little_ratio)
        else:
            known = on_cores(profiles, threads)
        if not known or (variant.disk and self._disk is None):
            return
        costs = known
        if variant.costs == "predicted":
            try:
                costs = on_cores(self._tools.predict(model.path, graph, model.name, self._predictors), threads)
            except EdgeplanError as error:
                self._notes[f"predicted.{model.name}"] = error.what
                return
        reprofiler = (lambda: self._tools.reprofiler(model.path, graph)) if variant.reprofile else None
        disk = self._disk if variant.disk else None
        made = self._plans.make(name, costs, self._tools.target(model.path, threads), reprofiler, disk)
        if variant.continuous:
            made = with_warm_kernels(made, known)
        folder = self._work / "plans" / f"{model.name}-{name}-{threads}"
        planned.folders[model.name, name, threads] = self._tools.plan_folder(model, made, folder)
        planned.documents[f"{model.name}-{name}-{threads}"] = made
        planned.rows.append(plan_row(model.name, name, made, known))

    def _timelines(
        self, models: Sequence[ColdModel], profiles: Mapping[str, Sequence[Profile]], planned: _Planned
    ) -> pd.DataFrame:
        """The optimal plan on all cores, planned and measured."""
        threads = max(self._settings.threads)
        parts = []
        for model in models:
            made = planned.documents.get(f"{model.name}-{OPTIMAL}-{threads}")
            if made is None:
                continue
            spans = planned_timeline(made, on_cores(profiles[model.name], threads))
            both = [pd.DataFrame(timeline_rows("planned", spans), columns=list(SPAN_COLUMNS))]
            if self._settings.timeline_runs:
                both.append(
                    measured_timeline(
                        planned.folders[model.name, OPTIMAL, threads],
                        threads=threads,
                        cores=self._tools.cores.big,
                        inputs=model.inputs,
                        seed=self._seed,
                        runs=self._settings.timeline_runs,
                        kept=self._rows / "timelines",
                        lock_timeout_seconds=self._settings.lock_timeout_seconds,
                    )
                )
            parts.append(pd.concat(both, ignore_index=True).assign(model=model.name, plan=OPTIMAL, threads=threads))
        columns = ["model", "plan", "threads", *SPAN_COLUMNS]
        return pd.concat(parts, ignore_index=True)[columns] if parts else pd.DataFrame(columns=columns)


def _model_row(model: ColdModel, graph: Graph) -> dict[str, Any]:
    size = sum(path.stat().st_size for path in model.files)
    return {"model": model.name, "parameters": graph_parameters(graph), "model_bytes": size, "macs": graph_macs(graph)}


def table2_graph() -> Graph:
    """The convolution of Table 2: 3 x 3, stride 1, 64 to 192 channels; GoogLeNet has it at 56 x 56."""
    builder = GraphBuilder(TABLE2_CONV, (1, 64, 56, 56))
    return builder.build(builder.conv("input", 192, 3, name="conv"))
