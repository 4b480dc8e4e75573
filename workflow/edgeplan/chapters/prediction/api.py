"""Offers the chapter on prediction to programs: `edgeplan.predict` and `edgeplan.measure`."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from edgeplan.chapters.prediction.comparison import Measured, measure_model
from edgeplan.chapters.prediction.model_prediction import Prediction, predict_graph
from edgeplan.graph.onnx.prepare import Preparation, Shapes, load_prepared, prepare_file
from edgeplan.graph.simplify import simplify
from edgeplan.predictors.source import find_predictors
from edgeplan.support.files import FilePath
from edgeplan.support.scratch import ScratchFolder
from edgeplan.workspace import workspace


def predict(
    model: FilePath,
    device: FilePath = "cpu-onnxruntime",
    *,
    results: FilePath | None = None,
    partial: bool = False,
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
        partial: predict what can be, where kernels have no predictor.
        preparation: what the file leaves open; or, in its place, the three that follow.
        shape: sizes of inputs with open axes, by name.
        set: values of inputs that steer the graph, by name: numbers, truth values, or sequences of them.
        batch: size of the open axis of examples.

    Raises:
        ModelError: the file cannot be read or holds what is not known.
        PredictionError: a kernel has no predictor, unless `partial`.
        FormatError, DeviceError: there are no predictors of that device.
    """
    source = find_predictors(str(device), None if results is None else Path(results))
    path = Path(model)
    return predict_graph(
        simplify(load_prepared(path, Preparation.given(preparation, shape, set, batch))), path.name, source, partial=partial
    )[0]


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
    path = Path(model)
    with ScratchFolder("prepared") as folder:
        return measure_model(
            prepare_file(path, Preparation.given(preparation, shape, set, batch), Path(folder) / path.name),
            Path(device) if isinstance(device, PathLike) else device,
            seconds=seconds,
            results=None if results is None else Path(results),
            rows=workspace().rows if rows is None else Path(rows),
        )
