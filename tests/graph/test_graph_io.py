"""ONNX files that other exporters write, and files that are broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx_models import IMAGE, weight, write_model

from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
from edgeplan.graph.kinds import kind
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx, to_onnx


def _conv(name: str = "c", x: str = "x", y: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Conv", [x, "w"], [y], name=name, **attributes)


def _kinds(graph: Graph) -> list[str]:
    return [kind(graph, op) for op in graph.operators]


def test_identity_dropout_and_constants_leave_no_operator(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight("w", 4, 4, 3, 3)),
        _conv(y="a", pads=[1, 1, 1, 1]),
        helper.make_node("Identity", ["a"], ["b"]),
        helper.make_node("Dropout", ["b"], ["d", "mask"]),
        helper.make_node("Identity", ["d"], ["e"]),
        helper.make_node("Relu", ["e"], ["r"], name="r"),
        helper.make_node("Dropout", ["r"], ["y"]),
    ]
    graph = load_onnx(write_model(tmp_path / "m.onnx", nodes))
    assert _kinds(graph) == ["conv", "relu"]
    conv, relu = graph.operators
    assert conv.weights == ("w",)
    assert relu.inputs == conv.outputs
    assert graph.outputs == relu.outputs
    assert graph.shape(graph.outputs[0]) == IMAGE


def test_a_weight_behind_an_identity_stays_a_weight(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Identity", ["shared"], ["w"]),
        _conv(pads=[1, 1, 1, 1]),
    ]
    graph = load_onnx(write_model(tmp_path / "m.onnx", nodes, [weight("shared", 4, 4, 3, 3)]))
    (conv,) = graph.operators
    assert conv.inputs == ("x",)
    assert [graph.shape(w) for w in conv.weights] == [(4, 4, 3, 3)]


@pytest.mark.parametrize(("opset", "as_input"), [(13, False), (18, True)])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_a_mean_over_the_image_is_global_pooling(tmp_path: Path, opset: int, as_input: bool, keepdims: int) -> None:
    axes = [numpy_helper.from_array(np.array([2, 3], dtype=np.int64), "axes")] if as_input else []
    attributes = {} if as_input else {"axes": [2, 3]}
    node = helper.make_node("ReduceMean", ["x", "axes"] if as_input else ["x"], ["y"], keepdims=keepdims, **attributes)
    graph = load_onnx(write_model(tmp_path / "m.onnx", [node], axes, opset=opset))
    assert _kinds(graph) == ["gap"]
    assert graph.operators[0].integers("axes", ()) == (2, 3)
    config = make_kernel(graph, [graph.operators[0].name]).config
    assert (config.in_channels, config.in_height, config.out_height, config.out_width) == (4, 8, 1, 1)


@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
def test_a_layer_without_bias_is_fully_connected(tmp_path: Path, op_type: str) -> None:
    nodes = [helper.make_node("Flatten", ["x"], ["f"], name="f"), helper.make_node(op_type, ["f", "w"], ["y"], name="fc")]
    graph = load_onnx(write_model(tmp_path / "m.onnx", nodes, [weight("w", 256, 10)]))
    assert _kinds(graph) == ["reshape", "fc"]
    config = make_kernel(graph, ["fc"]).config
    assert (config.in_channels, config.out_channels, config.bias) == (256, 10, False)


@pytest.mark.parametrize(
    ("mode", "stride", "kernel", "expected"),
    [
        ("SAME_UPPER", 2, 3, (0, 0, 1, 1)),
        ("SAME_LOWER", 2, 3, (1, 1, 0, 0)),
        ("SAME_UPPER", 1, 3, (1, 1, 1, 1)),
        ("VALID", 1, 3, (0, 0, 0, 0)),
    ],
)
def test_automatic_padding_is_resolved(
    tmp_path: Path, mode: str, stride: int, kernel: int, expected: tuple[int, int, int, int]
) -> None:
    node = _conv(auto_pad=mode, strides=[stride, stride])
    graph = load_onnx(write_model(tmp_path / "m.onnx", [node], [weight("w", 6, 4, kernel, kernel)]))
    config = make_kernel(graph, ["c"]).config
    assert (config.pad_top, config.pad_left, config.pad_bottom, config.pad_right) == expected
    size = 8 // stride if mode != "VALID" else 6
    assert graph.shape("y") == (1, 6, size, size)


def test_absent_attributes_take_the_defaults_of_onnx(tmp_path: Path) -> None:
    graph = load_onnx(write_model(tmp_path / "m.onnx", [_conv()], [weight("w", 6, 4, 3, 3)]))
    config = make_kernel(graph, ["c"]).config
    assert (config.kernel_h, config.stride_h, config.dilation_w, config.groups) == (3, 1, 1, 1)
    assert (config.pad_top, config.pad_bottom) == (0, 0)
    assert (config.out_channels, config.out_height) == (6, 6)


@pytest.mark.parametrize(("opset", "as_input"), [(6, False), (11, True), (17, True)])
@pytest.mark.parametrize(("low", "high", "expected"), [(0.0, 6.0, "relu6"), (-1.0, 1.0, "clip")])
def test_clip_in_both_its_forms(tmp_path: Path, opset: int, as_input: bool, low: float, high: float, expected: str) -> None:
    bounds = [numpy_helper.from_array(np.array(v, dtype=np.float32), k) for k, v in (("lo", low), ("hi", high))]
    attributes = {} if as_input else {"min": low, "max": high}
    node = helper.make_node("Clip", ["x", "lo", "hi"] if as_input else ["x"], ["y"], **attributes)
    graph = load_onnx(write_model(tmp_path / "m.onnx", [node], bounds if as_input else (), opset=opset))
    (op,) = graph.operators
    assert (op.number("min", 9), op.number("max", 9)) == (low, high)
    assert kind(graph, op) == expected
    assert op.inputs == ("x",)
    assert op.weights == ()


def test_a_clip_without_a_lower_bound_is_no_relu6(tmp_path: Path) -> None:
    six = numpy_helper.from_array(np.array(6.0, dtype=np.float32), "six")
    graph = load_onnx(write_model(tmp_path / "m.onnx", [helper.make_node("Clip", ["x", "", "six"], ["y"])], [six]))
    assert _kinds(graph) == ["clip"]


def test_initialisers_that_are_also_inputs_are_weights(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.onnx", [_conv()], [weight("w", 6, 4, 3, 3)])
    model = onnx.load(path)
    model.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [6, 4, 3, 3]))
    path.write_bytes(model.SerializeToString())
    graph = load_onnx(path)
    assert graph.inputs == ("x",)
    assert graph.operators[0].weights == ("w",)


@pytest.mark.parametrize("batch", ["N", -1, 0])
def test_a_dynamic_axis_is_named(tmp_path: Path, batch: int | str) -> None:
    path = write_model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"], name="r")], shape=(batch, 4, 8, 8))
    with pytest.raises(ModelError, match="no static shape") as caught:
        load_onnx(path)
    assert "r" in caught.value.where
    assert caught.value.next_step


@pytest.mark.parametrize(("op_type", "domain", "shown"), [("Det", "", "Det"), ("Relu", "com.acme", "com.acme::Relu")])
def test_an_unknown_operator_is_named(tmp_path: Path, op_type: str, domain: str, shown: str) -> None:
    node = helper.make_node(op_type, ["x"], ["y"], name="odd", domain=domain)
    with pytest.raises(ModelError, match="unknown operator") as caught:
        load_onnx(write_model(tmp_path / "m.onnx", [node]))
    assert f"{shown} (node 'odd')" in caught.value.what
    assert "docs/operators.md" in caught.value.next_step
    assert ("Relu" in caught.value.next_step) == (op_type == "Relu")
    assert len(caught.value.next_step) < 100


def test_exported_models_name_their_tensors_and_pass_the_checker(tmp_path: Path) -> None:
    b = GraphBuilder("net", (1, 3, 8, 8))
    graph = b.build(b.fc(b.flatten(b.gap(b.relu(b.conv(b.input, 8, 3)))), 5))
    model = to_onnx(graph, seed=4)
    onnx.checker.check_model(model, full_check=True)
    assert [n.name for n in model.graph.node] == [op.name for op in graph.operators]
    assert to_onnx(graph, seed=4).SerializeToString(deterministic=True) == model.SerializeToString(deterministic=True)
    assert to_onnx(graph, seed=5).SerializeToString(deterministic=True) != model.SerializeToString(deterministic=True)
    path = save_onnx(graph, tmp_path / "net.onnx", seed=4)
    assert load_onnx(path).operators == graph.operators


def test_numbers_are_read_as_they_were_written(tmp_path: Path) -> None:
    """Files hold single precision; profiles are found by what the zoo's builders say."""
    b = GraphBuilder("net", (1, 4, 6, 6))
    graph = b.build(b.relu(b.bn(b.conv(b.input, 4, 3))))
    read = load_onnx(save_onnx(graph, tmp_path / "m.onnx"))
    assert [dict(op.attributes) for op in read.operators] == [dict(op.attributes) for op in graph.operators]
    assert 1e-05 in read.operators[1].attributes.values()


def test_dropout_in_training_is_refused(tmp_path: Path) -> None:
    training = numpy_helper.from_array(np.ones((), dtype=np.bool_), "t")
    node = helper.make_node("Dropout", ["x", "", "t"], ["d"], name="drop")
    nodes = [node, helper.make_node("Relu", ["d"], ["y"])]
    with pytest.raises(ModelError, match="training mode") as caught:
        load_onnx(write_model(tmp_path / "m.onnx", nodes, [training]))
    assert "'drop'" in caught.value.where


@pytest.mark.parametrize("count", [0, 2])
def test_a_clip_takes_one_number_for_a_bound(tmp_path: Path, count: int) -> None:
    bound = numpy_helper.from_array(np.zeros(count, dtype=np.float32), "lo")
    with pytest.raises(ModelError, match=f"whose min is {count} numbers") as caught:
        load_onnx(write_model(tmp_path / "m.onnx", [helper.make_node("Clip", ["x", "lo"], ["y"], name="odd")], [bound]))
    assert "'odd'" in caught.value.where
