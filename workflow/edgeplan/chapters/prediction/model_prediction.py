"""Predicts a model's latency on a device, node by node as its engine executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeplan.graph.nodes import ExecutedModel, NodeConfig
from edgeplan.predictors.source import Source

_US_PER_MS = 1e3


@dataclass(frozen=True, slots=True)
class KernelLatency:
    """Holds the predicted latency of one executed node.

    Attributes:
        name: the engine's name of it.
        type: the engine's type of it.
        operators: names of the file's operators that it holds; none of a layout conversion.
        latency_ms: prediction, of all times that it runs.
        low_ms, high_ms: its interval; None of a guess.
        share: share of the whole model's latency.
        source: "measured", "learnt" or "guessed".
    """

    name: str
    type: str
    operators: tuple[str, ...]
    latency_ms: float
    low_ms: float | None
    high_ms: float | None
    share: float
    source: str


@dataclass(frozen=True, slots=True)
class PredictedFor:
    """Names the machine that a prediction is for.

    Attributes:
        cpu: what computes there, a CPU or a GPU; "" if nobody has noted it.
        shipped: whether the predictors come with the package.
        this_machine: whether it is this one.
        told_by: what told the nodes, where it is another engine or version than that which was measured; else "".
    """

    cpu: str
    shipped: bool
    this_machine: bool
    told_by: str = ""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Holds the predicted latency of a model on a device.

    Attributes:
        model, device: names.
        predicted_for: the machine that was measured.
        about: the same as a line of text; "" where it is this machine.
        latency_ms: prediction.
        low_ms, high_ms: its interval; None where too much of it is guessed.
        interval: nominal coverage of the interval, of 1.
        shares: share of the latency by source: "measured", "learnt", "guessed".
        call_ms: constant cost of the call and what lies between nodes, part of the latency.
        kernels: executed nodes, in order.
    """

    model: str
    device: str
    predicted_for: PredictedFor
    about: str
    latency_ms: float
    low_ms: float | None
    high_ms: float | None
    interval: float
    shares: Mapping[str, float]
    call_ms: float
    kernels: tuple[KernelLatency, ...]


def predict_executed(executed: ExecutedModel, source: Source) -> Prediction:
    """Predict a model of which it is known what is executed.

    Args:
        executed: its nodes.
        source: the predictors (`find_predictors`).
    """
    predictor = source.predictor
    found = predictor.predict(executed, source.known)
    # a node in its model takes its time by itself times a factor that all models share
    total, ms, within = found.latency_us, source.scale / _US_PER_MS, predictor.relation.scale
    kernels = tuple(
        KernelLatency(
            node.name,
            _type(node.config),
            told.operators,
            node.us * within * ms,
            None if node.source == "guessed" else node.low_us * within * ms,
            None if node.source == "guessed" else node.high_us * within * ms,
            node.us * within / total,
            node.source,
        )
        for told, node in zip(executed.nodes, found.nodes, strict=True)
    )
    shares = {name: sum(k.share for k in kernels if k.source == name) for name in ("measured", "learnt", "guessed")}
    measured_by = f"{predictor.engine} {predictor.engine_version}"
    return Prediction(
        executed.name,
        source.device,
        PredictedFor(
            source.processor, source.shipped, source.here, "" if executed.told_by == measured_by else executed.told_by
        ),
        source.about(),
        total * ms,
        found.interval_us and found.interval_us[0] * ms,
        found.interval_us and found.interval_us[1] * ms,
        predictor.trust.nominal,
        shares,
        (total - within * sum(node.us for node in found.nodes)) * ms,
        kernels,
    )


def _type(config: NodeConfig) -> str:
    """Return the engine's type of a node, with what it is fused with."""
    fused = config.attribute("fused", ())
    parts = [str(one) for one in (fused if isinstance(fused, tuple) else (fused,))]
    activation = config.attribute("activation", "")
    blocked = ".nchwc" if config.domain.endswith("nchwc") else ""
    return "+".join([config.op + blocked, *parts, *([str(activation)] if activation else [])])
