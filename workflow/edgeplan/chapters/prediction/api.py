"""Predicts models on a device, and measures them on this machine beside that: `edgeplan.predict` and `edgeplan.measure`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from edgeplan.chapters.prediction.further import brought_here, measure_configs, measured_further
from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.engines.registry import engine_class
from edgeplan.errors import FormatError, PredictionError
from edgeplan.graph.model_file import read_model
from edgeplan.graph.nodes import ExecutedModel, NodeConfig
from edgeplan.graph.onnx.contents import contents_of
from edgeplan.graph.onnx.prepare import Preparation, Shapes, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.measurement.local import measure_subject
from edgeplan.measurement.records import FileSubject, Subject
from edgeplan.predictors.source import Source, find_predictors
from edgeplan.predictors.teller import Teller
from edgeplan.support.files import FilePath
from edgeplan.support.scratch import ScratchFolder
from edgeplan.workspace import workspace

_US_PER_MS = 1e3
#: Distinct kernels that are measured, at most: those that take the longest.
_MOST_KERNELS = 200


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


def predict(
    model: FilePath,
    device: FilePath = "cpu-onnxruntime",
    *,
    results: FilePath | None = None,
    measure: float = 0.0,
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
) -> Prediction:
    """Predict the latency of a model on a device that was measured.

    Args:
        model: ONNX file.
        device: name of the device, or path of its file.
        results: folder of the results, with the device's predictors; without, the workspace's, then the shipped ones.
        measure: seconds to measure what weighs most in the interval, on the device; it is kept for later predictions.
        preparation: what the file leaves open; or, in its place, the three that follow.
        shape: sizes of inputs with open axes, by name.
        set: values of inputs that steer the graph, by name: numbers, truth values, or sequences of them.
        batch: size of the open axis of examples.

    Raises:
        ModelError: the file cannot be read, an axis stays open, or the engine cannot run it.
        FormatError, DeviceError: there are no predictors of that device, or it cannot be measured.
        BusyError: it is to be measured, and another process is measuring.
    """
    file = load_device(Path(device) if isinstance(device, PathLike) else device)
    source = find_predictors(str(device), None if results is None else Path(results))
    wanted = Preparation.given(preparation, shape, set, batch)
    source = brought_here(file, source)
    executed = Teller(file, source.rules).of_file(Path(model), wanted)
    if measure:
        source = measured_further(file, source, executed, seconds=measure)
    return predict_executed(executed, source)


def measure(
    model: FilePath,
    device: FilePath = "cpu-onnxruntime",
    *,
    seconds: float = 20.0,
    results: FilePath | None = None,
    rows: FilePath | None = None,
    preparation: Preparation | None = None,
    shape: Shapes | None = None,
    set: Mapping[str, Any] | None = None,  # noqa: A002  as on the command line
    batch: int | None = None,
) -> Measured:
    """Measure a model on this machine, and predict it where the device has predictors.

    Noise never ends it: the answer says how noisy it is.

    Args:
        model: ONNX file.
        device: name of a device file, or a path to one.
        seconds: about how long to measure.
        results: folder of the results, with predictors; without, the workspace's, then the shipped ones.
        rows: folder of measured rows: how fast this machine is when it is quiet; without, that of the workspace.
        preparation: as for `predict`.
        shape: likewise.
        set: likewise.
        batch: likewise.

    Raises:
        ModelError: the file cannot be read, or the engine cannot load it.
        DeviceError: unknown device, engine not installed, or cores that may not be used.
        BusyError: another process is measuring.
    """
    path, wanted = Path(model), Preparation.given(preparation, shape, set, batch)
    quiet_rows = workspace().rows if rows is None else Path(rows)
    file = load_device(Path(device) if isinstance(device, PathLike) else device)
    file.require_local("a model with weights of its own is measured")
    prediction, executed, reason, following = None, None, "", ""
    try:
        source = brought_here(file, find_predictors(str(device), None if results is None else Path(results)))
        executed = Teller(file, source.rules).of_file(path, wanted)
        prediction = predict_executed(executed, source)
    except (FormatError, PredictionError) as error:  # measuring does not need it
        reason, following = error.what, error.next_step
    with ScratchFolder("measure") as folder:
        subject = _subject(file, path, wanted, Path(folder))
        found = measure_subject(file, subject, quiet_rows, seconds)
    kernels: tuple[KernelComparison, ...] = ()
    without = "there is no prediction to compare with"
    if executed is not None and prediction is not None:
        kernels, without = _kernels(file, executed, prediction), ""
    m = found.measurement
    return Measured(
        path.name,
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


def predict_executed(executed: ExecutedModel, source: Source) -> Prediction:
    """Predict a model of which it is known what is executed, by predictors that `find_predictors` found."""
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
    measured = (found.get(node.config.key) for node in executed.nodes)
    return tuple(
        KernelComparison(line.name, line.type, line.latency_ms, None if us is None else node.times * us / _US_PER_MS)
        for node, line, us in zip(executed.nodes, prediction.kernels, measured, strict=True)
    )
