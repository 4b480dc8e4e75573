"""Compares a model measured on this machine with what was predicted for it: whole, and kernel by kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgeplan.chapters.prediction.model_prediction import Prediction, predict_graph
from edgeplan.chapters.prediction.sampling.labels import CounterModel, node_labels
from edgeplan.devices.config import load_device
from edgeplan.errors import FormatError, PredictionError
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import Kernel, make_kernel
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.measurement.records import Measurement
from edgeplan.measurement.whole_model import measure_file
from edgeplan.predictors.source import find_predictors

_REORDER = "reorder"
_US_PER_MS = 1e3


@dataclass(frozen=True, slots=True)
class KernelComparison:
    """Compares one kernel, or several that the engine runs otherwise than predicted, in ms; None: not known.

    Attributes:
        name: names of the predicted kernels, else of the engine's operators.
        type: kinds of the operators; "reorder" for a layout conversion.
        predicted_ms: latency that the predictors give.
        measured_ms: latency that the engine counted, brought to the plain run: counters inflate small kernels.
    """

    name: str
    type: str
    predicted_ms: float | None
    measured_ms: float | None

    @property
    def deviation(self) -> float | None:
        """Return predicted over measured latency, less 1."""
        return self.predicted_ms / self.measured_ms - 1 if self.predicted_ms is not None and self.measured_ms else None


@dataclass(frozen=True)
class Measured:
    """Holds what was measured of a model.

    Attributes:
        model, device: names.
        latency_ms: median over blocks of the least run, at the speed of this machine when it is quiet.
        noise: how far that can be trusted: half the range of the middle blocks, relative.
        least_ms, median_ms: least and median run as they were, at the speed that the machine had.
        slowness: how many times as slow as when it is quiet the machine was meanwhile.
        waited: share of the time that others had this process's processors: what it took then is in the figures.
        throttled: share of the time that a CPU quota of a control group stopped it, which is in them as well.
        seconds: how long it took.
        prediction: prediction for the device, None where there is none.
        without_prediction: why, and `next_step` what to do.
        other_machine: the processor that the predictions are for, "" if it is this machine or not known.
        kernels: predicted beside measured; empty without node times.
        without_kernels: why there are no node times.
    """

    model: str
    device: str
    latency_ms: float
    noise: float
    least_ms: float
    median_ms: float
    slowness: float
    waited: float
    throttled: float
    seconds: float
    prediction: Prediction | None
    without_prediction: str
    next_step: str
    other_machine: str
    kernels: tuple[KernelComparison, ...]
    without_kernels: str

    @property
    def deviation(self) -> float | None:
        """Return predicted over measured latency, less 1; None without a prediction of the whole model."""
        whole = self.prediction is not None and self.prediction.coverage == 1
        return self.prediction.latency_ms / self.latency_ms - 1 if self.prediction is not None and whole else None

    @property
    def inside(self) -> bool | None:
        """Tell whether the measured latency lies in the predicted interval; None without one, or one of the whole model."""
        if self.prediction is None or self.prediction.interval is None or self.prediction.coverage != 1:
            return None
        return self.prediction.low_ms <= self.latency_ms <= self.prediction.high_ms


def measure_model(model: Path, device: str | Path, *, seconds: float, results: Path | None, rows: Path) -> Measured:
    """Measure a model, and predict it where the device has predictors: see `edgeplan.api.measure`."""
    file = load_device(device)
    file.require_local("a model with weights of its own is measured")
    graph = simplify(load_onnx(model))
    prediction, kernels, reason, following = None, tuple[Kernel, ...](), "", ""
    try:
        source = find_predictors(str(device), results)
        prediction, kernels = predict_graph(graph, model.name, source, partial=True)
    except (FormatError, PredictionError) as error:  # measuring does not need it
        reason, following = error.what, error.next_step
    found = measure_file(file, model, graph, rows, seconds)
    m = found.measurement
    return Measured(
        model.name,
        file.name,
        m.latency_us / _US_PER_MS,
        m.noise,
        float(m.least_us.min()) / _US_PER_MS,
        float(np.median(m.median_us)) / _US_PER_MS,
        float(np.median(1 / m.factors)),
        found.waited,
        found.throttled,
        found.seconds,
        prediction,
        reason,
        following,
        "" if prediction is None or prediction.predicted_for.this_machine else prediction.predicted_for.cpu,
        () if found.without_nodes else compare_kernels(graph, kernels, prediction, m),
        found.without_nodes,
    )


def compare_kernels(
    graph: Graph, kernels: Sequence[Kernel], prediction: Prediction | None, measurement: Measurement
) -> tuple[KernelComparison, ...]:
    """Compare predicted with measured kernels in the order of the engine's nodes; what was predicted and not run comes last.

    Args:
        graph: the model.
        kernels: that it was split into; empty without a prediction.
        prediction: of them.
        measurement: with node times.
    """
    predicted = {(k.type == _REORDER, k.name): 0.0 for k in prediction.kernels} if prediction else {}
    for line in prediction.kernels if prediction else ():  # a tensor may be converted to several layouts
        predicted[line.type == _REORDER, line.name] += line.latency_ms
    group = _groups([*(k.members for k in kernels), *(n.members for n in measurement.nodes)])
    together: dict[str, list[Kernel]] = {}
    for kernel in kernels:
        together.setdefault(group[kernel.members[0]], []).append(kernel)
    rows: dict[tuple[bool, str], KernelComparison] = {}
    counters = CounterModel(_US_PER_MS * prediction.call_ms if prediction else 0.0, 1.0, 0.0)
    for node, us in zip(measurement.nodes, node_labels(measurement, counters).tolist(), strict=True):
        if node.is_reorder:
            name = _converted(graph, kernels, node.tensor)
            key, names, types, parts = (True, name), [name], [_REORDER], [predicted.get((True, name))]
        else:
            key = (False, group[node.members[0]])
            its = together.get(key[1]) or [make_kernel(graph, node.members)]
            names, types = [k.name for k in its], [k.config.type for k in its]
            parts = [predicted.get((False, name)) for name in names]
        known = [part for part in parts if part is not None]
        before = rows[key].measured_ms if key in rows else None
        rows[key] = KernelComparison(
            " + ".join(names),
            " + ".join(types),
            sum(known) if known and len(known) == len(parts) else None,
            (before or 0.0) + us / _US_PER_MS,
        )
    return (*rows.values(), *_not_run(prediction, kernels, group, rows))


def _not_run(
    prediction: Prediction | None, kernels: Sequence[Kernel], group: Mapping[str, str], rows: Mapping[tuple[bool, str], object]
) -> Iterator[KernelComparison]:
    """Yield the predictions of kernels and conversions that the engine has no node for."""
    place = {kernel.name: group[kernel.members[0]] for kernel in kernels}
    for line in prediction.kernels if prediction else ():
        conversion = line.type == _REORDER
        if (conversion, line.name if conversion else place[line.name]) not in rows:
            yield KernelComparison(line.name, line.type, line.latency_ms, None)


def _groups(members: Iterable[Sequence[str]]) -> dict[str, str]:
    """Return for each operator the least name among those that share kernels or nodes with it, also through others."""
    found: dict[str, set[str]] = {}
    for names in members:
        joined = set(names).union(*(found[name] for name in names if name in found))
        found |= dict.fromkeys(joined, joined)
    return {name: min(joined) for name, joined in found.items()}


def _converted(graph: Graph, kernels: Sequence[Kernel], tensor: str) -> str:
    """Name the tensor of a layout conversion, as predictions name it."""
    if tensor in graph.inputs:
        return "graph input"
    writer = next((kernel.name for kernel in kernels if tensor in kernel.outputs), None)
    producer = graph.producer.get(tensor)
    return f"{writer or (producer.name if producer else tensor)} (output)"
