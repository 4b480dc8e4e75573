"""Predicts a model file's latency on a device, node by node as its engine executes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from edgeplan.graph.nodes import ExecutedModel
from edgeplan.graph.onnx.prepare import Preparation
from edgeplan.predictors.source import Source


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
        low_ms, high_ms: its interval; with too much of it guessed, the least that it may be off, and no interval.
        interval: nominal coverage of the interval, of 1; None where too much is guessed.
        shares: share of the latency by source: "measured", "learnt", "guessed".
        call_ms: constant cost of the call and what lies between nodes, part of the latency.
        kernels: executed nodes, in order.
    """

    model: str
    device: str
    predicted_for: PredictedFor
    about: str
    latency_ms: float
    low_ms: float
    high_ms: float
    interval: float | None
    shares: Mapping[str, float]
    call_ms: float
    kernels: tuple[KernelLatency, ...]


def predict_file(model: Path, wanted: Preparation, source: Source, teller: Teller) -> tuple[Prediction, ExecutedModel]:
    """Predict the latency of a model's file.

    Args:
        model: ONNX file.
        wanted: what it leaves open.
        source: the predictors (`find_predictors`).
        teller: tells what is executed of it.

    Returns:
        The prediction, and what is executed.
    """
    executed = teller.of_file(model, wanted)
    return predict_executed(executed, source), executed
