"""ONNX Runtime's outputs are the reference that outputs of plans are checked against."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from edgeplan.errors import ModelError
from edgeplan.support.lazy import lazily
from edgeplan.support.tensors import OUTPUT_TOLERANCE, QUANTISED_TOLERANCE

ort, onnx = lazily("onnxruntime"), lazily("onnx")  # who runs plans compares none
quantised = lazily("edgeplan.graph.onnx.quantised")  # likewise

Array = npt.NDArray[np.float32]
_ERRORS_ONLY = 3


def output_tolerance(model: Path) -> float:
    """Return by what share of the largest magnitude outputs may differ from the reference: steps of bytes where it rounds."""
    rounds = quantised.rounds_to_bytes(onnx.load(model, load_external_data=False))
    return QUANTISED_TOLERANCE if rounds else OUTPUT_TOLERANCE


def reference_outputs(model: Path, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Return outputs of ONNX Runtime on one thread, by name; of models that round to bytes operator by operator.

    Raises:
        ModelError: ONNX Runtime cannot run the model.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = _ERRORS_ONLY
    if output_tolerance(model) > OUTPUT_TOLERANCE:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    except Exception as error:  # the types that ONNX Runtime raises derive from nothing else
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"ONNX Runtime cannot run the model: {reason}", where=str(model), next_step="run without --check"
        ) from error
