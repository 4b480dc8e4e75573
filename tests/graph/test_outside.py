"""Constants in files beside a model, wherever in it they stand: one reader, which reads no more than is computed with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from model_file_runs import IMAGE, made, node, onnxruntime_outputs, own_outputs, values, write
from onnx import TensorProto, helper, numpy_helper
from plan_folders import start_right

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.engines.base import random_inputs
from edgeplan.errors import ModelError
from edgeplan.graph.model_file import external_locations, model_files, model_sha256
from edgeplan.graph.onnx.compare import largest_difference
from edgeplan.graph.onnx.constants import point, read_whole_model
from edgeplan.graph.onnx.prepare import Preparation, in_single_precision, load_prepared, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_folder import build_plan_folder

Array = npt.NDArray[np.float32]
_ROWS, _COLUMNS = 64, 48  # more elements than are brought in
_KINDS = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "bfloat16": TensorProto.BFLOAT16}
_TEST_OF_DATA = [node("ReduceMax", "x", "m", keepdims=0), node("Greater", "m z", "c")]
_TEST_OF_A_SHAPE = [node("Shape", "x", "s"), node("ReduceMax", "s", "r", keepdims=0), node("Cast", "r", "c", to=9)]


def _weight(kind: str, rows: int = _ROWS) -> TensorProto:
    dtype = helper.tensor_dtype_to_np_dtype(_KINDS[kind])
    return numpy_helper.from_array(values(rows, _COLUMNS).astype(dtype), "k")


def _initialiser(weight: TensorProto) -> onnx.ModelProto:
    model = made([node("MatMul", "x k")], {"x": (2, weight.dims[0])})
    model.graph.initializer.append(weight)
    return model


def _constant(weight: TensorProto) -> onnx.ModelProto:
    return made([helper.make_node("Constant", [], ["k"], value=weight), node("MatMul", "x k")], {"x": (2, weight.dims[0])})


def _branching(weight: TensorProto, *, test: list[onnx.NodeProto], held: bool) -> onnx.ModelProto:
    """A weight in two branches, as an initialiser or held by a node; one negates what the other computes."""
    constant = [helper.make_node("Constant", [], ["k"], value=weight)] if held else []
    stored = [] if held else [weight]
    wrote = [helper.make_tensor_value_info("o", weight.data_type, None)]
    yes = helper.make_graph([*constant, node("MatMul", "x k", "o")], "yes", [], wrote, stored)
    no = helper.make_graph([*constant, node("MatMul", "x k", "p"), node("Neg", "p", "o")], "no", [], wrote, stored)
    model = made([*test, helper.make_node("If", ["c"], ["y"], then_branch=yes, else_branch=no)], {"x": (2, weight.dims[0])})
    model.graph.initializer.append(helper.make_tensor("z", weight.data_type, [], [0.0]))
    return model


def _function(weight: TensorProto) -> onnx.ModelProto:
    """A function within a function, called twice."""
    model = made([helper.make_node("Outer", ["x"], ["y"], domain="mine")], {"x": (2, weight.dims[0])})
    body = [helper.make_node("Constant", [], ["k"], value=weight), node("MatMul", "a k", "r")]
    calls = [helper.make_node("Inner", ["a"], [name], domain="mine") for name in "bc"]
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    model.functions.append(helper.make_function("mine", "Inner", ["a"], ["r"], body, sets))
    model.functions.append(helper.make_function("mine", "Outer", ["a"], ["d"], [*calls, node("Add", "b c", "d")], sets))
    model.opset_import.append(helper.make_opsetid("mine", 1))
    return model


_PLACES: Mapping[str, Callable[[TensorProto], onnx.ModelProto]] = {
    "initialiser": _initialiser,
    "Constant": _constant,
    "branch": partial(_branching, test=_TEST_OF_DATA, held=False),
    "Constant in a branch": partial(_branching, test=_TEST_OF_DATA, held=True),
    "branch that a shape decides": partial(_branching, test=_TEST_OF_A_SHAPE, held=False),
    "function": _function,
}


def _model(place: str, kind: str = "float32", rows: int = _ROWS) -> onnx.ModelProto:
    """A model of open batch whose inputs and outputs are of the same type as its weight."""
    model = _PLACES[place](_weight(kind, rows))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = _KINDS[kind]
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    return model


def _tensors(message: object) -> list[TensorProto]:
    """All tensors, found as text formats find them: field by field."""
    if isinstance(message, TensorProto):
        return [message]
    fields = message.ListFields() if hasattr(message, "ListFields") else []
    parts = [part for _, value in fields for part in (value if hasattr(value, "extend") else (value,))]
    return [tensor for part in parts for tensor in _tensors(part)]


def _outside(model: onnx.ModelProto, location: str = "w.bin") -> bytes:
    """Point all large tensors to one file; its bytes."""
    content = b""
    for tensor in _tensors(model):
        if len(tensor.raw_data) > 16:
            data = tensor.raw_data
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            point(tensor, location, len(content), len(data))
            content += data
    assert content
    return content


def _apart(folder: Path, place: str, kind: str = "float32", rows: int = _ROWS) -> Path:
    model = _model(place, kind, rows)
    content = _outside(model)
    path = write(model, folder / "m.onnx")
    (folder / "w.bin").write_bytes(content)
    return path


def _result(path: Path, rows: int = _ROWS) -> Array:
    return onnxruntime_outputs(path, {"x": values(2, rows, seed=1)})[0]


_BATCH = Preparation(batch=2)


@pytest.mark.parametrize("rows", [4, _ROWS])
@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("place", _PLACES)
def test_numbers_are_the_same_wherever_weights_lie(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, kind: str, rows: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.bin").write_bytes(bytes(1 << 15))  # of another model, in the working directory
    inside = prepare_file(write(_model(place, kind, rows), tmp_path / "inside" / "m.onnx"), _BATCH, tmp_path / "one/p.onnx")
    path = _apart(tmp_path / "model", place, kind, rows)
    beside, elsewhere = (prepare_file(path, _BATCH, folder / "p.onnx") for folder in (path.parent, tmp_path / "two"))
    wanted = _result(inside, rows)
    product = values(2, rows, seed=1) @ numpy_helper.to_array(_weight(kind, rows)).astype(np.float32)
    np.testing.assert_allclose(wanted, product * (2 if place == "function" else 1), rtol=1e-5, atol=1e-5)
    for one in (beside, elsewhere):
        np.testing.assert_array_equal(_result(one, rows), wanted)
        assert load_onnx(one).operators
    assert model_files(path) == (path, path.parent / "w.bin")
    if rows == _ROWS and kind != "bfloat16":  # these are widened, others stay where they are
        assert set(model_files(beside)) == {beside, path.parent / "w.bin"}
    if rows == _ROWS and kind == "float32":  # a hard link is a file as any other, also to who compares by ONNX Runtime
        os.link(path.parent / "w.bin", tmp_path / "in a cache")
        assert largest_difference(path, beside, _BATCH) < 1e-5
        assert not external_locations(read_whole_model(path))
    before, content = model_sha256(path), bytearray((path.parent / "w.bin").read_bytes())
    content[-1] ^= 1
    (path.parent / "w.bin").write_bytes(content)
    assert model_sha256(path) != before
    assert not (path.parent / "p.onnx.data").exists() or kind == "bfloat16"


@pytest.mark.parametrize("kind", _KINDS)
@pytest.mark.parametrize("place", _PLACES)
def test_a_prediction_reads_no_large_weights(tmp_path: Path, place: str, kind: str) -> None:
    whole = load_prepared(write(_model(place, kind), tmp_path / "inside" / "m.onnx"), _BATCH)
    path = _apart(tmp_path / "model", place, kind)
    (path.parent / "w.bin").unlink()
    graph = load_prepared(path, _BATCH)
    assert [(op.op_type, graph.shape(op.outputs[0])) for op in graph.operators] == [
        (op.op_type, whole.shape(op.outputs[0])) for op in whole.operators
    ]
    with pytest.raises(ModelError, match="which is missing"):
        prepare_file(path, _BATCH, tmp_path / "p.onnx")


def test_what_is_computed_with_is_read(tmp_path: Path) -> None:
    model = made([node("Transpose", "k", "t", perm=[1, 0]), node("MatMul", "x t")], {"x": (2, _COLUMNS)})
    model.graph.initializer.append(_weight("float32"))
    content = _outside(model)
    path = write(model, tmp_path / "model" / "m.onnx")
    with pytest.raises(ModelError, match="which is missing"):
        load_prepared(path, _BATCH)
    (path.parent / "w.bin").write_bytes(content)
    x = values(2, _COLUMNS, seed=1)
    (found,) = onnxruntime_outputs(prepare_file(path, _BATCH, tmp_path / "p.onnx"), {"x": x})
    np.testing.assert_allclose(found, x @ values(_ROWS, _COLUMNS).T, rtol=1e-5, atol=1e-5)


def test_weights_of_bytes_stay_outside(tmp_path: Path) -> None:
    nodes = [node("DequantizeLinear", "k s o", "w"), node("MatMul", "x w")]
    bytes_ = np.random.default_rng(0).integers(-127, 128, (_ROWS, _COLUMNS)).astype(np.int8)
    model = made(nodes, {"x": (2, _ROWS)}, {"k": bytes_, "s": np.float32(0.01), "o": np.int8(0)})
    content = _outside(model)
    path = write(model, tmp_path / "model" / "m.onnx")
    assert load_prepared(path, Preparation()).operators  # the file is not there
    (path.parent / "w.bin").write_bytes(content)
    found = _result(prepare_file(path, Preparation(), path.parent / "p.onnx"))
    np.testing.assert_allclose(found, values(2, _ROWS, seed=1) @ (bytes_ * np.float32(0.01)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("location", ["../w.bin", "parts/../../w.bin", "/etc/hostname", ""])
@pytest.mark.parametrize("place", _PLACES)
def test_what_lies_outside_the_folder_is_refused_wherever_it_stands(tmp_path: Path, place: str, location: str) -> None:
    model = _model(place)
    content = _outside(model, location)
    path = write(model, tmp_path / "model" / "m.onnx")
    (tmp_path / "w.bin").write_bytes(content)
    for read in (load_onnx, model_sha256, lambda path: prepare_file(path, _BATCH, tmp_path / "p.onnx")):
        with pytest.raises(ModelError, match="outside the model's folder") as caught:
            read(path)
        assert caught.value.where == str(path)
        assert caught.value.next_step
    assert not (tmp_path / "p.onnx").exists()


def test_files_of_sparse_tensors_bodies_and_attributes_are_found() -> None:
    def told(location: str) -> TensorProto:
        tensor = TensorProto(name=location, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=location)
        return tensor

    def sparse(name: str) -> onnx.SparseTensorProto:
        return onnx.SparseTensorProto(values=told(f"{name} values"), indices=told(f"{name} indices"), dims=[9])

    body = helper.make_graph([], "body", [], [], [told("body")])
    body.sparse_initializer.append(sparse("body"))
    inner = helper.make_node("Loop", [], [], body=body)
    listed = helper.make_node("Listed", [], [], domain="mine")
    listed.attribute.add(name="several", type=onnx.AttributeProto.TENSORS, tensors=[told("several")])
    listed.attribute.add(name="sparse", type=onnx.AttributeProto.SPARSE_TENSOR, sparse_tensor=sparse("attribute"))
    listed.attribute.add(name="graphs", type=onnx.AttributeProto.GRAPHS, graphs=[helper.make_graph([inner], "g", [], [])])
    model = helper.make_model(helper.make_graph([listed], "g", [], []))
    model.functions.append(helper.make_function("mine", "F", [], [], [inner], []))
    model.functions[0].attribute_proto.add(name="default", type=onnx.AttributeProto.TENSOR, t=told("default"))
    model.training_info.add(algorithm=helper.make_graph([], "step", [], [], [told("training")]))
    wanted = {"body", "body values", "body indices", "several", "attribute values", "attribute indices", "default", "training"}
    assert set(external_locations(model)) == wanted == {tensor.name for tensor in _tensors(model)}


def _body(kind: int) -> list[onnx.NodeProto]:
    """From `a` to `r`: a constant, a cast and back, a cast like another, a shape that is filled, and a branch."""

    def constant(name: str) -> onnx.NodeProto:
        return helper.make_node("Constant", [], [name], value=helper.make_tensor("", kind, [], [0.3]))

    def side(op: str) -> onnx.GraphProto:
        written = helper.make_tensor_value_info("o", kind, None)
        return helper.make_graph([constant("q"), node(op, "n q", "o")], "side", [], [written])

    filled = helper.make_tensor("", kind, [1], [0.3])
    return [
        constant("k"), node("Mul", "a k", "m"),
        node("Cast", "m", "f", to=TensorProto.FLOAT), node("Tanh", "f", "t"), node("Cast", "t", "c", to=kind),
        node("Cast", "c", "g", to=TensorProto.FLOAT), node("Tanh", "g", "u"), node("CastLike", "u a", "l"),
        node("Shape", "l", "s"), helper.make_node("ConstantOfShape", ["s"], ["z"], value=filled), node("Mul", "l z", "n"),
        node("ReduceMax", "s", "e", keepdims=0), node("Cast", "e", "d", to=TensorProto.BOOL),
        helper.make_node("If", ["d"], ["r"], then_branch=side("Mul"), else_branch=side("Add")),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_functions_of_half_precision(tmp_path: Path, kind: int) -> None:
    """Told to compute in single precision a function is what it is without: the same nodes in its place."""
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    stored = {"w": values(4, 3, 3, 3).astype(dtype), "b": values(4).astype(dtype)}
    end = node("Conv", "h w b")
    given = {"x": (1, 3, 8, 8)}
    called = made([helper.make_node("Mine", ["x"], ["h"], domain="mine"), end], given, stored, kind=kind)
    function = helper.make_function("mine", "Mine", ["a"], ["r"], _body(kind), [helper.make_opsetid("", 17)])
    function.value_info.append(helper.make_tensor_value_info("t", TensorProto.FLOAT, [1, 3, 8, 8]))
    called.functions.append(function)
    called.opset_import.append(helper.make_opsetid("mine", 1))
    plain = made([node("Identity", "x", "a"), *_body(kind), node("Identity", "r", "h"), end], given, stored, kind=kind)
    x = values(1, 3, 8, 8, seed=2)
    results: list[Array] = []
    for name, model in (("called", called), ("plain", plain)):
        path = write(model, tmp_path / name / "m.onnx")
        assert load_prepared(path, Preparation()).operators
        single = in_single_precision(path, path.with_name("s.onnx"))
        ready = prepare_file(path, Preparation(), path.with_name("p.onnx"))
        results += [onnxruntime_outputs(of, {"x": x})[0] for of in (ready, single)]
    for found in results[1:]:
        np.testing.assert_allclose(found, results[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("entries", "said"),
    [({"length": "8"}, "holds 8 bytes"), ({"offset": "-8"}, "does not say where"), ({"offset": "some"}, "does not say where")],
)
def test_constants_elsewhere_are_refused(tmp_path: Path, entries: dict[str, str], said: str) -> None:
    model = made([node("Reshape", "x s", name="r")], {"x": IMAGE}, {"s": np.array([1, 256])})
    (shape,) = model.graph.initializer
    (tmp_path / "m.data").write_bytes(b"\0" * 8 + shape.raw_data)
    shape.ClearField("raw_data")
    shape.data_location = TensorProto.EXTERNAL
    for key, text in ({"location": "m.data", "offset": "8", "length": "16"} | entries).items():
        shape.external_data.add(key=key, value=text)
    path = write(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=f"constant 's'.*{said}") as caught:
        load_onnx(path)
    assert caught.value.where in (str(path), str(tmp_path / "m.data"))
    assert caught.value.next_step


def _far(folder: Path, open_batch: bool = False) -> tuple[Path, np.ndarray]:
    """A model whose one weight lies behind 2 GiB of nothing, which take no room on the disk."""
    weight = np.random.default_rng(3).standard_normal((4, 3)).astype(np.float32)
    offset = (1 << 31) + 4096
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=weight.shape, data_location=TensorProto.EXTERNAL)
    point(tensor, "far.bin", offset, weight.nbytes)
    model = made([node("MatMul", "x w")], {"x": ["N" if open_batch else 1, 4]})
    model.graph.initializer.append(tensor)
    path = write(model, folder / "far.onnx")
    with (folder / "far.bin").open("wb") as file:
        file.seek(offset)
        file.write(weight.tobytes())
    return path, weight


@pytest.mark.parametrize("open_batch", [False, True])
def test_weights_behind_two_gibibytes_are_read(dnnl: Dnnl, tmp_path: Path, open_batch: bool) -> None:
    path, weight = _far(tmp_path, open_batch)
    path = prepare_file(path, Preparation(), tmp_path / "ready.onnx")
    x = np.ones((1, 4), np.float32)
    np.testing.assert_allclose(own_outputs(dnnl, path, {"x": x})["y"], x @ weight, rtol=1e-5)


@pytest.mark.long
def test_a_plan_starts_from_weights_behind_two_gibibytes(dnnl: Dnnl, tmp_path: Path, planned: Callable[..., Plan]) -> None:
    path, weight = _far(tmp_path)
    graph, _ = read_model(path)
    plan = planned(path, graph, sources=("raw",), model_sha256=model_sha256(path))
    inputs = random_inputs(graph)
    start_right(build_plan_folder(dnnl, path, plan, tmp_path / "plan"), graph, {"y": inputs["x"] @ weight})
