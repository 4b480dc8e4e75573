"""Variants in eight bits compute what the model does but for rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
from eight_bit_variants import quantised

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.steps import INT8_KINDS
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import BLOCKED
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession

LANE = "numerics"


def _model(folder: Path) -> Path:
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.activation(b.bn(b.conv(b.input, 16, 3)), "relu")
    x = b.add(x, b.bn(b.conv(x, 16, 3)))
    return save_onnx(b.build(b.fc(b.reshape(b.gap(x), (1, 16)), 10)), folder / "net.onnx")


def test_a_variant_is_computed_in_eight_bits_and_near_the_model(dnnl: Dnnl, tmp_path: Path) -> None:
    model = _model(tmp_path)
    given = quantised(model, tmp_path / "int8.onnx")
    path = prepare_file(given, Preparation(), tmp_path / "ready.onnx")
    graph = load_onnx(path)
    layers = [step.kind for step in lower(graph).steps if step.kind in (*INT8_KINDS, "conv", "fc")]
    assert layers == (["int8_conv", "int8_conv", "int8_fc"] if dnnl.info.exact_bytes else ["conv", "conv", "fc"])
    x = np.random.default_rng(5).standard_normal((1, 3, 16, 16)).astype(np.float32)
    inputs = {graph.inputs[0]: x}
    (found,) = SequentialSession(dnnl, default_program(dnnl, path, graph, BLOCKED), tmp_path).run(inputs).values()

    wanted, theirs = (
        ort.InferenceSession(str(one), providers=["CPUExecutionProvider"]).run(None, inputs)[0] for one in (model, given)
    )
    assert np.abs(found - wanted).max() <= 1.2 * np.abs(theirs - wanted).max() + 1e-6
