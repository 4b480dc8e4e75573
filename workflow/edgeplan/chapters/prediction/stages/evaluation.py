"""Stage `evaluation`: compare predictions with measured whole models, in tables, figures and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from edgeplan.chapters.prediction import executed as parts
from edgeplan.chapters.prediction.evaluation.evidence import read_evidence
from edgeplan.chapters.prediction.evaluation.page import PREDICTION_REPORT
from edgeplan.chapters.prediction.executed import COLUMNS, executed_models
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.chapters.prediction.speed import speed_of
from edgeplan.chapters.prediction.whole_models import read_models
from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.graph.kernels import split
from edgeplan.graph.nodes import ExecutedModel, ExecutedNode, NodeConfig
from edgeplan.graph.simplify import simplify
from edgeplan.predictors.nodes.features import Floats, describe
from edgeplan.predictors.nodes.predictor import NodePredictor
from edgeplan.predictors.nodes.storing import load
from edgeplan.predictors.nodes.training import MeasuredModel, refitted
from edgeplan.predictors.store import read_measured
from edgeplan.support.frames import read_parquet, write_csv, write_parquet
from edgeplan.zoo import prior_models


def evaluate(params: PredictionParams, *, device: str, results: Path, zoo: Path, metrics: Path, chapter: Path) -> None:
    """Predict every evaluated variant and write what follows from it below `results`.

    The figures of merit go to `metrics`, the page of the report to `chapter`.
    """
    predictor, known = load(results / "predictors"), read_measured(results / "predictors")
    told = read_parquet(results / "nodes" / "models.parquet", *COLUMNS)
    table = read_models(zoo / "models.parquet", bases=False, variants=True)
    truth = read_parquet(
        results / "evaluation" / "truth.parquet", "model_id", "family", "measured_ms", "median_ms", "repeat_ms"
    )
    reached = table["model_id"].isin(set(truth["model_id"]))  # where the time was short, some were left out
    table = table[reached].reset_index(drop=True)
    if list(truth["model_id"]) != list(table["model_id"]):
        raise FormatError(
            "the measured models are not those of the zoo",
            where=str(results / "evaluation" / "truth.parquet"),
            next_step="dvc repro",
        )
    evaluation, executed = results / "evaluation", executed_models(told, (parts.EVALUATED,))
    models = table.merge(truth, on=["model_id", "family"]).drop(columns=["spec", "index"])
    # As it ran comes first; at the usual speed of the machine, which predictions are of, is told beside it.
    models = models.rename(columns={"measured_ms": "normalised_ms", "median_ms": "measured_ms"})
    for column in ("normalised_ms", "repeat_ms"):
        models[column] *= predictor.speed
    asked = [executed[name] for name in models["model_id"]]
    models = models.assign(**_predicted(predictor, asked, known))
    operators = executed_models(told, (parts.OPERATORS,))
    models["operator_sum_ms"] = predictor.predict_many([operators[f"{name}-operators"] for name in models["model_id"]]) / 1e3
    models["left_out_ms"] = _family_left_out_ms(predictor, asked, models["family"], told, results, known)
    models = models.merge(read_parquet(results / "predictors" / "compared.parquet", "model_id"), on="model_id", how="left")
    write_parquet(models, evaluation / "models.parquet")
    write_parquet(_breakdown(predictor, executed, list(models["model_id"])), evaluation / "breakdown.parquet")
    labelled = read_parquet(results / "measurements" / "kernels.parquet", "sampler", "model", "key", "config", "latency_us")
    write_parquet(_sweeps(labelled, predictor), evaluation / "sweeps.parquet")
    write_csv(_conv_fusion(labelled), evaluation / "conv_fusion.csv")
    rules = read_rules(results / "fusion" / "rules.json")
    resnet18 = tuple(k.config.type for k in split(simplify(prior_models()["resnet18"]()), rules))
    speed = speed_of(params, device, predictor, told, results)
    evidence = read_evidence(
        device, results, zoo, resnet18_kernels=resnet18, speed=speed.figures, speed_told=speed.told(results / "predictors")
    )
    PREDICTION_REPORT.show(evidence, folder=results, metrics=metrics, chapter=chapter)


def _predicted(predictor: NodePredictor, models: Sequence[ExecutedModel], known: Mapping[str, float]) -> dict[str, list[float]]:
    """Predict models with their intervals; NaN where too much is guessed."""
    found = [predictor.predict(model, known) for model in models]
    bounds = [one.interval_us or (np.nan, np.nan) for one in found]
    return {
        "kernels": [float(len(model.nodes)) for model in models],
        "predicted_ms": [one.latency_us / 1e3 for one in found],
        "low_ms": [low / 1e3 for low, _ in bounds],
        "high_ms": [high / 1e3 for _, high in bounds],
        "plain_sum_ms": [(sum(n.us for n in one.nodes) + predictor.relation.call_us) / 1e3 for one in found],
        "guessed_share": [one.share("guessed") for one in found],
    }


def _family_left_out_ms(
    predictor: NodePredictor,
    asked: Sequence[ExecutedModel],
    families: pd.Series[str],
    told: pd.DataFrame,
    results: Path,
    known: Mapping[str, float],
) -> Floats:
    """Predict models (ms) with the relation of whole models to nodes as other families alone have it."""
    calibrating = read_parquet(results / "calibration" / "models.parquet", "model_id", "family", "measured_ms")
    models = executed_models(told, (parts.CALIBRATING, parts.EXPORTED))
    rows = calibrating[calibrating["model_id"].isin(list(models))]
    measured = [
        MeasuredModel(models[name], 1e3 * ms * predictor.speed, dict(known))
        for name, ms in zip(rows["model_id"], rows["measured_ms"], strict=True)
    ]
    found = np.empty(len(asked))
    for family in families.unique():
        at = np.flatnonzero(families == family)
        others = [one for one, own in zip(measured, rows["family"], strict=True) if own != family]
        alone = refitted(predictor, others)
        found[at] = [alone.predict(asked[i], known).latency_us / 1e3 for i in at.tolist()]
    return found


def _breakdown(predictor: NodePredictor, executed: Mapping[str, ExecutedModel], names: Sequence[str]) -> pd.DataFrame:
    """Return what the kinds of nodes of each model take: model_id, kind, predicted_ms."""
    rows = []
    for name in names:
        found = predictor.predict(executed[name])
        part = pd.DataFrame({"kind": [describe(n.config)[0] for n in found.nodes], "ms": [n.us / 1e3 for n in found.nodes]})
        rows += [(name, kind, ms) for kind, ms in part.groupby("kind")["ms"].sum().items() if ms > 0]
    return pd.DataFrame(rows, columns=["model_id", "kind", "predicted_ms"])


def _one_us(predictor: NodePredictor, config: NodeConfig, context: int) -> float:
    """Predict a node by itself, us."""
    return predictor.predict(ExecutedModel("", (ExecutedNode("", config),), context)).nodes[0].us


def _sweeps(labelled: pd.DataFrame, predictor: NodePredictor) -> pd.DataFrame:
    """Return measured and predicted latency of one convolution along one dimension (Figures 7 and 8)."""
    rows = []
    for model, part in labelled[labelled["sampler"] == parts.SWEEP].groupby("model", sort=False):
        sweep, _, size, out, kernel = str(model).split("-")[:5]
        place = {"kernel_size": kernel, "input_size": size, "out_channels": out}[sweep]
        for text, us in zip(part["config"], part["latency_us"], strict=True):
            config = NodeConfig.from_json(text)
            if _is_convolution(config, int(out), int(kernel)):
                predicted = _one_us(predictor, config, config.weight_bytes) / predictor.speed
                rows.append((sweep, int(place), "conv", float(us), predicted))
    frame = pd.DataFrame(rows, columns=["sweep", "x", "kind", "measured_us", "predicted_us"])
    return frame.drop_duplicates(["sweep", "x"]).reset_index(drop=True)


def _is_convolution(config: NodeConfig, out: int, kernel: int) -> bool:
    """Tell whether a node is a convolution of so many output channels, which blocks may have filled up, and such a window."""
    weights = config.inputs[1] if config.op in ("Conv", "FusedConv") and len(config.inputs) > 1 else None
    return weights is not None and out <= weights.shape[0] < out + 16 and tuple(weights.shape[2:]) == (kernel, kernel)


def _conv_fusion(labelled: pd.DataFrame) -> pd.DataFrame:
    """Return labels of the same convolutions with and without what is fused behind them: config, type, latency_us."""
    rows = []
    for model, part in labelled[labelled["sampler"] == parts.CONV_CHECK].groupby("model", sort=False):
        _, channels, size, _, kernel, *tail = str(model).split("-")
        type_ = "++".join(["conv", *(name for name in tail if name != "plain")])
        for text, us in zip(part["config"], part["latency_us"], strict=True):
            if _is_convolution(NodeConfig.from_json(text), int(channels), int(kernel)):
                rows.append((f"{channels} channels, {size} x {size}, kernel {kernel}", type_, float(us)))
    return pd.DataFrame(rows, columns=["config", "type", "latency_us"])
