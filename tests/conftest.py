"""What the tests of the runtime share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest

from edgeplan.devices.engines.base import random_inputs
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx_export import save_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.program import build_program, step_candidates
from edgeplan.runtime.session import SequentialSession
from edgeplan.runtime.weights import locate_weights

Array = npt.NDArray[np.float32]
#: Checks a graph: (graph, model file or None, home layouts, how many of the candidates); returns how many programs it ran.
Check = Callable[..., int]


@pytest.fixture(scope="session")
def dnnl() -> Dnnl:
    """The library; the tests that need it are skipped where it is not installed."""
    try:
        return Dnnl()
    except DeviceError as error:
        pytest.skip(error.what)


def reference(model: Path, graph: Graph) -> Mapping[str, Array]:
    """Outputs of ONNX Runtime, operator by operator."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return dict(zip(graph.outputs, session.run(list(graph.outputs), random_inputs(graph)), strict=True))


@pytest.fixture
def agrees(dnnl: Dnnl, tmp_path: Path) -> Check:
    """Runs a graph with the k-th candidate of every step, for all k, and compares with ONNX Runtime."""

    def check(graph: Graph, model: onnx.ModelProto | None = None, homes: Sequence[str] = HOMES, most: int | None = None) -> int:
        dnnl.set_threads(1)
        path = tmp_path / "model.onnx"
        if model is None:
            save_onnx(graph, path)
        else:
            onnx.save(model, path)
        wanted = reference(path, graph)
        lowered = lower(graph)
        weights = locate_weights(path, lowered)
        ran = 0
        for home in homes:
            offered = step_candidates(dnnl, lowered, home)
            for k in range(max(map(len, offered)))[:most]:
                choices = [candidates[min(k, len(candidates) - 1)] for candidates in offered]
                program = build_program(dnnl, lowered, home, choices, weights)
                found = SequentialSession(dnnl, program, tmp_path).run(random_inputs(graph))
                ran += 1
                for name, value in wanted.items():
                    error = np.abs(found[name] - value).max() / np.abs(value).max()
                    assert error <= 1e-4, f"{name} is off by {error} under {home}: {[c.name for c in choices]}"
        return ran

    return check
