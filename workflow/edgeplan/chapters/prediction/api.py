"""Predicts models on a device, and measures them on this machine beside that: `edgeplan.predict` and `edgeplan.measure`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from edgeplan.devices.config import DeviceFile, load_device
from edgeplan.engines.registry import engine_class
from edgeplan.errors import DeviceError, FormatError, PredictionError, StoreError
from edgeplan.graph.model_file import read_message
from edgeplan.graph.nodes import ExecutedModel, NodeConfig
from edgeplan.graph.onnx.contents import contents_of
from edgeplan.graph.onnx.prepare import OpenParts, Preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.kernel_labels import label_us
from edgeplan.measurement.local import measure_subject
from edgeplan.measurement.records import CALLS, FileSubject, NodeSubject, Subject, call_us
from edgeplan.measurement.references import References, quiet_times
from edgeplan.measurement.settings import MeasurementSettings, ReferenceExponents, node_settings
from edgeplan.predictors.nodes.storing import own_folder, read_measured, write_measured
from edgeplan.predictors.source import Source, find_predictors
from edgeplan.predictors.teller import Teller
from edgeplan.support.files import FilePath, read_json, state_folder, write_json
from edgeplan.support.machine import fingerprint
from edgeplan.support.scratch import ScratchFolder
from edgeplan.workspace import workspace

_US_PER_MS = 1e3
#: Distinct kernels that are measured, at most: those that take the longest.
_MOST_KERNELS = 200


@dataclass(frozen=True, slots=True)
class KernelLatency:
    """Holds the predicted latency of one executed node.

    Attributes:
        operators: names of the file's operators that it holds; none of a layout conversion.
        latency_ms: prediction, of all times that it runs.
        low_ms, high_ms: its interval; None of a guess.
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
        about: the same as a line of text; "" where it is this machine.
        low_ms, high_ms: its interval; None where too much of it is guessed.
        interval: nominal coverage of the interval, of 1.
        shares: share of the latency by source: "measured", "learnt", "guessed".
        call_ms: constant cost of the call and what lies between nodes, part of the latency.
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
    """Compares one executed node, in ms; None: not known."""

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
        latency_ms: median run, as it ran: what a user meets.
        normalised_ms: the same at the speed of this machine when it is quiet: median over blocks.
        noise: how far that can be trusted: half the range of the middle blocks, relative.
        slowness: how many times as slow as when it is quiet the machine was meanwhile.
        waited: share of the time that others had this process's processors: what it took then is in the figures.
        throttled: share of the time that a CPU quota of a control group stopped it, which is in them as well.
        without_prediction: why, and `next_step` what to do.
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
    **given: Unpack[OpenParts],
) -> Prediction:
    """Predict the latency of a model on a device that was measured.

    Args:
        model: ONNX file.
        device: name of the device, or path of its file.
        results: folder of the results, with the device's predictors; without, the workspace's, then the shipped ones.
        measure: seconds to measure what weighs most in the interval, on the device; it is kept for later predictions.
        given: what the file leaves open, by `shape`, `set` and `batch`, or as one `preparation` (`OpenParts`).

    Raises:
        ModelError: the file cannot be read, an axis stays open, or the engine cannot run it.
        FormatError, DeviceError: there are no predictors of that device, or it cannot be measured.
        BusyError: it is to be measured, and another process is measuring.
    """
    wanted, file = Preparation.given(**given), load_device(device)
    source = find_predictors(str(device), None if results is None else Path(results))
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
    **given: Unpack[OpenParts],
) -> Measured:
    """Measure a model on this machine, and predict it where the device has predictors.

    Noise never ends it: the answer says how noisy it is.

    Args:
        model: ONNX file.
        device: name of a device file, or a path to one.
        seconds: about how long to measure.
        results: folder of the results, with predictors; without, the workspace's, then the shipped ones.
        rows: folder of measured rows: how fast this machine is when it is quiet; without, that of the workspace.
        given: what the file leaves open (`OpenParts`).

    Raises:
        ModelError: the file cannot be read, or the engine cannot load it.
        DeviceError: unknown device, engine not installed, or cores that may not be used.
        BusyError: another process is measuring.
    """
    path, wanted = Path(model), Preparation.given(**given)
    quiet_rows = workspace().rows if rows is None else Path(rows)
    file = load_device(device)
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
    latency_ms, least_ms = float(np.median(m.median_us)) / _US_PER_MS, float(m.least_us.min()) / _US_PER_MS
    return Measured(
        path.name, file.name, latency_ms, m.latency_us / _US_PER_MS, m.noise, least_ms, m.slowness,
        found.waited, found.throttled, found.seconds, prediction, reason, following, kernels, without,
    )  # fmt: skip


def predict_executed(executed: ExecutedModel, source: Source) -> Prediction:
    """Predict a model of which it is known what is executed, by predictors that `find_predictors` found."""
    predictor = source.predictor
    found = predictor.predict(executed, source.known)
    # a node in its model takes its time by itself times a factor that all models share
    total, ms, within = found.latency_us, source.scale / _US_PER_MS, predictor.relation.scale
    kernels = []
    for told, node in zip(executed.nodes, found.nodes, strict=True):
        low_ms, high_ms = (None if node.source == "guessed" else us * within * ms for us in (node.low_us, node.high_us))
        latency_ms, share = node.us * within * ms, node.us * within / total
        kernels.append(
            KernelLatency(node.name, _type(node.config), told.operators, latency_ms, low_ms, high_ms, share, node.source)
        )
    shares = {name: sum(k.share for k in kernels if k.source == name) for name in ("measured", "learnt", "guessed")}
    told_by = "" if executed.told_by == f"{predictor.engine} {predictor.engine_version}" else executed.told_by
    made_for = PredictedFor(source.processor, source.shipped, source.here, told_by)
    low_ms, high_ms = (us * ms for us in found.interval_us) if found.interval_us else (None, None)
    call_ms = (total - within * sum(node.us for node in found.nodes)) * ms
    return Prediction(
        executed.name, source.device, made_for, source.about(), total * ms, low_ms, high_ms, predictor.trust.nominal,
        shares, call_ms, tuple(kernels),
    )  # fmt: skip


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
        contents_of(read_message(model), str(model), of_engine=True)  # says what is no model
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


#: Nodes measured of one model, at most.
_MOST = 25
#: For how long the references are timed alone before anything else.
_QUIET_S = 0.5
_REFERENCES_S, _REFERENCE_RUNS = 1.0, 4
SETTINGS = node_settings(
    MeasurementSettings(
        blocks=3,
        min_runs=2,
        max_runs=200,
        block_ms=6.0,
        reference_runs=2,
        batch_size=16,
        batch_weight_mb=1000,
        min_gap_seconds=0.0,
        max_noise=0.05,
        extra_blocks=0,
        max_noisy_share=1.0,
        retries=0,
        reference_exponents=ReferenceExponents(compute=0.8, bandwidth=0.05),
    )
)


def brought_here(device: DeviceFile, source: Source) -> Source:
    """Return predictors of another machine's CPU with its times scaled by a second of references on this one's.

    The scale is kept by machine. A board, a GPU, and an engine that is not here leave them as they are.
    """
    if source.here or source.nominal_us is None or device.board is not None:
        return source
    try:
        engine = device.load_engine()
    except DeviceError:
        return source
    if engine.reference_loads() is not None:
        return source
    try:
        kept = state_folder() / "references" / f"{fingerprint()}-{device.name}.json"
    except StoreError:  # a machine without an id, and nowhere to keep one
        return source
    if kept.is_file():
        times = read_json(kept, _Times, "times of the references")
    else:
        before = os.sched_getaffinity(0)
        try:
            device.pin()
            found = quiet_times(References(None), _REFERENCE_RUNS, _REFERENCES_S)
        finally:
            os.sched_setaffinity(0, before)
        times = _Times(compute_us=found.compute_us, bandwidth_us=found.bandwidth_us)
        with suppress(StoreError):  # nowhere to keep it: each prediction times them
            write_json(kept, times.model_dump())
    compute, bandwidth = source.nominal_us
    predictor = source.predictor
    now = SETTINGS.reference_exponents.scaled(times.compute_us / compute, times.bandwidth_us / bandwidth)
    scale = now / predictor.speed
    own = read_measured(own_folder(device.name, predictor.engine, predictor.engine_version))
    return replace(source, scale=scale, known={**source.known, **{key: us / scale for key, us in own.items()}})


class _Times(BaseModel):
    """Holds what the references take on a machine, us."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    compute_us: float = Field(gt=0)
    bandwidth_us: float = Field(gt=0)


def measured_further(device: DeviceFile, source: Source, model: ExecutedModel, *, seconds: float) -> Source:
    """Measure nodes while the time lasts, and return the predictors with what is known then; it is kept for later."""
    predictor = source.predictor
    wanted = predictor.to_measure(model, source.known, seconds=seconds, most=_MOST)
    if not wanted:
        return source
    found = measure_configs(device, wanted, model.context_bytes)
    folder = own_folder(device.name, predictor.engine, predictor.engine_version)
    write_measured(folder, {**read_measured(folder), **found})
    return replace(source, known={**source.known, **{key: us / source.scale for key, us in found.items()}})


def measure_configs(device: DeviceFile, configs: Sequence[NodeConfig], context_bytes: int) -> Mapping[str, float]:
    """Measure nodes of a model as the device runs now, us by key; those that the engine refuses are left out."""
    subjects = [NodeSubject(config, context_bytes) for config in configs]
    rows = state_folder() / "rows" / device.name / "measured"
    with Bench(device, SETTINGS, rows, quiet_seconds=_QUIET_S) as bench:
        calls = bench.measure(CALLS, description="the call")
        found = bench.measure_in_time(subjects, description="kernels of the model")
    call, measured = call_us(calls), [(one, m) for one, m in zip(subjects, found, strict=True) if m is not None]
    usual = float(np.median([m.slowness for m in (*calls, *(m for _, m in measured))]))  # times as the machine has them now
    labels = (label_us(one.config, m, call, one.copies) for one, m in measured)
    return {label[0].key: label[1] * usual for label in labels if label}
