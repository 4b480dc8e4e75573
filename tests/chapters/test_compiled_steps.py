"""Compiled steps in sessions: prepared as primitives are, on tensors of several types, and held to their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeplan.errors import ModelError
from edgeplan.graph import blocks
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.planning.document import Plan
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession

Inputs = Mapping[str, np.ndarray[Any, Any]]
_node = helper.make_node
_IDS, _WORDS = 6, 5


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Embedded token ids, of which a mask hides some; an image, of which a threshold hides some, between convolutions."""
    rng = np.random.default_rng(2)
    floats = {"w": (8, 3, 3, 3), "v": (4, 8, 1, 1), "table": (_WORDS, 7), "low": (1,), "half": (8, 1, 1)}
    constants: dict[str, Any] = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in floats.items()}
    constants |= {"last": np.array([2]), "three": np.array([[3]]), "flat": np.array([_IDS, 7])}
    nodes = [
        _node("Gather", ["table", "ids"], ["e"]),
        _node("Mod", ["ids", "three"], ["third"]),
        _node("Greater", ["third", "mask"], ["kept"]),
        _node("Unsqueeze", ["kept", "last"], ["raised"]),
        _node("Where", ["raised", "e", "low"], ["shown"]),
        _node("Reshape", ["shown", "flat"], ["rows"]),
        _node("ArgMax", ["rows"], ["best"], axis=-1, keepdims=1),
        _node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        _node("Less", ["a", "half"], ["small"]),
        _node("Where", ["small", "half", "a"], ["b"]),
        _node("Conv", ["b", "v"], ["image"]),
    ]
    types = {"ids": TensorProto.INT64, "mask": TensorProto.INT64, "best": TensorProto.INT64, "kept": TensorProto.BOOL}
    given = {"x": (1, 3, 9, 6), "ids": (1, _IDS), "mask": (1, _IDS)}

    def told(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, types.get(name, TensorProto.FLOAT), given.get(name))

    body = helper.make_graph(
        nodes,
        "words",
        [told(name) for name in given],
        [told(name) for name in ("rows", "best", "image", "kept")],
        [numpy_helper.from_array(v, name) for name, v in constants.items()],
    )
    path = tmp_path / "words.onnx"
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _inputs() -> dict[str, Any]:
    x = np.random.default_rng(3).uniform(-1, 1, (1, 3, 9, 6)).astype(np.float32)
    return {"x": x, "ids": np.array([[0, 4, -1, 2, 3, 1]]), "mask": np.array([[0, 1, 0, 1, 0, 0]])}


def _reference(path: Path, inputs: Inputs) -> dict[str, Any]:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def _assert_right(found: Inputs, wanted: Inputs) -> None:
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype
        assert np.abs(found[name].astype(np.float64) - value).max() <= 1e-5, name


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("sources", [("raw",), ("cached_read",), ("cached_mmap",)])
def test_a_planned_start_gives_onnx_runtimes_numbers(
    dnnl: Dnnl, planned: Callable[..., Plan], model: Path, tmp_path: Path, home: str, sources: tuple[str, ...]
) -> None:
    plan = planned(model, load_onnx(model), home=home, sources=sources, widen_from=-1)
    folder = build_plan_folder(dnnl, model, plan, tmp_path / "plan")
    wanted = _reference(model, _inputs())
    for _ in range(2):
        with open_session(folder) as session:
            for _ in range(2):
                _assert_right(session.run(_inputs()), wanted)
            assert session.fact("checked") == 0


@pytest.fixture
def selecting(tmp_path: Path) -> Path:
    """A long axis that is resized and read backwards, its best places, and a number: tables, two outputs, no axis."""
    nodes = [
        _node("Resize", ["x", "", "scales"], ["wide"], mode="linear", coordinate_transformation_mode="asymmetric"),
        _node("Slice", ["wide", "start", "end", "axis", "back"], ["turned"]),
        _node("TopK", ["turned", "three"], ["best", "places"]),
        _node("Conv", ["turned", "w"], ["c"]),
        _node("ReduceMean", ["c"], ["mean"], keepdims=0),
    ]
    ints = {"start": [-1], "end": [-10_000], "axis": [3], "back": [-1], "three": [3]}
    constants: dict[str, Any] = {name: np.array(value) for name, value in ints.items()}
    constants |= {"scales": np.array([1, 1, 1, 1.5], np.float32), "w": np.full((4, 2, 1, 3), 0.3, np.float32)}
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("best", "mean")]
    outputs.append(helper.make_tensor_value_info("places", TensorProto.INT64, None))
    body = helper.make_graph(
        nodes,
        "selecting",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 2, 3, 500))],
        outputs,
        [numpy_helper.from_array(v, name) for name, v in constants.items()],
    )
    path = tmp_path / "selecting.onnx"
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("sources", [("raw",), ("cached_read",), ("cached_mmap",)])
def test_tables_lie_where_weights_do(
    dnnl: Dnnl, planned: Callable[..., Plan], selecting: Path, tmp_path: Path, home: str, sources: tuple[str, ...]
) -> None:
    folder = build_plan_folder(
        dnnl, selecting, planned(selecting, load_onnx(selecting), home=home, sources=sources, widen_from=-1), tmp_path / "plan"
    )
    inputs = {"x": np.random.default_rng(5).uniform(-1, 1, (1, 2, 3, 500)).astype(np.float32)}
    wanted = _reference(selecting, inputs)
    for _ in range(2):
        with open_session(folder) as session:
            for _ in range(2):
                _assert_right(session.run(inputs), wanted)
            assert session.fact("checked") == 0


def test_an_index_outside_its_axis_is_told_by_every_runner(
    dnnl: Dnnl, planned: Callable[..., Plan], model: Path, tmp_path: Path
) -> None:
    graph = load_onnx(model)
    plain = SequentialSession(dnnl, default_program(dnnl, model, graph, HOMES[0]), model.parent)
    folder = build_plan_folder(dnnl, model, planned(model, graph), tmp_path / "plan")
    for wrong in (_WORDS, -_WORDS - 1, 1 << 62, -(1 << 62)):
        inputs = _inputs()
        inputs["ids"][0, 3] = wrong
        with pytest.raises(ModelError, match="outside the axis"):
            plain.run(inputs)
        with open_session(folder) as session, pytest.raises(ModelError, match="outside the axis"):
            session.run(inputs)
    _assert_right(plain.run(_inputs()), _reference(model, _inputs()))


def test_an_input_of_another_type_is_named(dnnl: Dnnl, model: Path) -> None:
    session = SequentialSession(dnnl, default_program(dnnl, model, load_onnx(model), HOMES[0]), model.parent)
    with pytest.raises(ModelError, match=r"input 'ids' is float64\[1, 6\], not int64\[1, 6\]"):
        session.run({**_inputs(), "ids": np.zeros((1, _IDS))})


@pytest.mark.parametrize("start", [-1, 1])
def test_a_block_tells_how_far_it_reaches(start: int) -> None:
    block = blocks.block((2, 3), 4, [blocks.Walked("int64", (12, 4), 1, start=start, reach=5)])
    if start < 0:
        with pytest.raises(ValueError, match="elsewhere"):
            blocks.span_bytes(block, 0)
    else:
        assert blocks.span_bytes(block, 0) == 8 * (24 + 1 + 5)


def test_a_fresh_process_draws_inputs_of_the_models_types(
    dnnl: Dnnl, planned: Callable[..., Plan], model: Path, tmp_path: Path
) -> None:
    folder = build_plan_folder(dnnl, model, planned(model, load_onnx(model)), tmp_path / "plan")
    assert run(folder, cold=True).cold_ms
    here = run(folder, check=True, model=model)
    assert here.difference is not None
    assert here.difference <= 1e-5
