"""ONNX files that are damaged or contradict themselves end in one clear error."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_file_runs import IMAGE, W, conv, integers, model, node, refused, weight
from onnx import TensorProto, helper, numpy_helper

from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.kinds import kind as kind_of
from edgeplan.graph.kinds import operator_macs
from edgeplan.graph.onnx.read import from_onnx, load_onnx
from edgeplan.graph.onnx.write import to_onnx
from edgeplan.runtime.lowering import lower

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
