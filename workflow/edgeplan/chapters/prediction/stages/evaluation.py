"""Stage `evaluation`: compare predictions with measured whole models, in tables, figures and metrics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from edgeplan.chapters.prediction.evaluation.evidence import read_evidence
from edgeplan.chapters.prediction.evaluation.page import prediction_report
from edgeplan.chapters.prediction.models import kernels_of, named_graphs, read_models
from edgeplan.chapters.prediction.sampling.sweeps import CONV_CHECK, SWEEP, sweep_graphs, sweep_of
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.chapters.prediction.speed import speed_of
from edgeplan.chapters.prediction.stages.training import COMPARED, FOREST
from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import FusionRules, read_rules
from edgeplan.graph.simplify import simplify
from edgeplan.graph.splitting import split, split_operators
from edgeplan.predictors.kernel_tables import KernelTables, kernel_table
from edgeplan.predictors.kind_factors import fit_factors
from edgeplan.predictors.predictor import DevicePredictor
from edgeplan.progress import progress
from edgeplan.support.frames import read_parquet, write_csv, write_parquet
from edgeplan.zoo import prior_models

#: Columns of the measured kernels that are read here.
_LABELLED = ("kind", "type", "config", "sampler", "mode", "subject", "latency_us")


def evaluate(params: PredictionParams, *, device: str, results: Path, zoo: Path, metrics: Path, chapter: Path) -> None:
    """Predict every evaluated variant with every predictor and write what follows from it below `results`.

    The figures of merit go to `metrics`, the page of the report to `chapter`.
    """
    rules = read_rules(results / "fusion" / "rules.json")
    folder = results / "predictors"
    predictor = DevicePredictor.load(folder)
    table = read_models(zoo / "models.parquet", bases=False, variants=True)
    truth = read_parquet(results / "evaluation" / "truth.parquet", "model_id", "family", "measured_ms", "repeat_ms")
    reached = table["model_id"].isin(set(truth["model_id"]))  # where the time was short, some were left out
    table = table[reached].reset_index(drop=True)
    if list(truth["model_id"]) != list(table["model_id"]):
        raise FormatError(
            "the measured models are not those of the zoo",
            where=str(results / "evaluation" / "truth.parquet"),
            next_step="dvc repro",
        )
    with progress(f"{device}: models split into kernels", len(table)) as advance:
        kernels, operators = _tables(table, rules, advance)
    evaluation = results / "evaluation"
    models = _predict(table.merge(truth, on=["model_id", "family"]), predictor, folder, kernels, operators)
    calibrating = read_parquet(results / "calibration" / "models.parquet", "model_id", "family", "spec", "measured_ms")
    models["left_out_ms"] = family_left_out_ms(
        predictor, kernels, models["family"], kernels_of(calibrating, rules), calibrating
    )
    write_parquet(models, evaluation / "models.parquet")
    batch = predictor.predict_many(kernels)
    kinds, ids = np.meshgrid(batch.kinds, models["model_id"].to_numpy(), indexing="ij")
    breakdown = pd.DataFrame({"model_id": ids.ravel(), "kind": kinds.ravel(), "predicted_ms": batch.by_kind_ms.ravel()})
    write_parquet(breakdown[breakdown["predicted_ms"] > 0].reset_index(drop=True), evaluation / "breakdown.parquet")
    labelled = read_parquet(results / "measurements" / "kernels.parquet", *_LABELLED)
    write_parquet(_sweeps(labelled, predictor, rules), evaluation / "sweeps.parquet")
    write_csv(_conv_fusion(labelled), evaluation / "conv_fusion.csv")
    resnet18 = tuple(k.config.type for k in split(simplify(prior_models()["resnet18"]()), rules))
    speed = speed_of(params, device, rules, predictor, evaluation)
    evidence = read_evidence(
        device,
        results,
        zoo,
        resnet18_kernels=resnet18,
        speed=speed.figures,
        speed_told=speed.told(predictor),
    )
    prediction_report(device).show(evidence, folder=results, metrics=metrics, chapter=chapter)


def _tables(table: pd.DataFrame, rules: FusionRules, advance: Callable[[int], None]) -> tuple[KernelTables, KernelTables]:
    """Return kernel tables of the models, split by the rules and into single operators; `advance` is told of each model."""
    fused, single = [], []
    for graph in named_graphs(table):
        fused.append(kernel_table(graph, split(graph, rules)))
        single.append(kernel_table(graph, split_operators(graph)))
        advance(1)
    return KernelTables.of(fused), KernelTables.of(single)


def _predict(
    models: pd.DataFrame, predictor: DevicePredictor, folder: Path, kernels: KernelTables, operators: KernelTables
) -> pd.DataFrame:
    """Return the predictions of all predictors beside the measured latencies."""
    batch = predictor.predict_many(kernels)
    models = models.drop(columns=["spec", "index"]).assign(
        kernels=np.diff(kernels.kernel_start),
        predicted_ms=batch.latency_ms,
        low_ms=batch.low_ms,
        high_ms=batch.high_ms,
    )
    models["plain_sum_ms"] = predictor.without_factors().predict_many(kernels).latency_ms
    alone = predictor.predict_many(operators, allow_partial=True)
    models["operator_sum_ms"], models["operator_coverage"] = alone.latency_ms, alone.coverage
    sampled = {f"{name}_sampling_ms": name for name in COMPARED}
    for column, name in (sampled | {"forest_ms": FOREST}).items():
        if (folder / name / "card.json").is_file():
            other = DevicePredictor.load(folder / name).predict_many(kernels, allow_partial=True)
            models[column], models[f"{name}_coverage"] = other.latency_ms, other.coverage
        else:
            models[column] = np.nan
    return models


def family_left_out_ms(
    predictor: DevicePredictor,
    kernels: KernelTables,
    families: pd.Series[str],
    calibrating_kernels: KernelTables,
    calibrating: pd.DataFrame,
) -> npt.NDArray[np.float64]:
    """Predict models (ms) with factors of kinds fitted on other families alone, as for a family that nobody calibrated on.

    Args:
        predictor: that of the device; its own factors are not used.
        kernels: kernels of the models (m).
        families: their families (m).
        calibrating_kernels: kernels of the calibrating models (k).
        calibrating: those models: family, measured_ms (k).

    Returns:
        Latencies in ms (m,).
    """
    plain, call_ms = predictor.without_factors(), predictor.card.call_us / 1e3
    seen, asked = plain.predict_many(calibrating_kernels, allow_partial=True), plain.predict_many(kernels)
    kinds = sorted({*seen.kinds, *asked.kinds})
    seen_ms, asked_ms = (
        pd.DataFrame(part.by_kind_ms, index=list(part.kinds)).reindex(kinds, fill_value=0.0).to_numpy()
        for part in (seen, asked)
    )
    measured_ms, known = calibrating["measured_ms"].to_numpy(float), seen.coverage == 1
    found = np.empty(len(families))
    for family in families.unique():
        here = (families == family).to_numpy()
        others = known & (calibrating["family"] != family).to_numpy()
        factors = fit_factors(seen_ms[:, others], call_ms, measured_ms[others])
        found[here] = factors @ asked_ms[:, here] + call_ms
    return found


def _sweeps(labelled: pd.DataFrame, predictor: DevicePredictor, rules: FusionRules) -> pd.DataFrame:
    """Return measured and predicted latency along one dimension (Figures 7 and 8)."""
    measured = labelled[(labelled["sampler"] == SWEEP) & (labelled["kind"] == "conv")].groupby("config")["latency_us"].median()
    rows = []
    for graph in sweep_graphs() if len(measured) else ():
        kernels = split(graph, rules)
        found = predictor.predict(kernel_table(graph, kernels), allow_partial=True, near_kinds=False)
        predicted = {k.name: k.latency_us for k in found.kernels}
        for kernel in kernels:
            place, text = sweep_of(kernel.config), kernel.config.to_json()
            if kernel.config.kind == "conv" and place and text in measured.index:
                rows.append((*place, "conv", float(measured[text]), predicted.get(kernel.name, float("nan"))))
    frame = pd.DataFrame(rows, columns=["sweep", "x", "kind", "measured_us", "predicted_us"])
    return frame.drop_duplicates(["sweep", "x"]).reset_index(drop=True)


def _conv_fusion(labelled: pd.DataFrame) -> pd.DataFrame:
    """Return labels of the same convolutions with and without what is fused behind them."""
    rows = labelled[(labelled["sampler"] == CONV_CHECK) & (labelled["kind"] == "conv")]
    return rows[["config", "type", "latency_us"]].reset_index(drop=True)
