"""Variants in eight bits are the same from the same seed, and compute what the model does but for rounding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

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
from edgeplan.zoo.eight_bits import QUANTISED_FAMILIES, quantised
from edgeplan.zoo.registry import FAMILIES

LANE = "numerics"


def _model(folder: Path) -> Path:
    b = GraphBuilder("net", (1, 3, 16, 16))
    x = b.activation(b.bn(b.conv(b.input, 16, 3)), "relu")
    x = b.add(x, b.bn(b.conv(x, 16, 3)))
    return save_onnx(b.build(b.fc(b.reshape(b.gap(x), (1, 16)), 10)), folder / "net.onnx")


def test_the_same_seed_gives_the_same_file(tmp_path: Path) -> None:
    model = _model(tmp_path)
    files = [quantised(model, tmp_path / f"{k}.onnx", seed).read_bytes() for k, seed in enumerate((0, 0, 1))]
    assert files[0] == files[1] != files[2]


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


@pytest.mark.parametrize("name", QUANTISED_FAMILIES)
def test_families_that_have_variants_are_of_the_zoo(name: str) -> None:
    assert name in FAMILIES
