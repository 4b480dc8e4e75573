"""Offers the chapter on prediction to programs: `edgeplan.predict` and `edgeplan.measure`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from edgeplan.chapters.prediction.comparison import Measured, measure_model
from edgeplan.chapters.prediction.further import brought_here, measured_further
from edgeplan.chapters.prediction.model_prediction import Prediction, predict_executed
from edgeplan.devices.config import load_device
from edgeplan.graph.onnx.prepare import Preparation, Shapes
from edgeplan.predictors.source import find_predictors
from edgeplan.predictors.teller import Teller
from edgeplan.support.files import FilePath
from edgeplan.workspace import workspace


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
    file, source = (
        load_device(Path(device) if isinstance(device, PathLike) else device),
        find_predictors(str(device), None if results is None else Path(results)),
    )
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
    return measure_model(
        Path(model),
        Preparation.given(preparation, shape, set, batch),
        Path(device) if isinstance(device, PathLike) else device,
        seconds=seconds,
        results=None if results is None else Path(results),
        rows=workspace().rows if rows is None else Path(rows),
    )
