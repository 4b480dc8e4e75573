"""Models end to end: our plan, other plans and single processors interleaved, oneDNN and stock engines on all cores."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.partition.costs import ModelCosts
from edgeplan.chapters.partition.learning.predictors import PairPredictors
from edgeplan.chapters.partition.measuring.chains import anchor_session
from edgeplan.chapters.partition.measuring.opened import Opened, opened
from edgeplan.chapters.partition.measuring.rows import COLUMNS
from edgeplan.chapters.partition.measuring.splits import Runner, on_all_cores, on_pair, tolerance
from edgeplan.chapters.partition.names import ALL_CORES, SIDES
from edgeplan.chapters.partition.planned import PlannedModel, plan_model
from edgeplan.devices.pairs import PairFile
from edgeplan.engines.onnxruntime.reference import reference_outputs
from edgeplan.errors import DeviceError, EdgeplanError
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.measurement.process import stock
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.planning.partition import baselines
from edgeplan.planning.partition.baselines import in_sequence
from edgeplan.planning.partition.costs import SPLIT, Choice
from edgeplan.runtime.partitioned.program import partition
from edgeplan.runtime.partitioned.session import PairSession
from edgeplan.support.tensors import relative_error
from edgeplan.support.workers import ColdRunError

OURS = "ours"
_NUMBERS = tuple(name for name in COLUMNS["models"] if name not in ("way", "reason"))
_US_PER_MS = 1e3


@dataclass(frozen=True, slots=True)
class ModelJob:
    """A job names a model to measure."""

    model: Path
    folder: Path
    runs: int
    settings: tuple[str, ...]
    pool: Path


def measured(pair: PairFile, predictors: PairPredictors, job: ModelJob) -> pd.DataFrame:
    """Measure a model in every way, with the columns of `rows.COLUMNS`; what cannot be measured has a reason."""
    rows: list[dict[str, Any]] = []
    try:
        with opened(pair) as both:
            planned = plan_model(job.model, predictors, both.names, both.synchronisation)
            rows += _interleaved(both, predictors, planned, job)
    except EdgeplanError as error:
        rows.append({"way": OURS, "reason": error.what.splitlines()[0]})
    rows += [_stock(pair, setting, job) for setting in job.settings]
    frame = pd.DataFrame(rows).reindex(columns=list(COLUMNS["models"]))
    frame["reason"] = frame["reason"].astype(object).fillna("").astype(str)
    frame[list(_NUMBERS)] = frame[list(_NUMBERS)].astype("float64")
    return frame


def _ways(costs: ModelCosts, predictors: PairPredictors) -> Mapping[str, Choice]:
    share = float(np.mean(list(predictors.card.fixed_share.values()) or [0.5]))  # best on the training samples
    return {
        **{side: baselines.single(costs.costs, lane) for lane, side in enumerate(SIDES)},
        "equal": baselines.equal(costs.costs),
        "fixed": baselines.at_ratio(costs.costs, share),
        "greedy": baselines.greedy(costs.costs),
    }


def _interleaved(pair: Opened, predictors: PairPredictors, planned: PlannedModel, job: ModelJob) -> list[dict[str, Any]]:
    """Our plan first, then the others, one run of each after the other."""
    graph = load_onnx(job.model)
    lowered = planned.lowered
    inputs = random_inputs({name: lowered.shapes[name] for name in lowered.inputs}, 0, lowered.types, lowered.limits)
    expected = reference_outputs(job.model, inputs)
    block = pair.block
    rows: list[dict[str, Any]] = []
    runs: list[Runner] = []
    with ExitStack() as stack:
        sessions = {OURS: planned.partitioned(block)}
        for way, choice in _ways(planned.costs, predictors).items():
            assigned = planned.costs.assignments(choice)
            sessions[way] = partition(planned.lowered, planned.layouts, block, assigned)
            predicted = in_sequence(planned.costs.costs, choice).makespan_ms
            splits = sum(o.kind == SPLIT for o in planned.costs.costs.chosen(choice))
            rows.append({"way": way, "predicted_ms": predicted, "splits": splits})
        plan = planned.plan
        ours = {"way": OURS, "predicted_ms": plan.makespan_ms, "splits": sum(step.on == "split" for step in plan.steps)}
        rows.insert(0, ours | {"plan_seconds": planned.seconds, "plan_gap": plan.gap})
        for row, made in zip(rows, sessions.values(), strict=True):
            session = stack.enter_context(PairSession.of(*pair.processors, made, job.model, pair.synchronisation))
            outputs = session.run(inputs)
            error = relative_error([outputs[name] for name in expected], list(expected.values()))
            row.update(error=error, tolerance=tolerance(session), steps=len(planned.lowered.steps))
            runs.append(on_pair(session, inputs))
        runs += on_all_cores(pair, job.model, graph, inputs)
        anchors = [
            on_pair(stack.enter_context(anchor_session(pair, lane, job.pool)), {})
            for lane in (0, 1)
            if predictors.card.anchors_us
        ]
        times = np.array([[run() for run in (*runs, *anchors)] for _ in range(job.runs)])
    pair.host.ready()
    for row, own in zip(rows, times.T, strict=False):
        row.update(_summary(own))
    rows[0]["slowdown"] = _slowdown(times[:, len(runs) :], predictors)
    beside = [_summary(own) for own in times.T[len(rows) : len(runs)]]
    best = min(beside, key=lambda found: found["median_ms"])
    return [*rows, {"way": ALL_CORES, "steps": len(planned.lowered.steps), **best}]


def _slowdown(anchors_ms: npt.NDArray[np.float64], predictors: PairPredictors) -> float:
    """By how much the anchors took longer than when the samples were measured, both processors' mean."""
    usual_ms = [sum(predictors.card.anchors_us[side]) / _US_PER_MS for side in SIDES if side in predictors.card.anchors_us]
    if not usual_ms:
        return 1.0
    return float(np.exp(np.mean(np.log(np.median(anchors_ms, axis=0) / usual_ms))))


def _summary(times_ms: Any) -> dict[str, float]:
    """Median, and how far the medians of even and odd runs are apart."""
    found = [float(t) for t in times_ms]
    halves = [statistics.median(found[start::2] or found) for start in (0, 1)]
    return {"median_ms": statistics.median(found), "repeat": max(halves) / min(halves)}


def _stock(pair: PairFile, setting: str, job: ModelJob) -> dict[str, Any]:
    row: dict[str, Any] = {"way": setting}
    folder = job.folder / setting
    folder.mkdir()
    cores = tuple(sorted(pair.cores))
    try:
        inputs = stock.inputs_of(job.model)
        artefact = stock.prepared(setting, job.model, inputs, folder, len(cores))
        found = stock.run_stock(setting, artefact, inputs, cores, job.runs + 1)
    except (ColdRunError, DeviceError) as error:
        return row | {"reason": error.what.splitlines()[0]}
    return row | _summary(found.run_ms[1:])
