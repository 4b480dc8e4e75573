"""Stage `cold_start`: profile models, make plans and execute them beside the stock engines; all that measures is here."""

from __future__ import annotations

import functools
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from edgeplan.chapters.cold_start.evaluation.evidence import FRAMES, TABLE2_CONV
from edgeplan.chapters.cold_start.measuring.artefacts import RUNTIME, ArtefactStore, ColdModel, Tools
from edgeplan.chapters.cold_start.measuring.bench import ColdStartBench, measure_all, shared_journal
from edgeplan.chapters.cold_start.measuring.planning import PLAN_COLUMNS, Planning
from edgeplan.chapters.cold_start.measuring.runs import slowness_of
from edgeplan.chapters.cold_start.settings import ColdStartParams
from edgeplan.devices.config import load_device
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.kinds import graph_macs, graph_parameters
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.others import others_share, watched
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.measurement.settings import TimeBudget
from edgeplan.planning.profile import Profile
from edgeplan.profiling.frame import to_frame
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import build_program, step_candidates
from edgeplan.runtime.session import SequentialSession
from edgeplan.runtime.weights import locate_weights
from edgeplan.support.files import write_json
from edgeplan.support.frames import TableStore, table_store, write_parquet
from edgeplan.support.machine import environment
from edgeplan.support.store import key_of, nothing_stored, stored_rows_only
from edgeplan.support.tensors import read_outputs, relative_error
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

CHECK_COLUMNS = ("model", "layout", "threads", "choice", "error", "kernels")


def check_key(model: str, version: str, isa: str, seed: int, choices: int, threads: Sequence[int]) -> str:
    """Return the digest of all that decides a check: the model, the library, what is tried, and the runtime's protocol."""
    return key_of([model, version, isa, seed, choices, *threads, RUNTIME.name])


def check_outputs(
    dnnl: Dnnl,
    model: ColdModel,
    graph: Graph,
    reference: Callable[[], Path],
    *,
    threads: Sequence[int],
    seed: int,
    choices: int,
    kept: TableStore,
    budget: TimeBudget | None = None,
) -> tuple[pd.DataFrame, int]:
    """Run the model with the k-th candidate of every step (its last where it has fewer), for all k, home layouts and widths.

    Kernels are split over threads when they are created, so that those of another width are others. The reference gives the
    outputs of ONNX Runtime for the seeded inputs, as .npz. Only the first `choices` are tried, 0: all. What is `kept` of this
    library and runtime is not checked again; beyond the budget no more than the first choice under the first layout is run, and
    nothing is kept.

    Returns:
        model, layout, threads, choice (k), error (max|a - b| / max|b|), kernels (the distinct ones run, JSON); how
        many choices there was no time for.
    """
    key = f"{model.name}-{check_key(model.digest, dnnl.info.version, dnnl.info.isa, seed, choices, threads)}"
    if (found := kept.get(key)) is not None:
        return found, 0
    expected = [*read_outputs(reference()).values()]
    inputs = random_inputs(model.inputs, seed)
    lowered = lower(graph)
    weights = locate_weights(model.path, lowered)
    rows, left_out, budget = list[dict[str, Any]](), 0, budget or TimeBudget()
    for home, width in product(HOMES, threads):
        dnnl.set_threads(width)
        with dnnl.without_primitive_cache():  # what profiling left there would be offered, too, and could not be created
            offered = step_candidates(dnnl, lowered, home)
        most = max(map(len, offered))
        for k in range(min(most, choices or most)):
            if rows and budget.over:
                left_out += 1
                continue
            picked = [candidates[min(k, len(candidates) - 1)] for candidates in offered]
            program = build_program(dnnl, lowered, home, picked, weights, width)
            outputs = SequentialSession(dnnl, program, model.path.parent, width).run(inputs)
            error = relative_error([outputs[name] for name in graph.outputs], expected)
            kernels = json.dumps(sorted({c.name for c in picked}))
            place = {"model": model.name, "layout": home, "threads": width, "choice": k}
            rows.append({**place, "error": error, "kernels": kernels})
    frame = pd.DataFrame(rows, columns=list(CHECK_COLUMNS))
    if not left_out:
        kept.commit({key: frame})
    return frame, left_out


log = logging.getLogger(__name__)
#: Files of the stage.
DOCUMENTS = (*(f"{name}.parquet" for name in FRAMES), "notes.json", "environment.json")
_PROFILES_SHARE = 0.5  # of the budget
_CHECKS_SHARE, _PLANS_SHARE = 0.2, 0.3  # of what is left before each; the rest is for runs


def measure_cold_start(
    params: ColdStartParams, *, device: Path, predictors: Path, rows: Path, work: Path, measured: Path
) -> None:
    """Measure what the rows lack, profiles, plans, runs and checks, and write all of it to `measured`.

    The device's predictors may be absent. What lies in `work` may be deleted, which costs only building again.
    """
    if stored_rows_only():
        if missing := [name for name in DOCUMENTS if not (measured / name).is_file()]:
            raise nothing_stored(f"of the stored measurements of cold starts {missing[0]} is missing", measured)
        return  # what makes tables of rows needs the library and the machine that they were measured on
    tools = Tools(load_device(device), params.cold_start, rows / "profiles")
    with watched(rows, tools.cores.all):
        latest = _Stage(params, tools, rows, work.resolve(), predictors).write(measured)
    about = environment() | {"load_1min": None, "measured_at": time.strftime("%Y-%m-%d", time.gmtime(latest))}
    library = {"library": f"oneDNN {tools.dnnl.info.version}"}
    write_json(measured / "environment.json", about | library | others_share(rows))


class _Stage:
    def __init__(self, params: ColdStartParams, tools: Tools, rows: Path, work: Path, predictors: Path) -> None:
        self._settings, self._seed = params.cold_start, params.seed
        self._tools, self._rows, self._work = tools, rows, work
        self._notes: dict[str, str] = {}
        self._budget = TimeBudget.of(self._settings.budget_seconds)
        self._predictors = predictors
        self._plans = table_store(rows / "plans", *PLAN_COLUMNS)
        self._checked = table_store(rows / "checks", *CHECK_COLUMNS)

    def write(self, measured: Path) -> float:
        """Do all of it, and write the tables; says when the newest run was (POSIX seconds)."""
        graphs = {name: COLD_START_MODELS[name]() for name in self._settings.models}
        models = [self._export(name, graph) for name, graph in graphs.items()]
        single = self._export(TABLE2_CONV, table2_graph())
        profiles = self._profiles([*models, single], graphs | {TABLE2_CONV: table2_graph()})
        alone = profiles.pop(TABLE2_CONV)
        models = [model for model in models if model.name in profiles]
        store = ArtefactStore(self._work / "artefacts")
        checks = self._checks(models, graphs, store)
        planning = Planning(
            self._tools, self._plans, self._predictors, self._work / "plans", self._budget.part(_PLANS_SHARE), self._no_time
        )
        planning.plan(models, graphs, profiles)
        self._notes |= planning.notes
        with shared_journal(self._rows / "runs.jsonl", self._tools.device.name) as journal:
            bench = ColdStartBench(self._settings, self._tools.cores.all, self._seed, store, journal, self._budget)
            runs, bandwidth, left_out = measure_all(bench, models, planning.folders)
        if left_out:
            self._notes["runs"] = f"{left_out} runs were left out: {self._no_time}"
            if not len(runs[(runs["load_core"] != "") & (runs["reason"] == "")]):
                self._notes["load"] = self._no_time
        if not self._settings.load_percents:
            self._notes["load"] = "cold_start.load_percents is empty"
        every = [p for model in models for p in profiles[model.name]] + list(alone)
        frames = {
            "runs": runs.assign(slowness=self._slowness(runs)),
            "bandwidth": bandwidth,
            "profiles": to_frame(every),
            "plans": pd.DataFrame(planning.rows),
            "models": pd.DataFrame([_model_row(m, graphs[m.name]) for m in models]),
            "checks": pd.concat(checks, ignore_index=True) if checks else pd.DataFrame(columns=list(CHECK_COLUMNS)),
        }
        for kept in (self._plans, self._checked):
            kept.merge()
        for name in FRAMES:
            write_parquet(frames[name], measured / f"{name}.parquet")
        write_json(measured / "notes.json", self._notes)
        return float(runs["measured_at"].max()) if len(runs) else time.time()

    @property
    def _no_time(self) -> str:
        return f"cold_start.budget_seconds ({self._settings.budget_seconds:g}) was over"

    def _profiles(self, models: Sequence[ColdModel], graphs: Mapping[str, Graph]) -> dict[str, tuple[Profile, ...]]:
        """Profile models, each within its part of the budget; at least the first and the last one are made."""
        budget, found = self._budget.part(_PROFILES_SHARE), {}
        for number, model in enumerate(models):
            left = len(models) - number
            if 1 < left < len(models) and budget.over and not self._tools.profiled(graphs[model.name]):
                self._notes[f"profile.{model.name}"] = f"the model was left out: {self._no_time}"
                continue
            made = self._tools.profile(model.path, graphs[model.name], model.name, budget.part(1 / left))
            if noise := max(profile.noise for profile in made):
                share = f"{100 * noise:.1f} % of the stages of kernels, or of the starts"
                self._notes[f"noise.{model.name}"] = f"{share}, were disturbed each time"
            found[model.name] = made
        return found

    def _slowness(self, runs: pd.DataFrame) -> pd.Series[float]:
        """Return the slowness around each run; runs under a background load count apart, as it slows the references."""
        parts = [slowness_of(part, self._tools.nominal) for _, part in runs.groupby(runs["load_percent"] > 0)]
        return pd.concat(parts).reindex(runs.index) if parts else pd.Series(dtype="float64")

    def _export(self, name: str, graph: Graph) -> ColdModel:
        """Return a model with its ONNX file, written unless it is there: plan folders know it by its time stamp."""
        path = self._work / "models" / f"{name}.onnx"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            building = path.with_name(f"{name}.building.onnx")
            save_onnx(graph, building, self._seed)
            building.replace(path)
        return ColdModel(name, path, {i: tuple(graph.shape(i)) for i in graph.inputs})

    def _checks(self, models: Sequence[ColdModel], graphs: Mapping[str, Graph], store: ArtefactStore) -> list[pd.DataFrame]:
        """Compare outputs of every model under some kernels at least, under all of them while there is time."""
        budget, found = self._budget.part(_CHECKS_SHARE), []
        for number, model in enumerate(models):
            log.info("comparing outputs of %s", model.name)
            checked, left_out = check_outputs(
                self._tools.dnnl,
                model,
                graphs[model.name],
                functools.partial(store.reference, model, self._seed),
                threads=self._settings.threads,
                seed=self._seed,
                choices=self._settings.checked_choices,
                kept=self._checked,
                budget=budget.part(1 / (len(models) - number)),
            )
            if left_out:
                self._notes[f"checks.{model.name}"] = f"{left_out} choices of kernels were not checked: {self._no_time}"
            found.append(checked)
        return found


def _model_row(model: ColdModel, graph: Graph) -> dict[str, Any]:
    macs, parameters = graph_macs(graph), graph_parameters(graph)
    return {"model": model.name, "parameters": parameters, "model_bytes": model.size, "macs": macs}


def table2_graph() -> Graph:
    """Build the convolution of Table 2: 3 x 3, stride 1, 64 to 192 channels; GoogLeNet has it at 56 x 56."""
    builder = GraphBuilder(TABLE2_CONV, (1, 64, 56, 56))
    return builder.build(builder.conv("input", 192, 3, name="conv"))
