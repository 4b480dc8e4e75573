"""Outputs that nothing computes (a length, a stride, an anchor) are handed out by every way to run a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from model_file_runs import node, values
from onnx import TensorProto, helper, numpy_helper
from partition_frames import DISPATCHER

from depth import by_day
from edgeplan import plan_memory, predict
from edgeplan.engines.base import random_inputs
from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program import build_program, step_candidates
from edgeplan.runtime.session import SequentialSession
from edgeplan.runtime.weights import locate_weights
from edgeplan.support.tensors import write_outputs

IMAGE = (1, 3, 8, 8)
CONV = node("Conv", "x w")
#: Nodes, constants, and outputs.
FORMS: dict[str, tuple[list[onnx.NodeProto], Mapping[str, Any], tuple[str, ...]]] = {
    "a length": ([CONV, node("Shape", "x", "s"), node("Gather", "s i", "d")], {"i": np.array([0])}, ("y", "d")),
    "a number": ([node("Shape", "x", "s"), node("Gather", "s i", "d"), CONV], {"i": np.array(2)}, ("d", "y")),
    "an initialiser under a name": ([CONV, node("Identity", "c", "d")], {"c": values(2)}, ("y", "d")),
    "an initialiser itself": ([CONV], {}, ("w", "y")),
    "twice, and a name of a name": (
        [node("Identity", "c", "d"), CONV, node("Identity", "d", "e")], {"c": values(2, 3)}, ("e", "y", "d", "c"),
    ),
    "truth values": ([CONV], {"c": np.array([True, False, True])}, ("y", "c")),
    "32 bits": ([CONV], {"c": np.array([[7, -7]], np.int32)}, ("y", "c")),
    "a node that holds it": ([CONV, helper.make_node("Constant", [], ["d"], value_ints=[4, 5])], {}, ("y", "d")),
    "folded floats": ([CONV, node("Add", "c c", "d")], {"c": values(2)}, ("y", "d")),
}  # fmt: skip


def _save(path: Path, form: str, *, packed: bool = False) -> Path:
    nodes, constants, outputs = FORMS[form]
    stored = [numpy_helper.from_array(np.asarray(v), k) for k, v in {"w": values(4, 3, 3, 3), **constants}.items()]
    if packed:  # as exporters that do not write bytes do
        for tensor in stored:
            if tensor.data_type == TensorProto.INT64:
                kept = numpy_helper.to_array(tensor)
                tensor.ClearField("raw_data")
                tensor.int64_data.extend(kept.ravel().tolist())
    kinds = {t.name: t.data_type for t in stored} | {"d": TensorProto.INT64 if "i" in constants else TensorProto.FLOAT}
    kinds |= {"d": TensorProto.INT64} if form == "a node that holds it" else {}
    body = helper.make_graph(
        nodes,
        "made",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, IMAGE)],
        [helper.make_tensor_value_info(name, kinds.get(name, TensorProto.FLOAT), None) for name in outputs],
        stored,
    )
    path.write_bytes(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    return path


def _read(folder: Path, form: str, **how: bool) -> tuple[Path, Graph, dict[str, np.ndarray]]:
    """The model as commands read it, and what ONNX Runtime gives for it as it was exported."""
    given = _save(folder / "given.onnx", form, **how)
    path = prepare_file(given, Preparation(), folder / "m.onnx")
    graph = simplify(load_onnx(path))
    session = ort.InferenceSession(str(given), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return path, graph, dict(zip(names, session.run(None, random_inputs(graph)), strict=True))


def _assert_right(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)


_predictions: dict[str, float] = {}


def _predicted(folder: Path, form: str) -> float:
    if form not in _predictions:
        _predictions[form] = predict(_save(folder / "m.onnx", form), "cpu-onnxruntime").latency_ms
    return _predictions[form]


@pytest.mark.parametrize("form", FORMS)
def test_the_rest_is_predicted(form: str, tmp_path: Path) -> None:
    assert _predicted(tmp_path, form) == pytest.approx(_predicted(tmp_path, "an initialiser under a name"))


@pytest.mark.parametrize("form", FORMS)
def test_sessions_and_cold_starts_hand_it_out(dnnl: Dnnl, planned: Any, tmp_path: Path, form: str) -> None:
    path, graph, wanted = _read(tmp_path, form)
    lowered = lower(graph)
    for home in HOMES:
        choices = [offered[0] for offered in step_candidates(dnnl, lowered, home)]
        program = build_program(dnnl, lowered, home, choices, locate_weights(path, lowered))
        _assert_right(SequentialSession(dnnl, program, path.parent).run(random_inputs(graph)), wanted)
    for sources in (("raw",), ("cached_mmap",), ("cached_read",)):
        plan = planned(path, graph, sources=sources, model_sha256=model_sha256(path))
        folder = build_plan_folder(dnnl, path, plan, tmp_path / sources[0])
        with open_session(folder) as session:
            for _ in range(2):
                _assert_right(session.run(random_inputs(graph)), wanted)


@pytest.mark.parametrize("form", by_day(["twice, and a name of a name", "a number", "an initialiser itself"]))
def test_plans_of_memory_hand_it_out(tmp_path: Path, form: str) -> None:
    path, graph, wanted = _read(tmp_path, form)
    plan_memory(path, tmp_path / "plan", "32MiB", threads=1)
    found = run(tmp_path / "plan", random_inputs(graph), check=True)
    assert found.difference is not None
    assert found.difference < 1e-4
    _assert_right(found.outputs, wanted)


def test_integers_that_do_not_stand_as_bytes_are_brought_there(dnnl: Dnnl, tmp_path: Path) -> None:
    FORMS["packed"] = ([CONV], {"c": np.array([3, -4])}, ("y", "c"))
    try:
        path, graph, wanted = _read(tmp_path, "packed", packed=True)
    finally:
        del FORMS["packed"]
    lowered = lower(graph)
    choices = [offered[0] for offered in step_candidates(dnnl, lowered, "nchw")]
    program = build_program(dnnl, lowered, "nchw", choices, locate_weights(path, lowered))
    _assert_right(SequentialSession(dnnl, program, path.parent).run(random_inputs(graph)), wanted)


def test_a_number_is_written_without_axes(tmp_path: Path) -> None:
    write_outputs(tmp_path / "o.npz", {"d": np.array(3)})
    assert np.load(tmp_path / "o.npz")["d"].shape == ()


def test_a_second_processor_leaves_it_to_the_first(tmp_path: Path) -> None:
    _, graph, _ = _read(tmp_path, "an initialiser under a name")
    lowered = lower(graph)
    (step,) = (step for step in lowered.steps if step.kind == "constant")
    assert DISPATCHER.refusal(step, lowered.shapes, {})


def test_what_cannot_be_handed_out_is_refused(tmp_path: Path) -> None:
    FORMS["double"] = ([CONV], {"c": np.array([0.5])}, ("y", "c"))
    FORMS["nothing"] = ([CONV], {"c": np.zeros((0, 2), np.float32)}, ("y", "c"))
    try:
        for form, what in (("double", "not float32 but float64"), ("nothing", "no values")):
            path = _save(tmp_path / "m.onnx", form)
            assert predict(path, "cpu-onnxruntime").latency_ms > 0
            with pytest.raises(ModelError, match=f"c .a constant output.: {what}"):
                lower(load_onnx(path))
    finally:
        del FORMS["double"], FORMS["nothing"]
