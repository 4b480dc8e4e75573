"""Sessions of ONNX Runtime that outputs are held against."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx

from edgeplan.graph.onnx.quantised import rounds_to_bytes
from edgeplan.support.lazy import lazily

ort = lazily("onnxruntime")  # an extra

_ERRORS_ONLY = 3  # warnings of ONNX Runtime come with colour codes, into files, too


def rounds(model: Path) -> bool:
    """Tell whether a model rounds to bytes: the reference is then ONNX Runtime without optimisations, which round elsewhere."""
    return rounds_to_bytes(onnx.load(model, load_external_data=False))


def opened(model: Path, *, optimised: bool) -> Any:
    """Open a session of one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, _ERRORS_ONLY
    if not optimised:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
