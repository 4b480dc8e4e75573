"""A prepared model held against the original, on ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper

from edgeplan.errors import CheckError, ModelError
from edgeplan.graph.onnx.prepare import Preparation, given_values, in_single_precision
from edgeplan.graph.onnx.quantised import rounds_to_bytes
from edgeplan.support.lazy import lazily
from edgeplan.support.scratch import ScratchFolder
from edgeplan.support.tensors import OUTPUT_TOLERANCE, QUANTISED_TOLERANCE

ort = lazily("onnxruntime")  # an extra

_INPUTS = 5
_ERRORS_ONLY = 3  # warnings of ONNX Runtime come with colour codes, into files, too


def largest_difference(original: Path, made: Path, wanted: Preparation) -> float:
    """Return the largest difference of their outputs on seeded inputs, over the largest magnitude of each output.

    Of an original of half precision it is its own arithmetic in single precision: what half precision rounds off is no fault of
    the prepared model, which is the more exact of the two.

    Raises:
        CheckError: they differ by more than rounding, or in shape.
        ModelError: ONNX Runtime is not installed or cannot run one of them.
    """
    try:
        options = ort.SessionOptions()
    except ImportError as error:
        raise ModelError("ONNX Runtime is not installed", where="--check", next_step="pip install onnxruntime") from error
    try:
        rounds = rounds_to_bytes(onnx.load(original, load_external_data=False))
        if rounds:  # operator by operator: what is fused rounds elsewhere
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = _ERRORS_ONLY
        with ScratchFolder("compare") as folder:  # both are read whole when they are opened
            known = in_single_precision(original, Path(folder) / "single.onnx")
            first, second = (ort.InferenceSession(str(path), options, ["CPUExecutionProvider"]) for path in (known, made))
        types = {i.name: i.type for i in first.get_inputs()}
        fixed = given_values(onnx.load(original, load_external_data=False), wanted.values, str(original))
        worst = 0.0
        for seed in range(_INPUTS):
            rng = np.random.default_rng(seed)
            given = {i.name: _drawn(rng, i.shape, i.type) for i in second.get_inputs()}
            before = {name: _as(value, types[name]) for name, value in (given | fixed).items()}
            for a, b in zip(first.run(None, before), second.run(None, given), strict=True):
                worst = max(worst, _difference(np.asarray(a), np.asarray(b)))
    except ort.capi.onnxruntime_pybind11_state.Fail as error:
        raise ModelError(f"ONNX Runtime cannot run it: {error}", where=str(made), next_step="report the model") from error
    if not worst <= (QUANTISED_TOLERANCE if rounds else OUTPUT_TOLERANCE):
        raise CheckError(
            f"the prepared model differs from the original by {worst:.1e} of the largest magnitude",
            where=str(made),
            next_step="do not use it; report the model",
        )
    return worst


def _numpy_type(name: str) -> np.dtype[Any]:
    kinds = {"tensor(float)": "FLOAT", "tensor(double)": "DOUBLE", "tensor(float16)": "FLOAT16", "tensor(bool)": "BOOL"}
    kind = kinds.get(name, name.removeprefix("tensor(").removesuffix(")").upper())
    found: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(onnx.TensorProto.DataType.Value(kind)))
    return found


def _drawn(rng: np.random.Generator, shape: list[int], kind: str) -> npt.NDArray[Any]:
    found = _numpy_type(kind)
    if np.issubdtype(found, np.floating):
        return np.asarray(rng.standard_normal(shape).astype(found))
    return np.asarray(rng.integers(0, 2, shape).astype(found))


def _as(value: npt.NDArray[Any], kind: str) -> npt.NDArray[Any]:
    return value.astype(_numpy_type(kind), copy=False)


def _difference(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> float:
    if a.shape != b.shape:
        return float("inf")
    if not a.size or np.array_equal(a, b, equal_nan=a.dtype.kind == "f"):
        return 0.0
    wide, other = a.astype(np.float64), b.astype(np.float64)
    return float(np.abs(wide - other).max() / max(np.abs(wide).max(), np.finfo(np.float32).tiny))
