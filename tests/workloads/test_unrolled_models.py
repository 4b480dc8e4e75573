"""Unrolled recurrent layers compute what ONNX Runtime computes, with the parameters and products of the layers they are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import numpy as np
import onnxruntime as ort
import pytest

from counts import macs, parameters
from edgeplan.chapters.cold_start.plan import read_model
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import NCHW
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession
from edgeplan.workloads.recurrent import recurrent_language_model
from edgeplan.workloads.registry import save_workload
from edgeplan.workloads.unrolled import unrolled_language_model


@pytest.mark.parametrize("cell", ["LSTM", "GRU"])
@pytest.mark.parametrize("tokens", [1, 3])
def test_an_unrolled_layer_is_the_layer(dnnl: Dnnl, tmp_path: Path, cell: Literal["LSTM", "GRU"], tokens: int) -> None:
    sizes = {"vocabulary": 97, "embedding": 12, "hidden": 8, "batch": 4}
    made = unrolled_language_model("unrolled", cell, tokens=tokens, **sizes)
    layer = recurrent_language_model("layer", cell, tokens=tokens, **sizes)
    assert parameters(made) == parameters(layer)
    assert macs(made) == macs(layer)
    path = save_workload(made, tmp_path / "model.onnx")
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    inputs = {
        i.name: rng.integers(0, 97, i.shape) if i.type == "tensor(int64)" else rng.standard_normal(i.shape).astype(np.float32)
        for i in session.get_inputs()
    }
    expected = dict(zip((o.name for o in session.get_outputs()), session.run(None, inputs), strict=True))
    graph, _ = read_model(path)
    found = SequentialSession(dnnl, default_program(dnnl, path, graph, NCHW), tmp_path).run(inputs)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-4, atol=1e-5)
