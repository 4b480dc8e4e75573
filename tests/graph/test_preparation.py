"""Models as exporters write them: open shapes, inputs that steer the graph, half precision, arithmetic on shapes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_file_runs import made, node, onnxruntime_outputs, refused, write
from onnx import TensorProto, helper, numpy_helper

from edgeplan.errors import ModelError
from edgeplan.graph.onnx import constants
from edgeplan.graph.onnx.prepare import Preparation, load_prepared, needs_preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.rewriting import known_tensors


def _saved(path: Path, nodes: list[onnx.NodeProto], inputs: Any, constants: Any = None, kind: int = TensorProto.FLOAT) -> Path:
    return write(made(nodes, inputs, constants, kind=kind), path)


def _relu(path: Path, shape: list[Any]) -> Path:
    return _saved(path, [node("Relu", "x")], {"x": shape})


def _prepared(path: Path, *shapes: str, values: tuple[str, ...] = (), batch: int | None = None) -> Path:
    return prepare_file(path, Preparation.parsed(shapes, values, batch), path.parent / "prepared.onnx")


@pytest.fixture(autouse=True)
def _told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "edgeplan")


def test_a_model_that_can_be_read_stays_as_it_is(tmp_path: Path) -> None:
    path = _relu(tmp_path / "m.onnx", [1, 3, 4, 4])
    assert not needs_preparation(onnx.load(path))
    assert _prepared(path) == path


@pytest.mark.parametrize("most_bytes", [1 << 30, 0])
def test_a_prepared_model_takes_the_place_of_an_earlier_one_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    """Weights beside the model, too: they are of this model alone, and nothing else is left in the folder."""
    monkeypatch.setattr(constants, "_MOST_BYTES", most_bytes)
    target = tmp_path / "made/prepared.onnx"
    value = np.arange(4096, dtype=np.float32)
    for factor in (1.0, 2.0):
        path = _saved(tmp_path / "m.onnx", [node("Mul", "x w")], {"x": ["N", 4096]}, {"w": np.float32(factor) * value})
        assert prepare_file(path, Preparation(), target) == target
        beside = {"prepared.onnx.data"} if not most_bytes else set()
        assert {file.name for file in target.parent.iterdir()} == {"prepared.onnx", *beside}
        (found,) = onnxruntime_outputs(target, {"x": np.ones((1, 4096), np.float32)})
        np.testing.assert_array_equal(found[0], factor * value)
    if not most_bytes:
        assert (target.parent / "prepared.onnx.data").stat().st_size < 2 * value.nbytes


_NO_NAMES = ["unk__316", "s0", "x_dynamic_axes_1", "p2o.DynamicDimension.0", "?", -1, None]


@pytest.mark.parametrize("first", ["N", "B", "batch_size", "num_batches", *_NO_NAMES])
def test_an_open_first_axis_is_a_batch_of_one_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture, first: Any) -> None:
    path = _prepared(_relu(tmp_path / "m.onnx", [first, 3, 4, 4]))
    assert load_onnx(path).shape("x") == (1, 3, 4, 4)
    assert "is 1 (a batch: --batch)" in caplog.text
    caplog.clear()
    path = _prepared(_relu(tmp_path / "m.onnx", [first, 3, 4, 4]), batch=5)
    assert load_onnx(path).shape("x") == (5, 3, 4, 4)
    assert "is 5" in caplog.text
    assert "--batch" not in caplog.text


@pytest.mark.parametrize("first", ["seq", "sequence_length", "time", "frames", "num_nodes", "D", "samples"])
def test_a_first_axis_of_another_name_is_no_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture, first: str) -> None:
    """Positions have no batch, and what is time-major has its batch second."""
    nodes = [node("Add", "x p", "h"), node("Add", "h t")]
    path = _saved(tmp_path / "m.onnx", nodes, {"x": ["batch", first], "p": [first], "t": [1, "batch", first]})
    for batch in (None, 8):
        with pytest.raises(ModelError, match=f"leaves {first} open"):
            _prepared(path, batch=batch)
    graph = load_onnx(_prepared(path, "p=7", batch=8))
    assert [graph.shape(name) for name in ("x", "p", "t")] == [(8, 7), (7,), (1, 8, 7)]
    assert "'batch' is 8" in caplog.text
    assert f"'{first}' is 7" in caplog.text
    alone = _relu(tmp_path / "alone.onnx", [first, "batch", 4])
    with pytest.raises(ModelError, match=f"leaves {first} open"):
        _prepared(alone, batch=4)
    assert load_onnx(_prepared(alone, "x=3,4,4", batch=4)).shape("x") == (3, 4, 4)


def test_other_open_axes_are_asked_for_by_name(tmp_path: Path) -> None:
    nodes = [node("Relu", "x"), node("Constant", "", [], value_int=1)]  # nobody misses the name of what nobody reads
    path = _saved(tmp_path / "m.onnx", nodes, {"x": ["N", 3, "height", "width"]})
    with pytest.raises(ModelError, match="leaves height, width open") as caught:
        _prepared(path)
    assert "--shape x=1,3,height,width" in caught.value.next_step
    assert load_onnx(_prepared(path, "x=1,3,20,30")).shape("y") == (1, 3, 20, 30)


def test_one_symbol_has_one_size_in_all_inputs(tmp_path: Path) -> None:
    path = _saved(tmp_path / "m.onnx", [node("Add", "a b")], {"a": ["N", "len"], "b": ["N", "len"]})
    made = _prepared(path, "a=2,7")
    assert load_onnx(made).shape("b") == (2, 7)
    with pytest.raises(ModelError, match="'len' is given 7 and 8"):
        _prepared(path, "a=2,7", "b=2,8")


@pytest.mark.parametrize(
    ("shapes", "values", "message"),
    [
        (("z=1,3,4,4",), (), "no input 'z'"),
        (("x=1,4,8",), (), "is of shape"),
        (("x=1,0",), (), "is no shape"),
        (("x",), (), "names no input"),
        (("x=1,8", "x=1,8"), (), "given twice"),
        (("x=1000000,1000000",), (), "more than 4 GB"),
        ((), ("sr=1.5",), "is no int64"),
        ((), ("sr=1,2",), "2 numbers"),
        ((), ("rate=1",), "no input 'rate'"),
        ((), ("sr",), "names"),
    ],
)
def test_shapes_and_values_that_do_not_fit_are_refused(
    tmp_path: Path, shapes: tuple[str, ...], values: tuple[str, ...], message: str
) -> None:
    path = _steered(tmp_path / "m.onnx", shape=("N", "w"))
    with pytest.raises(ModelError, match=message) as caught:
        _prepared(path, *shapes, values=values)
    assert caught.value.next_step


def test_shape_arithmetic_is_computed_once(tmp_path: Path) -> None:
    """x reshaped to (N, product of the rest) by what exporters write for it, with zeros of a computed shape added."""
    nodes = [
        node("Shape", "x", "s"), node("Gather", "s zero", "n"), node("Unsqueeze", "n axes", "n1"),
        node("Concat", "n1 rest", "to", axis=0), node("Reshape", "x to", "flat"), node("Shape", "flat", "fs"),
        node("ConstantOfShape", "fs", "zeros"), node("Add", "flat zeros"),
    ]  # fmt: skip
    constants = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    path = _saved(tmp_path / "m.onnx", nodes, {"x": ["N", 3, "h", 5]}, constants)
    made = _prepared(path, "x=2,3,4,5")
    graph = load_onnx(made)
    assert {op.op_type for op in graph.operators} <= {"Reshape", "Flatten", "Add"}
    x = np.random.default_rng(1).standard_normal((2, 3, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(onnxruntime_outputs(made, {"x": x})[0], onnxruntime_outputs(path, {"x": x})[0])


def _steered(path: Path, other: str = "Sigmoid", shape: Sequence[int | str] = (1, 8)) -> Path:
    def branch(name: str, op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
        return helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [out])

    nodes = [
        node("Equal", "sr rate", "fast"),
        helper.make_node("If", ["fast"], ["y"], then_branch=branch("a", "Relu"), else_branch=branch("b", other)),
    ]
    return _saved(path, nodes, {"x": shape, "sr": (TensorProto.INT64, [])}, {"rate": np.array(16000)})


def test_an_input_that_steers_the_graph_gets_a_value(tmp_path: Path) -> None:
    for rate, op in ((16000, "Relu"), (8000, "Sigmoid")):
        graph = load_onnx(_prepared(_steered(tmp_path / "m.onnx"), values=(f"sr={rate}",)))
        assert [o.op_type for o in graph.operators] == [op]
        assert graph.inputs == ("x",)


def test_branches_that_depend_on_data_are_both_computed_and_one_is_picked(tmp_path: Path) -> None:
    """Names inside of branches may be those of the other branch, or of anything: each has its own."""

    def branch(factor: float) -> onnx.GraphProto:
        nodes = [
            helper.make_node("Constant", [], ["factor"], value=numpy_helper.from_array(np.array(factor, np.float32))),
            node("Mul", "inner factor", "product", name="same"),
        ]
        out = helper.make_tensor_value_info("product", TensorProto.FLOAT, None)
        held = numpy_helper.from_array(np.full((1, 8), factor, np.float32), "held")
        nodes.insert(0, node("Add", "x held", "inner"))
        return helper.make_graph(nodes, "branch", [], [out], [held])

    nodes = [
        node("ReduceSum", "x", "sum", keepdims=0),
        node("Greater", "sum bound", "high"),
        helper.make_node("If", ["high"], ["picked"], then_branch=branch(2.0), else_branch=branch(-3.0)),
        node("Relu", "picked"),
    ]
    path = _saved(tmp_path / "m.onnx", nodes, {"x": [1, 8]}, {"bound": np.array(0, np.float32)})
    made = _prepared(path)
    assert "Where" in {op.op_type for op in load_onnx(made).operators}
    for x in (np.linspace(-1, 3, 8), np.linspace(-9, 1, 8)):
        feed = {"x": x.astype(np.float32).reshape(1, 8)}
        np.testing.assert_array_equal(onnxruntime_outputs(made, feed)[0], onnxruntime_outputs(path, feed)[0])


def test_a_branch_of_another_shape_is_refused_with_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="If") as caught:
        load_onnx(_prepared(_steered(tmp_path / "m.onnx", "Transpose")))
    assert "--set" in (caught.value.next_step or "")


def test_a_choice_of_constants_is_constant(tmp_path: Path) -> None:
    """Of equal ones the first comes first, as ONNX Runtime has it; a second choice is made of what the first one left."""
    nodes = [
        node("TopK", "c three", "v i", axis=0), node("TopK", "i two", "least at", largest=0), node("Gather", "x least", "g"),
        node("Gather", "x at", "h"), node("Sub", "g h"),
    ]  # fmt: skip
    constants = {"c": np.array([3, 7, 3, 7, 1]), "three": np.array([3]), "two": np.array([2])}
    path = _saved(tmp_path / "m.onnx", nodes, {"x": [5, 2]}, constants)
    given = {"x": np.arange(10, dtype=np.float32).reshape(5, 2)}
    ready = _prepared(path)
    assert {op.op_type for op in load_onnx(ready).operators} == {"Gather", "Sub"}
    np.testing.assert_array_equal(onnxruntime_outputs(ready, given), onnxruntime_outputs(path, given))


@pytest.mark.parametrize(
    ("op_type", "domain", "told"),
    [("Loop", "", "LSTM"), ("Scan", "", "unrolled"), ("TreeEnsembleRegressor", "ai.onnx.ml", "hummingbird")],
)
def test_what_has_no_place_here_is_refused_with_its_recipe(op_type: str, domain: str, told: str) -> None:
    assert told in refused(made([node(op_type, "x", domain=domain)], {"x": [1, 3]}), op_type).next_step


def test_half_precision_is_taken_as_single_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    nodes = [node("MatMul", "x w", "h"), node("Cast", "h", to=TensorProto.FLOAT16)]
    weights = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float16)
    path = _saved(tmp_path / "m.onnx", nodes, {"x": [1, 4]}, {"w": weights}, TensorProto.FLOAT16)
    made = _prepared(path)
    assert "float16" in caplog.text
    graph = load_onnx(made)
    assert {graph.tensors[name].dtype for name in (*graph.inputs, *graph.outputs)} == {"float32"}
    x = np.ones((1, 4), np.float32)
    rounded = (x @ weights.astype(np.float32)).astype(np.float16)  # by the cast, which is the model's last operator
    np.testing.assert_allclose(onnxruntime_outputs(made, {"x": x})[0], rounded, rtol=1e-6)


def test_numbers_that_are_none_are_kept(tmp_path: Path) -> None:
    odd = np.array([np.inf, np.nan, -np.inf, 1], np.float32)
    path = _saved(tmp_path / "m.onnx", [node("Add", "x w")], {"x": ["N", 4]}, {"w": odd})
    made = _prepared(path)
    np.testing.assert_array_equal(onnxruntime_outputs(made, {"x": np.zeros((1, 4), np.float32)})[0][0], odd)


@pytest.mark.parametrize(("op_type", "number"), [("Add", 1e-10), ("Sub", 1e-9), ("Mul", 1 + 4e-6), ("Div", 1 + 4e-6)])
def test_numbers_that_are_nearly_neutral_stay(tmp_path: Path, op_type: str, number: float) -> None:
    """What guards a logarithm from zero is small: an optimizer took 1e-10 for 0, and a music model's notes were others."""
    nodes = [node(op_type, "x k", "a"), node("Log", "a")]
    path = _saved(tmp_path / "m.onnx", nodes, {"x": ["N", 3]}, {"k": np.array(number, np.float32)})
    given = {"x": np.array([[1e-12, 1.0, 1 + 1e-6] if op_type != "Sub" else [2e-9, 1.0, 3.0]], np.float32)}
    np.testing.assert_array_equal(onnxruntime_outputs(_prepared(path), given), onnxruntime_outputs(path, given))


def test_a_model_of_constants_alone_is_refused_by_its_own_name(tmp_path: Path) -> None:
    path = _saved(tmp_path / "constants.onnx", [node("Add", "w w")], {}, {"w": np.float32([1, 2])})
    with pytest.raises(ModelError, match="computes nothing: its outputs follow from constants") as caught:
        prepare_file(path, Preparation(), tmp_path / "out.onnx")
    assert caught.value.where == str(path)
    assert not (tmp_path / "out.onnx").exists()


def test_what_inference_refuses_names_its_node() -> None:
    with pytest.raises(ModelError, match="not a valid ONNX model") as caught:
        known_tensors(made([node("Reshape", "x", name="odd")], {"x": [2, 3]}), "m.onnx")
    assert caught.value.where == "m.onnx, node 'odd'"


Axes = tuple[int | str, ...]
FIXED: Axes = (1, 3, 8, 8)
OPEN: Axes = ("N", 3, 8, 8)


def _model(path: Path, *inputs: Axes) -> Path:
    """A file whose inputs x0, x1 ... each go through a rectifier of its own."""
    nodes = [node("Relu", f"x{k}", f"y{k}") for k in range(len(inputs))]
    given = {f"x{k}": list(axes) for k, axes in enumerate(inputs)}
    return write(made(nodes, given, output=" ".join(n.output[0] for n in nodes)), path)


@pytest.mark.parametrize(
    ("inputs", "shapes", "wanted"),
    [
        ((FIXED,), (), "the batch of x0 is fixed at 1"),
        (((8, 3), (1, 3)), (), "the batch of x1 is fixed at 1"),
        ((OPEN,), ("x0=2,3,8,8",), "the batch of x0 is 2 by its shape and 8 by --batch"),
        ((("batch_size", 3), ("N", 3)), ("x1=2,3",), "the batch of x1 is 2 by its shape and 8 by --batch"),
        (((3, "batch"),), ("x0=3,2",), "the batch of x0 is 2 by its shape and 8 by --batch"),
        (((),), (), "no input has a batch"),
        (((8, 3, 8, 8),), (), [(8, 3, 8, 8)]),  # it is what the file says anyway
        ((OPEN, ("N", 5)), ("x1=8,5",), [(8, 3, 8, 8), (8, 5)]),
        (((3, "batch"),), (), [(3, 8)]),
        ((("N", 3), (1, 5)), (), [(8, 3), (1, 5)]),
    ],
)
def test_a_batch_of_eight_is_had_or_refused(
    tmp_path: Path, inputs: tuple[Axes, ...], shapes: tuple[str, ...], wanted: str | list[tuple[int, ...]]
) -> None:
    path, preparation = _model(tmp_path / "m.onnx", *inputs), Preparation.parsed(shapes, (), 8)
    if isinstance(wanted, list):
        graph = load_prepared(path, preparation)
        assert [graph.shape(name) for name in graph.inputs] == wanted
        return
    with pytest.raises(ModelError) as caught:
        load_prepared(path, preparation)
    assert caught.value.what == wanted
    assert "--batch 8" in caught.value.where


@pytest.mark.parametrize("batch", [0, -1])
def test_no_batch_is_below_one(batch: int) -> None:
    with pytest.raises(ModelError, match=f"a batch of {batch}"):
        Preparation.parsed(batch=batch)
    with pytest.raises(ModelError, match="is no shape for the input 'x'"):
        Preparation(shapes={"x": (batch, 3)})


def test_a_batch_behind_a_value_that_steers_the_graph_is_seen(tmp_path: Path) -> None:
    model = made([node("Mul", "x scale")], {"x": ["N", 3], "scale": [1]}, {"unused": np.ones(1, np.float32)})
    path = write(model, tmp_path / "m.onnx")
    graph = load_prepared(path, Preparation.parsed((), ("scale=2",), 4))
    assert [graph.shape(name) for name in graph.inputs] == [(4, 3)]
