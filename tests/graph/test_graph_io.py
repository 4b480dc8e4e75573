"""ONNX files that other exporters write, and files that are broken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from model_file_runs import IMAGE, W, conv, integers, model, node, onnxruntime_outputs, refused, weight
from onnx import TensorProto, numpy_helper
from random_graphs import graphs

from depth import MANY, by_day
from edgeplan.engines.base import random_inputs
from edgeplan.graph.ir import Attribute
from edgeplan.graph.kinds import kind
from edgeplan.graph.onnx.read import from_onnx, load_onnx
from edgeplan.graph.onnx.write import save_onnx, to_onnx
from edgeplan.zoo.cold_start_models import COLD_START_MODELS


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
    assert kind(graph, op) == expected
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


def _lstm(reads: str, writes: str = "y", **attributes: Any) -> onnx.ModelProto:
    made = node("LSTM", reads, writes, name="odd", hidden_size=3, **attributes)
    return model([made], [c for c in _LSTM_CONSTANTS if c.name in made.input], (5, 2, 4))


def test_an_lstm_as_exporters_write_it_is_brought_to_one_form() -> None:
    (op,) = from_onnx(_lstm("x w r b - zero zero", "y last_h last_c", activations=["Sigmoid", "Tanh", "Tanh"])).operators
    assert (op.inputs, op.weights, op.outputs) == (("x",), ("w", "r", "b"), ("y",))
    assert dict(op.attributes) == {"hidden_size": 3}


def _resize(reads: str, **attributes: Any) -> onnx.ModelProto:
    held = [_numbers("scales", 1, 1, 2, 2)] if "scales" in reads else []
    return model([node("Resize", reads, name="odd", **attributes)], held)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (_lstm("x w r b - one"), "one initial state"),
        (_lstm("x w r x"), "whose B"),
        (_lstm("x w r", clip=1.0), "attribute clip"),
        (_lstm("x w r", input_forget=1), "attribute input_forget"),
        (_lstm("x w r", activations=["Relu", "Tanh", "Tanh"]), "attribute activations"),
        (_lstm("x x r"), "whose W"),
        (_resize("x - scales", coordinate_transformation_mode="tf_crop_and_resize"), "region"),
        (_resize("x - x"), "no constant"),
    ],
)
def test_other_forms_are_refused_by_name(given: onnx.ModelProto, said: str) -> None:
    assert "'odd'" in refused(given, said).where
