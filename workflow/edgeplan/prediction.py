"""Predicting a model file's latency on a device with the predictors that were trained there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from edgeplan.devices.config import DEVICE_FOLDER, load_device
from edgeplan.errors import FormatError
from edgeplan.fusion.rules import FusionRules, read_rules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import Kernel
from edgeplan.graph.splitting import split
from edgeplan.predictors.kernel_tables import kernel_table
from edgeplan.predictors.predictor import DevicePredictor


@dataclass(frozen=True, slots=True)
class KernelLatency:
    """What one kernel, or one layout conversion, takes.

    Attributes:
        name: of its anchor operator; of a conversion what it converts.
        type: kinds of its operators, joined by "++"; "reorder" for a conversion.
        implementation: the engine's kernel, "" where the engine does not tell.
        latency_ms, low_ms, high_ms: prediction and interval.
        share: of the whole model.
    """

    name: str
    type: str
    implementation: str
    latency_ms: float
    low_ms: float
    high_ms: float
    share: float


@dataclass(frozen=True, slots=True)
class Prediction:
    """Latency of a model on a device.

    Attributes:
        model, device: names.
        latency_ms, low_ms, high_ms: prediction and its interval.
        interval: nominal coverage of the interval, of 1.
        coverage: share of the kernels that have a predictor; below 1 the latency is that of the covered part.
        missing: nodes without a predictor.
        unfamiliar: nodes unlike anything that was measured, each with why: the interval does not cover them.
        stand_ins: nodes of a kind without a predictor, predicted as another kind: node, kind, the other kind.
        call_ms: constant cost of the call, part of the latency.
        kernels: in topological order, then layout conversions.
    """

    model: str
    device: str
    latency_ms: float
    low_ms: float
    high_ms: float
    interval: float
    coverage: float
    missing: tuple[str, ...]
    unfamiliar: tuple[tuple[str, str], ...]
    stand_ins: tuple[tuple[str, str, str], ...]
    call_ms: float
    kernels: tuple[KernelLatency, ...]


def load_predictors(device: str, results: Path) -> tuple[DevicePredictor, FusionRules]:
    """The predictors and fusion rules of a device.

    Args:
        device: name of a device that was measured.
        results: folder of the results.

    Raises:
        FormatError: there are none, or a file of them does not fit.
        DeviceError: there is no such device.
    """
    folder = results / device
    if not (folder / "predictors" / "card.json").is_file():
        if DEVICE_FOLDER.is_dir():
            load_device(device)  # says so where there is no such device at all
        known = sorted(p.parent.parent.name for p in results.glob("*/predictors/card.json"))
        raise FormatError(
            f"no predictors of device {device!r}",
            where=str(folder / "predictors"),
            next_step=" or ".join(
                # rows that came with a clone suffice: the predictors are in no git
                [f"dvc repro training@{device}" if (folder / "measurements").is_dir() else f"make reproduce DEVICE={device}"]
                + ([f"use one of: {', '.join(known)}"] if known else [])
            ),
        )
    return DevicePredictor.load(folder / "predictors"), read_rules(folder / "fusion" / "rules.json")


def predict_graph(
    graph: Graph, name: str, device: str, learnt: tuple[DevicePredictor, FusionRules], *, partial: bool = False
) -> tuple[Prediction, tuple[Kernel, ...]]:
    """Predict a model.

    Args:
        graph: the model, simplified.
        name: of the model, for the answer.
        device: name of the device.
        learnt: of it, from `load_predictors`.
        partial: predict what can be, where kernels have no predictor.

    Returns:
        The prediction, and the kernels that the model was split into.

    Raises:
        PredictionError: a kernel has no predictor, unless `partial`.
    """
    predictor, rules = learnt
    kernels = split(graph, rules)
    found = predictor.predict(kernel_table(graph, kernels), allow_partial=partial)
    lines = tuple(
        KernelLatency(k.name, k.type, k.implementation, k.latency_us / 1e3, k.low_us / 1e3, k.high_us / 1e3, k.share)
        for k in found.kernels
    )
    prediction = Prediction(
        name,
        device,
        found.latency_ms,
        found.low_ms,
        found.high_ms,
        predictor.card.interval.nominal,
        found.coverage,
        found.missing,
        found.unfamiliar,
        found.stand_ins,
        found.call_us / 1e3,
        lines,
    )
    return prediction, kernels
