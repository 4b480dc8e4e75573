"""Plan folders of models whose operators become several steps: run by compiled code, weights cached or made at the start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from depth import by_day
from edgeplan.engines.base import random_inputs
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.planning.document import SOURCES, Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder, write_linked

_node = helper.make_node


def _write(path: Path) -> Path:
    """Interpolation, means, constants on either side, sums of other ranks, last states, six axes, a line, heads."""
    rng = np.random.default_rng(3)
    shapes = {"w": (8, 3, 3, 3), "c": (1, 2, 8, 8), "m": (3, 8), "i": (1, 20, 2), "r": (1, 20, 5), "k": (4, 2, 3)}
    constants = {name: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    constants |= {"s": np.array([1, 8, 8, 8]), "six": np.array([1, 2, 2, 2, 8, 8]), "four": np.array([1, 2, 16, 16])}
    constants |= {"line": np.array([16, 2, 16]), "heads": np.array([1, 8, 2, 4]), "joined": np.array([8, 16])}
    nodes = [
        _node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        _node("Resize", ["a", "", "", "s"], ["b"], mode="linear", coordinate_transformation_mode="align_corners"),
        _node("MatMul", ["b", "b"], ["d"]),
        _node("MatMul", ["m", "z"], ["e"]),
        _node("Add", ["d", "z"], ["f"]),
        _node("Reshape", ["f", "six"], ["g"]),
        _node("Transpose", ["g"], ["h"], perm=[0, 1, 4, 2, 5, 3]),
        _node("Reshape", ["h", "four"], ["shuffled"]),
        _node("Reshape", ["shuffled", "line"], ["l"]),
        _node("Conv", ["l", "k"], ["n"]),
        _node("Transpose", ["l"], ["o"], perm=[2, 0, 1]),
        _node("LSTM", ["o", "i", "r"], ["", "", "q"], hidden_size=5),
        _node("Concat", ["c", "f"], ["p"], axis=1),
        _node("ReduceMean", ["p"], ["t"], axes=[1, 3], keepdims=0),
        _node("Reshape", ["z", "heads"], ["z4"]),
        _node("Transpose", ["z4"], ["query"], perm=[0, 2, 1, 3]),
        _node("Neg", ["z"], ["minus"]),
        _node("Reshape", ["minus", "heads"], ["minus4"]),
        _node("Transpose", ["minus4"], ["key"], perm=[0, 2, 3, 1]),
        _node("MatMul", ["query", "key"], ["scores"]),
        _node("Transpose", ["scores"], ["beside"], perm=[0, 2, 1, 3]),
        _node("Reshape", ["beside", "joined"], ["y"]),
    ]
    body = helper.make_graph(
        nodes,
        "composed",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", (1, 3, 5, 5)), ("z", (8, 8)))],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("e", "n", "q", "t", "y")],
        [numpy_helper.from_array(v, name) for name, v in constants.items()],
    )
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("sources", by_day([("cached_mmap", "raw"), ("raw",), ("cached_read",)]))
def test_a_planned_start_gives_onnx_runtimes_numbers(
    dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path, home: str, sources: tuple[str, ...]
) -> None:
    path = _write(tmp_path / "composed.onnx")
    graph = load_onnx(path)
    lowered = lower(graph)
    made = [k for k, step in enumerate(lowered.steps) if step.kind == "mix"]  # of weights that stand in no file
    assert made
    assert any({"read_0", "read_1", "written"} <= set(step.settings) for step in lowered.steps)
    plan = planned(path, graph, home=home, sources=sources, widen_from=-1)
    source = [SOURCES.index(sources[k % len(sources)]) if k in made else s for k, s in enumerate(plan.source)]
    folder = build_plan_folder(dnnl, path, plan.model_copy(update={"source": tuple(source)}), tmp_path / "plan")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    inputs = random_inputs(graph)
    wanted = dict(zip(graph.outputs, ort.InferenceSession(str(path), options).run(None, inputs), strict=True))
    for _ in range(2):  # twice in a process
        with open_session(folder) as session:
            for found in (session.run(inputs), session.run(inputs)):
                for name, value in wanted.items():
                    np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


def test_weights_that_cannot_be_made_at_a_start_stay_in_the_cache(
    dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the plan says, and whatever the limit is; a later kernel that would need others is done without."""
    path = _write(tmp_path / "composed.onnx")
    plan = planned(path, load_onnx(path), sources=("raw",), widen_from=-1)
    for limit in (None, 0):
        linked = write_linked(dnnl, path, plan, tmp_path / "plan", limit_bytes=limit)
        sources = {step.kind: step.source for step in linked.steps if step.slots}
        cached = {kind for kind, source in sources.items() if source == "cached_read"}
        assert cached == {"mix", "lstm", "matmul"}
        assert {sources[kind] for kind in {*sources} - cached} == {"raw"}
        assert not {again.kind for again in linked.later if again is not None and again.source == "raw"} & cached
    assert "the rest cannot be made from the model's weights at a start" in caplog.text
