"""Compares a model measured on this machine with what was predicted for it: whole, and kernel by kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from edgeplan.chapters.prediction.further import brought_here, measure_configs
from edgeplan.chapters.prediction.model_prediction import KernelLatency, Prediction, predict_executed
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.engines.registry import engine_class
from edgeplan.errors import FormatError, PredictionError
from edgeplan.graph.model_file import read_model
from edgeplan.graph.nodes import ExecutedModel
from edgeplan.graph.onnx.contents import contents_of
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.measurement.records import FileSubject, Subject
from edgeplan.measurement.whole_model import measure_subject
from edgeplan.predictors.source import find_predictors
from edgeplan.predictors.teller import Teller
from edgeplan.support.scratch import ScratchFolder

_US_PER_MS = 1e3
#: Distinct kernels that are measured, at most: those that take the longest.
_MOST_KERNELS = 200


@dataclass(frozen=True, slots=True)
class KernelComparison:
    """Compares one executed node, in ms; None: not known.

    Attributes:
        name, type: the engine's.
        predicted_ms: latency that the predictors give.
        measured_ms: of the node in copies, by itself.
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
        latency_ms: median run, as it ran: what a user meets.
        normalised_ms: the same at the speed of this machine when it is quiet: median over blocks.
        noise: how far that can be trusted: half the range of the middle blocks, relative.
        least_ms: least run as it was.
        slowness: how many times as slow as when it is quiet the machine was meanwhile.
        waited: share of the time that others had this process's processors: what it took then is in the figures.
        throttled: share of the time that a CPU quota of a control group stopped it, which is in them as well.
        seconds: how long it took.
        prediction: prediction for the device, None where there is none.
        without_prediction: why, and `next_step` what to do.
        kernels: predicted beside measured; empty without a prediction.
        without_kernels: why.
    """

    model: str
    device: str
    latency_ms: float
    normalised_ms: float
    noise: float
    least_ms: float
    slowness: float
    waited: float
    throttled: float
    seconds: float
    prediction: Prediction | None
    without_prediction: str
    next_step: str
    kernels: tuple[KernelComparison, ...]
    without_kernels: str

    @property
    def deviation(self) -> float | None:
        """Return predicted over measured latency, less 1; None without a prediction."""
        return None if self.prediction is None else self.prediction.latency_ms / self.latency_ms - 1

    @property
    def inside(self) -> bool | None:
        """Tell whether the measured latency lies in the predicted interval; None without one."""
        if self.prediction is None or self.prediction.low_ms is None or self.prediction.high_ms is None:
            return None
        return self.prediction.low_ms <= self.latency_ms <= self.prediction.high_ms


def measure_model(
    model: Path, wanted: Preparation, device: str | Path, *, seconds: float, results: Path | None, rows: Path
) -> Measured:
    """Measure a model as a user runs it, and predict it where the device has predictors: see `edgeplan.api.measure`."""
    file = load_device(device)
    file.require_local("a model with weights of its own is measured")
    prediction, executed, reason, following = None, None, "", ""
    try:
        source = brought_here(file, find_predictors(str(device), results))
        executed = Teller(file, source.rules).of_file(model, wanted)
        prediction = predict_executed(executed, source)
    except (FormatError, PredictionError) as error:  # measuring does not need it
        reason, following = error.what, error.next_step
    with ScratchFolder("measure") as folder:
        subject = _subject(file, model, wanted, Path(folder))
        found = measure_subject(file, subject, rows, seconds)
    kernels: tuple[KernelComparison, ...] = ()
    without = "there is no prediction to compare with"
    if executed is not None and prediction is not None:
        kernels, without = _kernels(file, executed, prediction), ""
    m = found.measurement
    return Measured(
        model.name,
        file.name,
        float(np.median(m.median_us)) / _US_PER_MS,
        m.latency_us / _US_PER_MS,
        m.noise,
        float(m.least_us.min()) / _US_PER_MS,
        m.slowness,
        found.waited,
        found.throttled,
        found.seconds,
        prediction,
        reason,
        following,
        kernels,
        without,
    )


def _subject(device: DeviceFile, model: Path, wanted: Preparation, folder: Path) -> Subject | FileSubject:
    """Return the file itself where the engine reads it as it is, else what is prepared of it, as the engine's users have to."""
    if engine_class(device.engine).reads_files:
        contents_of(read_model(model), str(model), of_engine=True)  # says what is no model
        return FileSubject(model.name, lambda _: model, wanted)
    file = prepare_file(model, wanted, folder / model.name)
    return Subject(simplify(load_onnx(file)), file=file)


def _kernels(device: DeviceFile, executed: ExecutedModel, prediction: Prediction) -> tuple[KernelComparison, ...]:
    """Measure the nodes that take the longest, and return all beside what was predicted."""
    lines = sorted(zip(executed.nodes, prediction.kernels, strict=True), key=lambda pair: -pair[1].latency_ms)
    distinct = list(dict.fromkeys(node.config for node, _ in lines))[:_MOST_KERNELS]
    found = measure_configs(device, distinct, executed.context_bytes)
    return tuple(
        _beside(node.config.key, node.times, line, found) for node, line in zip(executed.nodes, prediction.kernels, strict=True)
    )


def _beside(key: str, times: int, line: KernelLatency, found: Mapping[str, float]) -> KernelComparison:
    measured = times * found[key] / _US_PER_MS if key in found else None
    return KernelComparison(line.name, line.type, line.latency_ms, measured)
