"""What needs no primitive, in every way to run a model: compiled steps, and outputs that nothing computes, such as a length."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
from edgeplan.planning.document import Plan
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession

Arrays = Mapping[str, np.ndarray[Any, Any]]
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


def _assert_right(found: Arrays, wanted: Arrays) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5)


def _wanted(path: Path, inputs: Arrays) -> Arrays:
    """What ONNX Runtime gives, by name."""
    names = [output.name for output in onnx.load(path).graph.output]
    return dict(zip(names, onnxruntime_outputs(path, inputs), strict=True))


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
                    _assert_right(session.run(inputs), _wanted(model, inputs))
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
    _assert_right(plain.run(_inputs()), _wanted(model, _inputs()))


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


def _read(folder: Path, form: Form, **how: bool) -> tuple[Path, Graph, Arrays]:
    """The model as commands read it, and what ONNX Runtime gives for it as it was exported."""
    given = _save(folder / "given.onnx", form, **how)
    path = prepare_file(given, Preparation(), folder / "m.onnx")
    graph = simplify(load_onnx(path))
    return path, graph, _wanted(given, random_inputs(graph))


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
