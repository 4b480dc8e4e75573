"""Outputs that nothing computes (a length, a stride, an anchor) are handed out by every way to run a model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_file_runs import made, node, onnxruntime_outputs, own_outputs, values, write
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
from edgeplan.support.tensors import write_outputs

IMAGE = (1, 3, 8, 8)
CONV = node("Conv", "x w")
#: Nodes, constants, and outputs.
Form = tuple[list[onnx.NodeProto], Mapping[str, Any], str]
FORMS: dict[str, Form] = {
    "a length": ([CONV, node("Shape", "x", "s"), node("Gather", "s i", "d")], {"i": np.array([0])}, "y d"),
    "a number": ([node("Shape", "x", "s"), node("Gather", "s i", "d"), CONV], {"i": np.array(2)}, "d y"),
    "an initialiser under a name": ([CONV, node("Identity", "c", "d")], {"c": values(2)}, "y d"),
    "an initialiser itself": ([CONV], {}, "w y"),
    "twice, and a name of a name": (
        [node("Identity", "c", "d"), CONV, node("Identity", "d", "e")], {"c": values(2, 3)}, "e y d c",
    ),
    "truth values": ([CONV], {"c": np.array([True, False, True])}, "y c"),
    "32 bits": ([CONV], {"c": np.array([[7, -7]], np.int32)}, "y c"),
    "a node that holds it": ([CONV, helper.make_node("Constant", [], ["d"], value_ints=[4, 5])], {}, "y d"),
    "folded floats": ([CONV, node("Add", "c c", "d")], {"c": values(2)}, "y d"),
}  # fmt: skip


def _save(path: Path, form: Form, *, packed: bool = False) -> Path:
    nodes, constants, outputs = form
    model = made(nodes, {"x": IMAGE}, {"w": values(4, 3, 3, 3), **constants}, output=outputs)
    for tensor in model.graph.initializer if packed else ():  # as exporters that do not write bytes do
        if tensor.data_type == TensorProto.INT64:
            kept = numpy_helper.to_array(tensor)
            tensor.ClearField("raw_data")
            tensor.int64_data.extend(kept.ravel().tolist())
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    whole = any(made.op_type in ("Shape", "Constant") for made in nodes)
    for output in model.graph.output:
        output.type.tensor_type.elem_type = kinds.get(
            output.name, TensorProto.INT64 if whole and output.name == "d" else TensorProto.FLOAT
        )
    return write(model, path)


def _read(folder: Path, form: Form, **how: bool) -> tuple[Path, Graph, dict[str, np.ndarray]]:
    """The model as commands read it, and what ONNX Runtime gives for it as it was exported."""
    given = _save(folder / "given.onnx", form, **how)
    path = prepare_file(given, Preparation(), folder / "m.onnx")
    graph = simplify(load_onnx(path))
    return path, graph, dict(zip(form[2].split(), onnxruntime_outputs(given, random_inputs(graph)), strict=True))


def _assert_right(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        assert found[name].shape == value.shape, name
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)


def test_the_rest_is_predicted(tmp_path: Path) -> None:
    found = [predict(_save(tmp_path / "m.onnx", form), "cpu-onnxruntime").latency_ms for form in FORMS.values()]
    assert found == [pytest.approx(found[0])] * len(FORMS)


@pytest.mark.parametrize("form", FORMS)
def test_sessions_and_cold_starts_hand_it_out(dnnl: Dnnl, planned: Any, tmp_path: Path, form: str) -> None:
    path, graph, wanted = _read(tmp_path, FORMS[form])
    for home in HOMES:
        _assert_right(own_outputs(dnnl, path, random_inputs(graph), home), wanted)
    for sources in (("raw",), ("cached_mmap",), ("cached_read",)):
        plan = planned(path, graph, sources=sources, model_sha256=model_sha256(path))
        folder = build_plan_folder(dnnl, path, plan, tmp_path / sources[0])
        with open_session(folder) as session:
            for _ in range(2):
                _assert_right(session.run(random_inputs(graph)), wanted)


@pytest.mark.parametrize("form", by_day(["twice, and a name of a name", "a number", "an initialiser itself"]))
def test_plans_of_memory_hand_it_out(tmp_path: Path, form: str) -> None:
    path, graph, wanted = _read(tmp_path, FORMS[form])
    plan_memory(path, tmp_path / "plan", "32MiB", threads=1)
    found = run(tmp_path / "plan", random_inputs(graph), check=True)
    assert found.difference is not None
    assert found.difference < 1e-4
    _assert_right(found.outputs, wanted)


def test_integers_that_do_not_stand_as_bytes_are_brought_there(dnnl: Dnnl, tmp_path: Path) -> None:
    path, graph, wanted = _read(tmp_path, ([CONV], {"c": np.array([3, -4])}, "y c"), packed=True)
    _assert_right(own_outputs(dnnl, path, random_inputs(graph)), wanted)


def test_a_number_is_written_without_axes(tmp_path: Path) -> None:
    write_outputs(tmp_path / "o.npz", {"d": np.array(3)})
    assert np.load(tmp_path / "o.npz")["d"].shape == ()


def test_a_second_processor_leaves_it_to_the_first(tmp_path: Path) -> None:
    _, graph, _ = _read(tmp_path, FORMS["an initialiser under a name"])
    lowered = lower(graph)
    (step,) = (step for step in lowered.steps if step.kind == "constant")
    assert DISPATCHER.refusal(step, lowered.shapes, {})


@pytest.mark.parametrize(
    ("value", "what"), [(np.array([0.5]), "not float32 but float64"), (np.zeros((0, 2), np.float32), "no values")]
)
def test_what_cannot_be_handed_out_is_refused(tmp_path: Path, value: np.ndarray, what: str) -> None:
    path = _save(tmp_path / "m.onnx", ([CONV], {"c": value}, "y c"))
    assert predict(path, "cpu-onnxruntime").latency_ms > 0
    with pytest.raises(ModelError, match=f"c .a constant output.: {what}"):
        lower(load_onnx(path))
