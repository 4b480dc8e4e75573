"""Variants in eight bits compute what the model does but for rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
from model_file_runs import onnxruntime_outputs, own_outputs
from quantised_models import quantised

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.steps import INT8_KINDS
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower

LANE = "numerics"


def _model(path: Path) -> Path:
    """A network whose batch normalisations ONNX Runtime folds, as whoever quantises a model does before."""
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.activation(b.bn(b.conv(b.input, 16, 3)), "relu")
    x = b.add(x, b.bn(b.conv(x, 16, 3)))
    plain = save_onnx(b.build(b.fc(b.reshape(b.gap(x), (1, 16)), 10)), path.with_name("plain.onnx"))
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    ort.InferenceSession(str(plain), options, providers=["CPUExecutionProvider"])
    return path


def test_a_variant_is_computed_in_eight_bits_and_near_the_model(dnnl: Dnnl, tmp_path: Path) -> None:
    given = quantised(tmp_path, "qdq", network=_model, per_channel=True)
    path = prepare_file(given, Preparation(), tmp_path / "ready.onnx")
    graph = load_onnx(path)
    layers = [step.kind for step in lower(graph).steps if step.kind in (*INT8_KINDS, "conv", "fc")]
    assert layers == (["int8_conv", "int8_conv", "int8_fc"] if dnnl.info.exact_bytes else ["conv", "conv", "fc"])
    x = np.random.default_rng(5).standard_normal((1, 3, 16, 16)).astype(np.float32)
    inputs = {graph.inputs[0]: x}
    (found,) = own_outputs(dnnl, path, inputs, BLOCKED).values()
    wanted, theirs = (onnxruntime_outputs(one, inputs)[0] for one in (tmp_path / "float.onnx", given))
    assert np.abs(found - wanted).max() <= 1.2 * np.abs(theirs - wanted).max() + 1e-6
