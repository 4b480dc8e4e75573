"""Stage `training`: train the predictor of a device, and what it is compared with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import paper, whole_models
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.chapters.prediction.whole_models import ADAPTIVE, COLUMNS, HELD_OUT, executed_models
from edgeplan.graph.nodes import ExecutedModel, ExecutedNode, NodeConfig
from edgeplan.measurement.lock import after_measurements
from edgeplan.predictors.nodes.features import SIZES, Floats, Table, describe
from edgeplan.predictors.nodes.kernels import Kernels
from edgeplan.predictors.nodes.learner import Samples, learn, time_of
from edgeplan.predictors.nodes.predictor import NodePredictor, Relation
from edgeplan.predictors.nodes.storing import save_predictor, write_kernels, write_measured
from edgeplan.predictors.nodes.training import MeasuredModel, train
from edgeplan.predictors.settings import TrainingSettings
from edgeplan.reporting.metrics import accuracy, rmspe_difference
from edgeplan.support.frames import read_document, read_parquet, write_csv, write_parquet
from edgeplan.support.lazy import lazily

lightgbm = lazily("lightgbm")  # training alone needs it

#: The paper's features: configuration, FLOPs, parameters and memory; no alignment, no padding, no implementation.
_NAMES = (
    *("channels_in", "channels_out", "pixels", "window", "stride", "groups"),
    *("operands", "flops", "weights", "read", "written"),
)
_SEEN = [SIZES.index(name) for name in _NAMES]
_PARAMETERS: Mapping[str, Any] = MappingProxyType(
    {
        "boosting": "rf",
        "objective": "l2",
        "bagging_freq": 1,
        "bagging_fraction": 0.8,
        "feature_fraction_bynode": 0.7,
        "num_leaves": 512,
        "min_data_in_leaf": 1,
        "min_sum_hessian_in_leaf": 0.0,
        "feature_pre_filter": False,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
    }
)
_TREES, _LEAST_ROWS = 100, 4


def forest_us(configs: Iterable[str], us: Iterable[float], models: Sequence[ExecutedModel], seed: int) -> Floats:
    """Predict models by the sums of their nodes, us (models,), by measured ones (JSON): NaN where a kind was not measured."""
    learnt, latency = Table.of([NodeConfig.from_json(text) for text in configs]), np.array(list(us))
    asked = Table.of([node.config for model in models for node in model.nodes])
    kinds, of_row = np.array(learnt.kinds)[learnt.place], np.array(asked.kinds)
    predicted = np.full(len(of_row), np.nan)
    for kind in sorted(set(of_row.tolist())):
        at, to = np.flatnonzero(kinds == kind), np.flatnonzero(of_row == kind)
        if len(at) < _LEAST_ROWS:
            predicted[to] = latency[at].mean() if len(at) else np.nan
            continue
        data = lightgbm.Dataset(learnt.sizes[learnt.place[at]][:, _SEEN], latency[at])
        predicted[to] = lightgbm.train({**_PARAMETERS, "seed": seed}, data, _TREES).predict(asked.sizes[to][:, _SEEN])
    counts = [len(model.nodes) for model in models]
    times = np.array([node.times for model in models for node in model.nodes], np.float64)
    sums = np.bincount(np.repeat(np.arange(len(models)), counts), predicted[asked.place] * times, len(models))
    return np.asarray(sums, np.float64)


_ABOUT = ("device", "engine", "engine_version", "measured_at", "call_us", "cache_bytes")
_KERNELS = ("model", "sampler", "key", "config", "context_bytes", "latency_us", "slowness", "seconds")
#: What predictors learn from.
_LEARNT = (ADAPTIVE, whole_models.OPERATORS)
_CONVOLUTION = "convolution/"


def train_predictors(
    params: PredictionParams,
    *,
    device: Path,  # noqa: ARG001  its own values of params are among them
    nodes: Path,
    kernels: Path,
    summary: Path,
    calibration: Path,
    predictors: Path,
    quality: Path,
    samplers: Path,
    compared: Path,
) -> None:
    """Train the predictor on measured nodes and whole models, and judge it and what it is compared with on held-out ones.

    Times are those of the machine as it usually was: normalised ones times the median slowness of all references in the rows.
    To `quality` go held-out nodes, predicted by the predictor and by nn-Meter's random forests; to `samplers` (Table 10)
    predictors of convolutions from the adaptive and from random samples; to `compared` evaluated models, predicted with both.
    """
    told, about = read_parquet(nodes, *COLUMNS), read_document(summary, *_ABOUT)
    table = read_parquet(kernels, *_KERNELS)
    whole = read_parquet(calibration, "model_id", "measured_ms", "slowness")
    # References beside nodes and beside whole models are timed by as many runs, which differ: each has its own usual slowness.
    of_nodes, usual = float(table["slowness"].median()), float(whole["slowness"].median())
    table = table.assign(us=table["latency_us"] * of_nodes)
    settings, cache = _settings(params), float(about["cache_bytes"])
    after_measurements()  # trees are grown on all cores, by libraries that start threads
    rows = table[table["sampler"].isin(_LEARNT)].reset_index(drop=True)
    configs = [NodeConfig.from_json(text) for text in rows["config"]]
    known = {config.key: us for config, us in zip(configs, rows["us"], strict=True)}
    models = executed_models(told, (whole_models.CALIBRATING, whole_models.EXPORTED))
    measured = [
        MeasuredModel(models[name], 1e3 * ms * usual, known)
        for name, ms in zip(whole["model_id"], whole["measured_ms"], strict=True)
        if name in models
    ]
    found, checked = train(_samples(rows), measured, float(about["call_us"]), cache, settings)
    device_name, engine, version, measured_at = (str(about[name]) for name in _ABOUT[:4])
    predictor = replace(found, device=device_name, engine=engine, engine_version=version, measured_at=measured_at, speed=usual)
    save_predictor(predictor, predictors)
    write_measured(predictors, known)
    write_kernels(predictors, zip(configs, rows["context_bytes"], rows["us"], strict=True))
    frozen = table[table["sampler"] == HELD_OUT].reset_index(drop=True)
    held_out = [_judged("cross-validation", rows.assign(predicted_us=checked.us), rows, settings)]
    if len(frozen):
        told_us = time_of(predictor.kernels, _samples(frozen))[0]
        held_out.append(_judged("frozen", frozen.assign(predicted_us=told_us), rows, settings))
    write_parquet(pd.concat(held_out, ignore_index=True), quality)
    evaluated = executed_models(told, (whole_models.EVALUATED,))
    forest = forest_us(rows["config"], rows["us"], list(evaluated.values()), settings.seeds[0])
    frame = pd.DataFrame({"model_id": list(evaluated), "forest_ms": (forest + predictor.relation.call_us) / 1e3})
    found_rows = []
    for name in (ADAPTIVE, whole_models.RANDOM):
        sampled = table[(table["sampler"] == name) & table["key"].str.startswith(_CONVOLUTION)]
        judged = frozen[frozen["key"].str.startswith(_CONVOLUTION)]
        if not len(sampled) or not len(judged):
            continue
        kernels_of = learn(_samples(sampled), cache, settings)
        said = time_of(kernels_of, _samples(judged))[0]
        cost = {"sampler": name, "rows": len(sampled), "seconds": sampled["seconds"].sum()}
        hit = accuracy(judged["us"] / 1e3, said / 1e3)
        errors = {"labels": hit.models, "rmse_ms": hit.rmse, "rmspe": hit.rmspe, "within_10pct": hit.within_10pct}
        found_rows.append({**cost, **errors})
        frame[f"{name}_sampling_ms"] = _with_convolutions(predictor, kernels_of, list(evaluated.values())) / 1e3
        if name == ADAPTIVE:
            reference = said
        else:
            low, high = rmspe_difference(judged["us"].to_numpy(), reference, said, judged["model"])
            found_rows[-1] |= {"rmspe_more_low": low, "rmspe_more_high": high}
    write_csv(pd.DataFrame(found_rows or {"sampler": []}), samplers)
    write_parquet(frame, compared)


def _samples(rows: pd.DataFrame) -> Samples:
    configs = [NodeConfig.from_json(text) for text in rows["config"]]
    return Samples.of(configs, rows["context_bytes"].tolist(), rows["us"].tolist(), rows["model"].tolist())


def _settings(params: PredictionParams) -> TrainingSettings:
    """Return the settings of training, with seeds that follow from the one of the pipeline."""
    seeds = tuple(int(s) for s in np.random.SeedSequence(params.seed).generate_state(len(params.training.seeds)) % 2**16)
    return params.training.model_copy(update={"seeds": seeds})


def _judged(split: str, rows: pd.DataFrame, learnt: pd.DataFrame, settings: TrainingSettings) -> pd.DataFrame:
    """Return held-out nodes with their predictions, those of the forests by what was learnt of other models."""
    kept = rows[["key", "model", "us", "predicted_us"]].rename(columns={"us": "measured_us"})
    kept.insert(0, "kernel", rows["key"].map(paper.paper_kernel))
    kept.insert(0, "split", split)
    frame = kept.assign(forest_us=np.nan)
    if split == "frozen":
        configs = [NodeConfig.from_json(text) for text in rows["config"]]
        alone = [ExecutedModel("", (ExecutedNode("", config),), config.weight_bytes) for config in configs]
        frame["forest_us"] = forest_us(learnt["config"], learnt["us"], alone, settings.seeds[0])
    judged: pd.DataFrame = frame[np.isfinite(frame["predicted_us"])]
    return judged


def _with_convolutions(predictor: NodePredictor, other: Kernels, models: Sequence[ExecutedModel]) -> Floats:
    """Predict models (us) with another predictor of convolutions."""
    parts_of = [replace(m, nodes=tuple(n for n in m.nodes if describe(n.config)[1].startswith(_CONVOLUTION))) for m in models]
    plain = [NodePredictor(k, Relation(call_us=0.0), predictor.trust) for k in (predictor.kernels, other)]
    own, others = (one.predict_many(parts_of) for one in plain)
    return np.asarray(predictor.predict_many(models) + predictor.relation.scale * (others - own))
