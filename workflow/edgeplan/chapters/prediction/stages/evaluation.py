"""Stage `evaluation`: compare predictions with measured whole models, in tables, figures and metrics."""

from __future__ import annotations

import hashlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Literal

import msgspec
import numpy as np
import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.chapters.prediction import whole_models
from edgeplan.chapters.prediction.evaluation.page import PREDICTION_REPORT
from edgeplan.chapters.prediction.evaluation.tables import read_evidence
from edgeplan.chapters.prediction.settings import PredictionParams
from edgeplan.chapters.prediction.whole_models import COLUMNS, executed_models, read_models
from edgeplan.errors import FormatError
from edgeplan.graph.fusion_rules import read_rules
from edgeplan.graph.kernels import split_kernels
from edgeplan.graph.nodes import ExecutedModel, ExecutedNode, NodeConfig, Operand
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.predictors.nodes.features import Floats, describe
from edgeplan.predictors.nodes.predictor import NodePredictor
from edgeplan.predictors.nodes.storing import load_predictor, read_measured
from edgeplan.predictors.nodes.training import MeasuredModel, refitted
from edgeplan.support.files import read_json, write_json
from edgeplan.support.frames import read_parquet, write_csv, write_parquet
from edgeplan.support.machine import environment
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.store import STORED_ROWS_ONLY, stored_rows_only
from edgeplan.support.subprocesses import module_command, run
from edgeplan.zoo import prior_models


class Speed(BaseModel):
    """Records the measured speed of predictions (evaluation/speed.json): what `measure_speed` returned, when (UTC), and where.

    The machine need not be the one whose kernels were measured; `predictors` is the digest of those that were timed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format_version: Literal[1] = 1
    figures: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]]
    predictors: str
    measured_at: str
    cpu: str
    cores: int
    fingerprint: str

    def told(self, predictors: Path) -> str:
        """Return when and where the speed was measured, and of which predictors, as a sentence; "" without figures."""
        if not self.figures:
            return ""
        whose = "these predictors" if self.predictors == _digest(predictors) else "earlier predictors of this device"
        place = f"{self.cpu}, {self.cores} cores (fingerprint {self.fingerprint})"
        return f"The speed of predictions (speed.*) was measured at {self.measured_at} UTC on {place}, with {whose}."


def speed_of(params: PredictionParams, device: str, predictor: NodePredictor, nodes: pd.DataFrame, results: Path) -> Speed:
    """Return the figures of speed: measured and written to the device's folder, or read where nothing may be measured."""
    file = results / "evaluation" / "speed.json"
    if stored_rows_only():
        try:
            return read_json(file, Speed, "the figures of speed")
        except FormatError as error:
            raise FormatError(
                f"the figures of speed cannot be read, and may not be measured now: {error.what}",
                where=str(file),
                next_step=f"restore the file with git checkout, or unset {STORED_ROWS_ONLY}",
            ) from error
    figures, about = measure_speed(params, device, predictor, nodes), environment()
    speed = Speed(
        figures={name: float(f"{value:.6g}") for name, value in figures.items()},
        predictors=_digest(results / "predictors"),
        measured_at=time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        cpu=f"{about['cpu']} ({about['cpu_family_model']})",
        cores=about["cores"],
        fingerprint=about["fingerprint"],
    )
    write_json(file, speed.model_dump())
    return speed


def _digest(predictors: Path) -> str:
    return hashlib.sha256((predictors / "card.json").read_bytes()).hexdigest()[:16]


def measure_speed(params: PredictionParams, device: str, predictor: NodePredictor, nodes: pd.DataFrame) -> dict[str, float]:
    """Measure the speed of predictions on this machine.

    Returns:
        Median times `predict_process_s` (a file that was not seen before) and `predict_call_ms` (ResNet-50, told before); if as
        many models are asked for, also `batch_26000_s`, in which models given as executed nodes are predicted.
    """
    found: dict[str, float] = {}
    settings, runs = params.evaluation, params.evaluation.speed_runs
    told = executed_models(nodes, (whole_models.EVALUATED, whole_models.PRIOR))
    if runs:
        with ScratchFolder("speed") as folder:
            model = save_onnx(prior_models()["resnet50"](), Path(folder) / "resnet50.onnx")
            command = module_command("edgeplan", "predict", str(model), "--device", device)
            variables = {"PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
            process = [_seconds(lambda: run(command, variables=variables).check_returncode()) for _ in range(runs)]
            call = [1e3 * _seconds(lambda: predictor.predict(told["resnet50"])) for _ in range(runs)]
            found |= {"predict_process_s": statistics.median(process), "predict_call_ms": statistics.median(call)}
    if settings.batch_models:
        models = list(_varied(list(told.values()), settings.batch_models, params.seed))
        name = "batch_26000_s" if settings.batch_models == 26000 else "batch_s"  # the paper's number
        found[name] = _seconds(lambda: predictor.predict_many(models))
    return found


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _varied(models: Sequence[ExecutedModel], count: int, seed: int) -> Iterator[ExecutedModel]:
    """Yield so many models, those given in turn with the last axis of all operands scaled: about as many distinct nodes."""
    rng = Random(f"{seed}/speed")  # noqa: S311  not cryptography
    for number in range(count):
        model, factor = models[number % len(models)], 1 + rng.randrange(64) / 64

        def scaled(one: Operand | None, factor: float = factor) -> Operand | None:
            return one and msgspec.structs.replace(one, shape=(*one.shape[:-1], *(round(factor * n) for n in one.shape[-1:])))

        nodes = [
            replace(
                node,
                config=msgspec.structs.replace(
                    node.config, inputs=tuple(map(scaled, node.config.inputs)), outputs=tuple(map(scaled, node.config.outputs))
                ),
            )
            for node in model.nodes
        ]
        yield replace(model, nodes=tuple(nodes))


def evaluate(params: PredictionParams, *, device: str, results: Path, zoo: Path, metrics: Path, chapter: Path) -> None:
    """Predict every evaluated variant and write what follows from it below `results`."""
    predictor, known = load_predictor(results / "predictors"), read_measured(results / "predictors")
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
    evaluation, executed = results / "evaluation", executed_models(told, (whole_models.EVALUATED,))
    models = table.merge(truth, on=["model_id", "family"]).drop(columns=["spec", "index"])
    # As it ran comes first; at the usual speed of the machine, which predictions are of, is told beside it.
    models = models.rename(columns={"measured_ms": "normalised_ms", "median_ms": "measured_ms"})
    for column in ("normalised_ms", "repeat_ms"):
        models[column] *= predictor.speed
    asked = [executed[name] for name in models["model_id"]]
    models = models.assign(**_predicted(predictor, asked, known))
    operators = executed_models(told, (whole_models.OPERATORS,))
    models["operator_sum_ms"] = predictor.predict_many([operators[f"{name}-operators"] for name in models["model_id"]]) / 1e3
    models["left_out_ms"] = _family_left_out_ms(predictor, asked, models["family"], told, results, known)
    models = models.merge(read_parquet(results / "predictors" / "compared.parquet", "model_id"), on="model_id", how="left")
    write_parquet(models, evaluation / "models.parquet")
    write_parquet(_breakdown(predictor, executed, list(models["model_id"])), evaluation / "breakdown.parquet")
    labelled = read_parquet(results / "measurements" / "kernels.parquet", "sampler", "model", "key", "config", "latency_us")
    write_parquet(_sweeps(labelled, predictor), evaluation / "sweeps.parquet")
    write_csv(_conv_fusion(labelled), evaluation / "conv_fusion.csv")
    rules = read_rules(results / "fusion" / "rules.json")
    resnet18 = tuple(k.type for k in split_kernels(simplify(prior_models()["resnet18"]()), rules))
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
    models = executed_models(told, (whole_models.CALIBRATING, whole_models.EXPORTED))
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


def _sweeps(labelled: pd.DataFrame, predictor: NodePredictor) -> pd.DataFrame:
    """Return measured and predicted latency of one convolution along one dimension (Figures 7 and 8)."""
    rows = []
    for model, part in labelled[labelled["sampler"] == whole_models.SWEEP].groupby("model", sort=False):
        sweep, _, size, out, kernel = str(model).split("-")[:5]
        place = {"kernel_size": kernel, "input_size": size, "out_channels": out}[sweep]
        for text, us in zip(part["config"], part["latency_us"], strict=True):
            config = NodeConfig.from_json(text)
            if _is_convolution(config, int(out), int(kernel)):
                alone = predictor.predict(ExecutedModel("", (ExecutedNode("", config),), config.weight_bytes))
                rows.append((sweep, int(place), "conv", float(us), alone.nodes[0].us / predictor.speed))
    frame = pd.DataFrame(rows, columns=["sweep", "x", "kind", "measured_us", "predicted_us"])
    return frame.drop_duplicates(["sweep", "x"]).reset_index(drop=True)


def _is_convolution(config: NodeConfig, out: int, kernel: int) -> bool:
    """Tell whether a node is a convolution of so many output channels, which blocks may have filled up, and such a window."""
    weights = config.inputs[1] if config.op in ("Conv", "FusedConv") and len(config.inputs) > 1 else None
    return weights is not None and out <= weights.shape[0] < out + 16 and tuple(weights.shape[2:]) == (kernel, kernel)


def _conv_fusion(labelled: pd.DataFrame) -> pd.DataFrame:
    """Return labels of the same convolutions with and without what is fused behind them: config, type, latency_us."""
    rows = []
    for model, part in labelled[labelled["sampler"] == whole_models.CONV_CHECK].groupby("model", sort=False):
        _, channels, size, _, kernel, *tail = str(model).split("-")
        type_ = "++".join(["conv", *(name for name in tail if name != "plain")])
        for text, us in zip(part["config"], part["latency_us"], strict=True):
            if _is_convolution(NodeConfig.from_json(text), int(channels), int(kernel)):
                rows.append((f"{channels} channels, {size} x {size}, kernel {kernel}", type_, float(us)))
    return pd.DataFrame(rows, columns=["config", "type", "latency_us"])
