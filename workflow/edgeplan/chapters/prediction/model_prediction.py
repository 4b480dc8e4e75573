"""Predicts a model file's latency on a device with the predictors that were trained there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import Kernel
from edgeplan.graph.splitting import split
from edgeplan.predictors.kernel_tables import kernel_table
from edgeplan.predictors.source import Source

_ON_BYTES = "between DequantizeLinear and QuantizeLinear, measured in float32"


@dataclass(frozen=True, slots=True)
class KernelLatency:
    """Holds the predicted latency of one kernel, or of one layout conversion.

    Attributes:
        name: name of its anchor operator; for a conversion, the tensor that it converts.
        type: kinds of its operators, joined by "++"; "reorder" for a conversion.
        implementation: the engine's kernel, "" where the engine does not tell.
        latency_ms: prediction.
        low_ms, high_ms: its interval; None of a guess (`Prediction.unfamiliar`).
        share: share of the whole model's latency.
    """

    name: str
    type: str
    implementation: str
    latency_ms: float
    low_ms: float | None
    high_ms: float | None
    share: float


@dataclass(frozen=True, slots=True)
class PredictedFor:
    """Names the machine that a prediction is for.

    Attributes:
        cpu: what computes there, a CPU or a GPU; "" if nobody has noted it.
        shipped: whether the predictors come with the package.
        this_machine: whether it is this one.
    """

    cpu: str
    shipped: bool
    this_machine: bool


@dataclass(frozen=True, slots=True)
class Prediction:
    """Holds the predicted latency of a model on a device.

    Attributes:
        model, device: names.
        predicted_for: the machine that was measured.
        about: the same as a line of text; "" where it is this machine.
        latency_ms: prediction.
        low_ms, high_ms: its interval; with guesses among the kernels the least that it may be off, and no interval.
        interval: nominal coverage of the interval, of 1; None where kernels are guesses.
        coverage: share of the kernels that have a predictor; below 1 the latency is that of the covered part.
        missing: nodes without a predictor.
        unfamiliar: guesses: nodes unlike anything that was measured, each with why.
        guess_share: share of the latency that these nodes take.
        stand_ins: nodes of a kind that was not measured: node, kind, and the other kind that they are predicted as, or "bytes"
            for those predicted by the bytes that they move.
        stand_in_share: share of the latency that these nodes take.
        call_ms: constant cost of the call, part of the latency.
        kernels: kernels in topological order, then layout conversions.
    """

    model: str
    device: str
    predicted_for: PredictedFor
    about: str
    latency_ms: float
    low_ms: float
    high_ms: float
    interval: float | None
    coverage: float
    missing: tuple[str, ...]
    unfamiliar: tuple[tuple[str, str], ...]
    guess_share: float
    stand_ins: tuple[tuple[str, str, str], ...]
    stand_in_share: float
    call_ms: float
    kernels: tuple[KernelLatency, ...]


def predict_graph(graph: Graph, name: str, source: Source, *, partial: bool = False) -> tuple[Prediction, tuple[Kernel, ...]]:
    """Predict the latency of a model's graph.

    Args:
        graph: the model, simplified.
        name: of the model, for the answer.
        source: the predictors (`find_predictors`).
        partial: predict what can be, where kernels have no predictor.

    Returns:
        The prediction, and the kernels that the model was split into.
    """
    predictor = source.predictor
    kernels = split(graph, source.rules)
    found = predictor.predict(kernel_table(graph, kernels), allow_partial=partial)
    unfamiliar = (*found.unfamiliar, *_in_eight_bits(graph, kernels))
    guesses = {node for node, _ in unfamiliar}
    lines = tuple(
        KernelLatency(
            k.name,
            k.type,
            k.implementation,
            k.latency_us / 1e3,
            None if k.name in guesses else k.low_us / 1e3,
            None if k.name in guesses else k.high_us / 1e3,
            k.share,
        )
        for k in found.kernels
    )
    prediction = Prediction(
        name,
        source.device,
        PredictedFor(source.processor, source.shipped, source.here),
        source.about(),
        found.latency_ms,
        found.low_ms,
        found.high_ms,
        None if guesses else predictor.card.interval.nominal,
        found.coverage,
        found.missing,
        unfamiliar,
        sum(line.share for line in lines if line.name in guesses),
        found.stand_ins,
        found.stand_in_share,
        found.call_us / 1e3,
        lines,
    )
    return prediction, kernels


def _in_eight_bits(graph: Graph, kernels: Iterable[Kernel]) -> Iterator[tuple[str, str]]:
    """Yield kernels that read nothing but numbers of bytes, each with why: engines compute them on the bytes."""
    of_bytes = {op.name for op in graph.operators if op.inputs and all(_made_of_bytes(graph, name) for name in op.inputs)}
    for kernel in kernels:
        if of_bytes & {*kernel.members}:
            yield kernel.name, _ON_BYTES


def _made_of_bytes(graph: Graph, tensor: str) -> bool:
    made = graph.producer.get(tensor)
    return made is not None and made.op_type == "DequantizeLinear"
