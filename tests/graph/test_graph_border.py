"""ONNX files: what exporters write is read, and comes back; what is damaged or contradicts itself ends in one clear error."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_file_runs import IMAGE, W, conv, integers, model, node, onnxruntime_outputs, refused, weight
from onnx import TensorProto, helper, numpy_helper
from random_graphs import graphs

from depth import MANY, by_day
from edgeplan.engines.base import random_inputs
from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Attribute
from edgeplan.graph.kinds import kind as kind_of
from edgeplan.graph.kinds import operator_macs
from edgeplan.graph.onnx.read import from_onnx, load_onnx
from edgeplan.graph.onnx.write import save_onnx, to_onnx
from edgeplan.runtime.lowering import lower
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

# Damaged files.


def _with(place: str, value: object, given: onnx.ModelProto | None = None) -> onnx.ModelProto:
    """A convolution, or another model, with another value at a place; None: without."""
    found = given or model([conv(strides=[1, 1])], [W])
    *path, last = place.split()
    message: Any = found
    for name in path:
        message = message[int(name)] if name.isdigit() else getattr(message, name)
    message.ClearField(last)
    if isinstance(value, list):
        getattr(message, last).extend(value)
    elif value is not None:
        setattr(message, last, value)
    return found


def _replaced(old: bytes, new: bytes) -> onnx.ModelProto:
    data = model([conv(strides=[1, 1])], [W]).SerializeToString()
    assert old in data
    return onnx.load_from_string(data.replace(old, new))


def _reshape() -> onnx.ModelProto:
    return model([node("Reshape", "x s")], [integers("s", 1, 256)])


_UNDEFINED, _STRING = TensorProto.UNDEFINED, TensorProto.STRING


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (_replaced(b"strides", b"strid\xff\xfe"), "no UTF-8 text"),
        (_replaced(b"c\x22\x04Conv", b"\xff\x22\x04Conv"), "no UTF-8 text"),
        (model([node("Det", "x", [])]), "unknown operator: Det"),
        (_with("graph output 0 name", "x", model([node("Relu", "x", [])])), "not a valid ONNX model"),
        (_with("graph node 0 attribute 0 type", None), "not a valid ONNX model"),
        (_with("graph node 0 attribute 0 ref_attr_name", "group"), "that of a function"),
        *((_with("graph initializer 0 dims", dims, _reshape()), "holds 16 bytes") for dims in ([92], [])),
        (_with("graph initializer 0 dims", [-2], _reshape()), "impossible shape"),
        (_with("graph initializer 0 dims", [1 << 62, 4, 3, 3]), "impossible shape"),
        (_with("graph initializer 0 raw_data", W.raw_data[4:]), "constant 'w' holds 860 bytes"),
        *((_with("graph initializer 0 data_type", kind, _reshape()), "element type") for kind in (_UNDEFINED, _STRING, 77)),
        *(
            (_with("graph input 0 type tensor_type elem_type", kind), f"element type {name}")
            for kind, name in ((_STRING, "STRING"), (_UNDEFINED, "UNDEFINED"), (77, "77"))
        ),
        (_with("graph input 0 type tensor_type", None), "no static shape"),
        (model([node("Relu", "x")], shape=(1, 1 << 40, 1 << 40, 8)), "the tensors of the model take"),
        (model([conv(auto_pad="SAME_UPPER", dilations=[1 << 62, 1])], [W]), "impossible dilations"),
        (model([node("Relu", "x", [""]), node("Relu", "x")]), "empty string"),
        (model([conv()], more=[("w", (6, 4, 3, 3))]), "whose W is no initialiser"),
        (model([node("Clip", "x - w")], more=[("w", ())]), "whose max is no constant"),
        *((_with("ir_version", version), "IR version") for version in (99, 0)),
        *(
            (_with("opset_import", [helper.make_opsetid(*one) for one in opsets]), "opset")
            for opsets in ([("", 99)], [("", 0)], [("", -3)], [("acme", 1)], [("", 13), ("ai.onnx", 14)])
        ),
    ],
)
def test_damaged_files_and_what_is_not_known_are_refused(given: onnx.ModelProto, said: str) -> None:
    refused(given, said)


def test_a_constant_that_lies_elsewhere(tmp_path: Path) -> None:
    given = model([node("Reshape", "x s"), conv("y", "z")], [integers("s", 1, 4, 8, 8), W])
    onnx.save(given, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    assert load_onnx(tmp_path / "m.onnx").operators[0].attributes["shape"] == (1, 4, 8, 8)
    refused(onnx.load(tmp_path / "m.onnx", load_external_data=False), "in another file")


def test_more_than_protobuf_can_hold(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(1 << 31)  # sparse: it takes no space
    with pytest.raises(ModelError, match="larger than 2 GB") as caught:
        load_onnx(tmp_path / "m.onnx")
    assert "save_as_external_data" in caught.value.next_step


# Who writes what.


def test_nodes_in_any_order_are_sorted() -> None:
    b = GraphBuilder("net", IMAGE)
    left, right = b.split(b.conv_bn(b.input, 8, 3), (4, 4))
    given = to_onnx(b.build(b.fc(b.flatten(b.gap(b.add(b.relu(left), b.maxpool(right, 3, 1, 1)))), 5)))
    expected = from_onnx(given)
    nodes = list(given.graph.node)
    for seed in range(5):
        shuffled = onnx.ModelProto()
        shuffled.CopyFrom(given)
        del shuffled.graph.node[:]
        shuffled.graph.node.extend(random.Random(seed).sample(nodes, len(nodes)))  # noqa: S311  not cryptography
        found = from_onnx(shuffled)
        assert {op.name: op for op in found.operators} == {op.name: op for op in expected.operators}
        done = set(found.inputs)
        for op in found.operators:
            assert done.issuperset(op.inputs)
            done.update(op.outputs)


def test_an_alias_before_what_it_stands_for() -> None:
    graph = from_onnx(model([node("Relu", "b"), node("Identity", "a", "b"), conv("x", "a")], [W]))
    assert [op.inputs for op in graph.operators] == [("x",), ("a",)]


@pytest.mark.parametrize(
    ("nodes", "said"),
    [
        ([node("Add", "x b", "a"), node("Relu", "a", "b"), node("Relu", "a")], "in a circle"),
        ([node("Add", "x y")], "in a circle"),
        ([node("Add", "x lost")], "'lost' is read"),
        ([node("Relu", "x", "a")], "nothing writes the output 'y'"),
        ([node("Relu", "x"), node("Tanh", "x")], "'y' is written twice"),
        ([node("Relu", "x", "x")], "'x' is written twice"),
        ([node("Dropout", ["x"], ["a", "m"]), node("Transpose", "m", "t"), node("Relu", "a")], "training alone"),
        ([node("Relu", "w", "a"), node("Add", "x a")], "reads constants alone"),
    ],
)
def test_every_tensor_is_written_once_before_it_is_read(nodes: list[onnx.NodeProto], said: str) -> None:
    refused(model(nodes, [weight("w", 1)]), said)


def test_names_of_operators_differ_even_from_made_up_ones() -> None:
    nodes = [node("Relu", [a], [b], name=n) for a, b, n in (("x", "a", "r_2"), ("a", "b", "r"), ("b", "y", "r"))]
    graph = from_onnx(model(nodes))
    assert len(graph.by_name) == len(graph.operators) == 3


def test_constants_and_inputs_of_one_name_agree() -> None:
    refused(model([conv()], [W, W]), "two initialisers")
    refused(model([conv()], [W], more=[("w", (6, 4, 5, 5))]), "listed as an input")
    refused(model([conv()], [W], more=[("x", IMAGE)]), "two inputs")
    twice = model([conv()], [W], output=(1, 6, 6, 6))
    twice.graph.output.append(twice.graph.output[0])
    assert from_onnx(twice).outputs == ("y", "y")
    twice.graph.output[1].type.tensor_type.shape.dim[2].dim_value = 5
    refused(twice, "two shapes are given")


# Versions.


_IMAGE, _VECTOR = ("c", (4,)), ("c", (8,))
_NORM = [(name, (4,)) for name in "somv"]


@pytest.mark.parametrize(
    ("op_type", "constants", "attributes", "opset", "converts"),
    [
        ("BatchNormalization", _NORM, {"is_test": 1}, 6, True),
        ("Reshape", [], {"shape": [1, -1]}, 1, True),
        ("Clip", [], {"min": 0.0}, 1, True),
        ("Add", [_VECTOR], {"broadcast": 1}, 6, True),
        ("Add", [_IMAGE], {"broadcast": 1, "axis": 1}, 6, False),
        ("PRelu", [_IMAGE], {}, 6, False),
    ],
)
def test_what_opset_7_wrote_otherwise_is_refused_in_older_files(
    op_type: str, constants: list[tuple[str, tuple[int, ...]]], attributes: dict[str, Any], opset: int, converts: bool
) -> None:
    given = model([node(op_type, ["x", *(name for name, _ in constants)], ["y"], **attributes)], opset=opset)
    given.graph.initializer.extend(numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in constants)
    error = refused(given, f"{op_type} of opset {opset}, which has another form since")
    assert ("convert_version" in error.next_step) == converts


def test_what_opset_7_left_as_it_was_is_read_in_older_files() -> None:
    nodes = [node("Relu", "x", "a"), node("GlobalAveragePool", "a")]
    assert from_onnx(model(nodes, opset=6)).operators == from_onnx(model(nodes, opset=13)).operators


def test_windows_over_volumes_are_a_kind_of_their_own() -> None:
    given = model([conv(strides=[1, 2, 3], pads=[0, 1, 2, 1, 1, 0])], [weight("w", 6, 4, 1, 3, 5)], (1, 4, 8, 9, 10))
    graph = from_onnx(given)
    assert kind_of(graph, graph.operators[0]) == "conv3d"
    assert operator_macs(graph, graph.operators[0]) == graph.tensors["y"].elements * 4 * 15


_FIVES = [weight(name, 5) for name in ("s", "b", "m", "v")]
_GATES, _RECURRENCE = weight("w", 1, 12, 4), weight("r", 1, 12, 3)


def _lstm(**attributes: Any) -> onnx.NodeProto:
    return node("LSTM", "x w r", hidden_size=3, **attributes)


@pytest.mark.parametrize(
    ("given", "constants", "shape", "said"),
    [
        (conv(), [weight("w", 6, 5, 3, 3)], IMAGE, r"a weight \(6, 5, 3, 3\) for 4 channels in 1 group"),
        (conv(group=2), [W], IMAGE, "for 4 channels in 2 groups"),
        (conv(group=0), [W], IMAGE, "impossible group 0"),
        (conv(kernel_shape=[5, 5]), [W], IMAGE, r"for a window \(5, 5\)"),
        (conv(strides=[0, 1]), [W], IMAGE, "impossible strides"),
        (conv(pads=[1, 1]), [W], IMAGE, "Conv: Attribute pads has incorrect size"),
        (conv(pads=[-1, 0, 0, 0]), [W], IMAGE, "impossible pads"),
        (conv(auto_pad="SAMF"), [W], IMAGE, "auto_pad 'SAMF'"),
        (conv(auto_pad="VALID", pads=[1, 1, 1, 1]), [W], IMAGE, "auto_pad 'VALID' and pads"),
        (conv(), [weight("w", 6, 4, 9, 9)], IMAGE, "no static shape"),
        (node("Conv", "x w b"), [W, weight("b", 5)], IMAGE, r"a bias \(5,\) for 6 channels"),
        (node("MaxPool", "x"), [], IMAGE, "'kernel_shape' is missing"),
        (node("Gemm", "x w"), [weight("w", 9, 3)], (1, 8), "Gemm"),
        (node("Gemm", "x w b"), [weight("w", 8, 3), weight("b", 4)], (1, 8), r"a bias \(4,\)"),
        (node("MatMul", "x w"), [weight("w", 9, 3)], (1, 8), "MatMul"),
        (node("MatMul", "x w"), [weight("w", 8, 3)], (), "MatMul"),
        (node("BatchNormalization", "x s b m v", training_mode=1), _FIVES, (1, 5, 8, 8), "in training mode"),
        (_lstm(), [weight("w", 1, 12, 5), _RECURRENCE], (5, 2, 4), "LSTM with weights"),
        (_lstm(direction="upward"), [_GATES, _RECURRENCE], (5, 2, 4), "unknown direction 'upward'"),
        (node("Reshape", "x s"), [integers("s", 1, 255)], IMAGE, r"Reshape of \(1, 4, 8, 8\) to \(1, 255\)"),
        (node("Reshape", "x s"), [weight("s", 2)], IMAGE, "shape is 2 numbers of type float32"),
        (node("Split", ["x", "s"], ["y", "z"], axis=1), [integers("s", -2, 6)], IMAGE, "no static shape"),
        (node("Transpose", "x", perm=[0, 1, 2]), [], IMAGE, "Transpose of 4 axes by"),
        (node("Concat", "x x", axis=1 << 32), [], IMAGE, "along axis 4294967296"),
        (node("LRN", "x", size=0), [], IMAGE, "over 0 channels"),
        (node("Clip", "x w"), [weight("w", 0)], IMAGE, "min is 0 numbers"),
        (node("Add", "x w"), [weight("w", 1, kind=np.float16)], IMAGE, "inconsistent type"),
        (node("Add", "x w"), [weight("w", 5)], IMAGE, "Incompatible dimensions"),
        (node("Resize", "x - w", mode="nearesu"), [weight("w", 4)], IMAGE, "unknown mode 'nearesu'"),
        (node("Relu", "x", alpha=1.0), [], IMAGE, "Unrecognized attribute: alpha"),
        (conv(), [weight("w", 6, 4, 3, 3, 3, 3)], (1, 4, 8, 8, 8, 8), "over 4 spatial axes"),
        (node("GlobalAveragePool", "x"), [], (1, 4, 8, 8, 8, 8), "over 4 spatial axes"),
    ],
)
def test_operators_that_do_not_fit_are_refused(
    given: onnx.NodeProto, constants: list[TensorProto], shape: Sequence[int], said: str
) -> None:
    refused(model([given], constants, shape), said)


def test_an_operator_that_its_opset_has_not_is_named() -> None:
    assert "'n'" in refused(model([node("HardSwish", "x", name="n")], opset=11), "HardSwish: No Op registered").where


def test_declared_shapes_that_contradict_the_operators() -> None:
    stale = refused(model([conv()], [W], output=(1, 6, 7, 6)), r"differ in dimension 2: \(6\) vs \(7\)")
    assert "'c'" in stale.where
    assert "value_info" in stale.next_step
    inner = model([conv("x", "a"), node("Relu", "a")], [W])
    inner.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, (1, 9, 6, 6)))
    refused(inner, "differ in dimension 1")


def test_padding_by_a_mode_wins_over_pads_of_zero() -> None:
    graph = from_onnx(model([conv(auto_pad="SAME_UPPER", pads=[0, 0, 0, 0])], [W]))
    assert graph.shape("y") == (1, 6, 8, 8)
    (step,) = lower(graph).steps
    assert (step.settings["pads_before"], step.settings["pads_after"]) == ((1, 1), (1, 1))


# What other exporters write.


def _numbers(name: str, *values: float) -> TensorProto:
    return numpy_helper.from_array(np.array(values if len(values) != 1 else values[0], dtype=np.float32), name)


def test_identity_dropout_and_constants_leave_no_operator() -> None:
    nodes = [
        node("Constant", "", "w", value=weight("w", 4, 4, 3, 3)), conv(y="a", pads=[1, 1, 1, 1]), node("Identity", "a", "b"),
        node("Dropout", "b", "d mask"), node("Identity", "d", "e"), node("Relu", "e", "r", name="r"), node("Dropout", "r"),
    ]  # fmt: skip
    graph = from_onnx(model(nodes))
    first, relu = graph.operators
    assert (first.op_type, first.weights, relu.op_type, relu.inputs) == ("Conv", ("w",), "Relu", first.outputs)
    assert graph.outputs == relu.outputs
    assert graph.shape(graph.outputs[0]) == IMAGE


def test_a_weight_behind_an_identity_or_among_the_inputs_stays_a_weight() -> None:
    behind = model([node("Identity", "shared", "w"), conv()], [weight("shared", 6, 4, 3, 3)])
    for file in (behind, model([conv()], [W], more=[("w", (6, 4, 3, 3))])):
        graph = from_onnx(file)
        (op,) = graph.operators
        assert graph.inputs == op.inputs == ("x",)
        assert [graph.shape(name) for name in op.weights] == [(6, 4, 3, 3)]


@pytest.mark.parametrize(
    ("given", "opset", "expected"),
    [
        *((node("ReduceMean", "x", keepdims=keep, axes=[2, 3]), 13, "gap") for keep in (0, 1)),
        *((node("ReduceMean", "x axes", keepdims=keep), 18, "gap") for keep in (0, 1)),
        (node("Clip", "x", min=0.0, max=6.0), 6, "relu6"),
        (node("Clip", "x", min=1.0, max=6.0), 6, "clip"),
        *((node("Clip", "x zero six"), opset, "relu6") for opset in (11, 17)),
        (node("Clip", "x one six"), 11, "clip"),
        (node("Clip", "x - six"), 17, "clip"),
    ],
)
def test_a_kind_follows_from_numbers_whether_attributes_or_inputs(given: onnx.NodeProto, opset: int, expected: str) -> None:
    constants = [integers("axes", 2, 3), _numbers("zero", 0.0), _numbers("one", 1.0), _numbers("six", 6.0)]
    graph = from_onnx(model([given], [c for c in constants if c.name in given.input], opset=opset))
    (op,) = graph.operators
    assert kind_of(graph, op) == expected
    assert (op.inputs, op.weights) == (("x",), ())


@pytest.mark.parametrize("batch", ["N", -1, 0])
def test_a_dynamic_axis_is_named(batch: int | str) -> None:
    assert "r" in refused(model([node("Relu", "x", name="r")], shape=(batch, 4, 8, 8)), "no static shape").where


@pytest.mark.parametrize(("op_type", "domain", "shown"), [("Det", "", "Det"), ("Relu", "com.acme", "com.acme::Relu")])
def test_an_unknown_operator_is_named(op_type: str, domain: str, shown: str) -> None:
    error = refused(model([node(op_type, "x", name="odd", domain=domain)]), "unknown operator")
    assert f"{shown} (node 'odd')" in error.what
    assert "docs/operators.md" in error.next_step
    assert ("Relu" in error.next_step) == (op_type == "Relu")
    assert len(error.next_step) < 100


def test_dropout_in_training_is_refused() -> None:
    nodes = [node("Dropout", "x - t", "d", name="drop"), node("Relu", "d")]
    assert "'drop'" in refused(model(nodes, [numpy_helper.from_array(np.ones((), np.bool_), "t")]), "training mode").where


def _single(value: Attribute) -> Attribute:
    """As ONNX keeps it: floats in single precision."""
    if isinstance(value, float):
        return float(onnx.helper.make_attribute("a", value).f)
    return value


def test_operators_shapes_and_names_come_back(tmp_path: Path) -> None:
    for graph in graphs(400 if MANY else 40):
        onnx.checker.check_model(to_onnx(graph), full_check=True)
        back = load_onnx(save_onnx(graph, tmp_path / "m.onnx"))
        assert (back.name, back.inputs, back.outputs) == (graph.name, graph.inputs, graph.outputs)
        assert len(back.operators) == len(graph.operators)
        for found, op in zip(back.operators, graph.operators, strict=True):
            assert (found.name, found.op_type, found.inputs, found.weights, found.outputs) == (
                op.name, op.op_type, op.inputs, op.weights, op.outputs,
            )  # fmt: skip
            given_back, wanted = ({k: _single(v) for k, v in o.attributes.items()} for o in (found, op))
            assert given_back == wanted
            for name in (*op.inputs, *op.weights, *op.outputs):
                assert back.tensors[name] == graph.tensors[name], name


#: Of each kind one, and the others.
_OF_EACH_KIND = ("squeezenet", "shufflenetv2", "crnn_lite", "mobilenet_yolo")


@pytest.mark.parametrize(
    "name",
    by_day([*_OF_EACH_KIND, *(name for name in COLD_START_MODELS if name not in _OF_EACH_KIND)], least=len(_OF_EACH_KIND)),
)
def test_exported_models_are_valid_run_and_come_back(name: str, tmp_path: Path) -> None:
    graph = COLD_START_MODELS[name]()
    path = save_onnx(graph, tmp_path / "m.onnx")
    onnx.checker.check_model(path, full_check=True)
    back = load_onnx(path)
    assert back.operators == graph.operators  # to the last digit of attributes: profiles are found by what builders say
    assert all(back.tensors[name] == tensor for name, tensor in graph.tensors.items())
    for output, found in zip(graph.outputs, onnxruntime_outputs(path, random_inputs(graph)), strict=True):
        assert found.shape == graph.shape(output)
        assert np.isfinite(found).all()
        assert found.std() > 0


_LSTM_CONSTANTS = (
    weight("w", 1, 12, 4), weight("r", 1, 12, 3), weight("b", 1, 24), weight("one", 1, 2, 3),
    numpy_helper.from_array(np.zeros((1, 2, 3), np.float32), "zero"),
)  # fmt: skip


def _odd_lstm(reads: str, writes: str = "y", **attributes: Any) -> onnx.ModelProto:
    made = node("LSTM", reads, writes, name="odd", hidden_size=3, **attributes)
    return model([made], [c for c in _LSTM_CONSTANTS if c.name in made.input], (5, 2, 4))


def test_an_lstm_as_exporters_write_it_is_brought_to_one_form() -> None:
    (op,) = from_onnx(_odd_lstm("x w r b - zero zero", "y last_h last_c", activations=["Sigmoid", "Tanh", "Tanh"])).operators
    assert (op.inputs, op.weights, op.outputs) == (("x",), ("w", "r", "b"), ("y",))
    assert dict(op.attributes) == {"hidden_size": 3}


def _resize(reads: str, **attributes: Any) -> onnx.ModelProto:
    held = [_numbers("scales", 1, 1, 2, 2)] if "scales" in reads else []
    return model([node("Resize", reads, name="odd", **attributes)], held)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (_odd_lstm("x w r b - one"), "one initial state"),
        (_odd_lstm("x w r x"), "whose B"),
        (_odd_lstm("x w r", clip=1.0), "attribute clip"),
        (_odd_lstm("x w r", input_forget=1), "attribute input_forget"),
        (_odd_lstm("x w r", activations=["Relu", "Tanh", "Tanh"]), "attribute activations"),
        (_odd_lstm("x x r"), "whose W"),
        (_resize("x - scales", coordinate_transformation_mode="tf_crop_and_resize"), "region"),
        (_resize("x - x"), "no constant"),
    ],
)
def test_other_forms_are_refused_by_name(given: onnx.ModelProto, said: str) -> None:
    assert "'odd'" in refused(given, said).where
