"""Compiled steps in sessions: prepared as primitives are, on tensors of several types, and held to their places."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_file_runs import made, node, onnxruntime_outputs, write
from onnx import TensorProto

from edgeplan.errors import ModelError
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
_IDS, _WORDS = 6, 5
_INT64 = TensorProto.INT64


def _written(
    path: Path, nodes: Sequence[Any], given: dict[str, Any], constants: dict[str, Any], outputs: dict[str, int]
) -> Path:
    model = made(nodes, given, constants, output=" ".join(outputs))
    for output, kind in zip(model.graph.output, outputs.values(), strict=True):
        output.type.tensor_type.elem_type = kind
    return write(model, path)


def _words(path: Path) -> Path:
    """Embedded token ids, of which a mask hides some; an image, of which a threshold hides some, between convolutions."""
    rng = np.random.default_rng(2)
    floats = {"w": (8, 3, 3, 3), "v": (4, 8, 1, 1), "table": (_WORDS, 7), "low": (1,), "half": (8, 1, 1)}
    constants: dict[str, Any] = {name: rng.uniform(-1, 1, shape).astype(np.float32) for name, shape in floats.items()}
    constants |= {"last": np.array([2]), "three": np.array([[3]]), "flat": np.array([_IDS, 7])}
    nodes = [
        node("Gather", "table ids", "e"),
        node("Mod", "ids three", "third"),
        node("Greater", "third mask", "kept"),
        node("Unsqueeze", "kept last", "raised"),
        node("Where", "raised e low", "shown"),
        node("Reshape", "shown flat", "rows"),
        node("ArgMax", "rows", "best", axis=-1, keepdims=1),
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Less", "a half", "small"),
        node("Where", "small half a", "b"),
        node("Conv", "b v", "image"),
    ]
    given = {"x": (1, 3, 9, 6), "ids": (_INT64, (1, _IDS)), "mask": (_INT64, (1, _IDS))}
    outputs = {"rows": TensorProto.FLOAT, "best": _INT64, "image": TensorProto.FLOAT, "kept": TensorProto.BOOL}
    return _written(path, nodes, given, constants, outputs)


def _selecting(path: Path) -> Path:
    """A long axis that is resized and read backwards, its best places, and a number: tables, two outputs, no axis."""
    nodes = [
        node("Resize", "x - scales", "wide", mode="linear", coordinate_transformation_mode="asymmetric"),
        node("Slice", "wide start end axis back", "turned"),
        node("TopK", "turned three", "best places"),
        node("Conv", "turned w", "c"),
        node("ReduceMean", "c", "mean", keepdims=0),
    ]
    ints = {"start": [-1], "end": [-10_000], "axis": [3], "back": [-1], "three": [3]}
    constants: dict[str, Any] = {name: np.array(value) for name, value in ints.items()}
    constants |= {"scales": np.array([1, 1, 1, 1.5], np.float32), "w": np.full((4, 2, 1, 3), 0.3, np.float32)}
    outputs = {"best": TensorProto.FLOAT, "mean": TensorProto.FLOAT, "places": _INT64}
    return _written(path, nodes, {"x": (1, 2, 3, 500)}, constants, outputs)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return _words(tmp_path / "words.onnx")


def _inputs() -> dict[str, Any]:
    x = np.random.default_rng(3).uniform(-1, 1, (1, 3, 9, 6)).astype(np.float32)
    return {"x": x, "ids": np.array([[0, 4, -1, 2, 3, 1]]), "mask": np.array([[0, 1, 0, 1, 0, 0]])}


def _assert_right(found: Inputs, path: Path, inputs: Inputs) -> None:
    for (name, value), wanted in zip(found.items(), onnxruntime_outputs(path, inputs), strict=True):
        assert value.dtype == wanted.dtype
        assert np.abs(value.astype(np.float64) - wanted).max() <= 1e-5, name


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("write_model", [_words, _selecting])
def test_a_planned_start_gives_onnx_runtimes_numbers(
    dnnl: Dnnl, planned: Callable[..., Plan], tmp_path: Path, home: str, write_model: Callable[[Path], Path]
) -> None:
    """Tables lie where weights do."""
    model = write_model(tmp_path / "model.onnx")
    inputs = _inputs() if write_model is _words else {"x": np.random.default_rng(5).uniform(-1, 1, (1, 2, 3, 500))}
    inputs["x"] = inputs["x"].astype(np.float32)
    for source in ("raw", "cached_read", "cached_mmap"):
        plan = planned(model, load_onnx(model), home=home, sources=(source,), widen_from=-1)
        folder = build_plan_folder(dnnl, model, plan, tmp_path / source)
        for _ in range(2):
            with open_session(folder) as session:
                for _ in range(2):
                    _assert_right(session.run(inputs), model, inputs)
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
    _assert_right(plain.run(_inputs()), model, _inputs())


def test_an_input_of_another_type_is_named(dnnl: Dnnl, model: Path) -> None:
    session = SequentialSession(dnnl, default_program(dnnl, model, load_onnx(model), HOMES[0]), model.parent)
    with pytest.raises(ModelError, match=r"input 'ids' is float64\[1, 6\], not int64\[1, 6\]"):
        session.run({**_inputs(), "ids": np.zeros((1, _IDS))})


def test_a_fresh_process_draws_inputs_of_the_models_types(
    dnnl: Dnnl, planned: Callable[..., Plan], model: Path, tmp_path: Path
) -> None:
    folder = build_plan_folder(dnnl, model, planned(model, load_onnx(model)), tmp_path / "plan")
    assert run(folder, cold=True).cold_ms
    here = run(folder, check=True, model=model)
    assert here.difference is not None
    assert here.difference <= 1e-5
