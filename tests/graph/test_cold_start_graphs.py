"""The models of the cold-start chapter as ONNX files that other engines take, and the operators that they brought."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from depth import by_day
from edgeplan.errors import ModelError
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernel_nodes import executed_graph
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx, to_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.predictors.nodes.features import Table
from edgeplan.zoo.cold_start_models import COLD_START_MODELS


def _run(path: Path, seed: int = 0) -> list[npt.NDArray[np.float32]]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(seed)
    feed = {i.name: rng.standard_normal(i.shape).astype(np.float32) for i in session.get_inputs()}
    return list(session.run(None, feed))


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
    assert [(o.name, o.op_type, o.inputs, o.weights, o.outputs) for o in back.operators] == [
        (o.name, o.op_type, o.inputs, o.weights, o.outputs) for o in graph.operators
    ]
    assert all(back.tensors[name] == tensor for name, tensor in graph.tensors.items())
    for output, found in zip(graph.outputs, _run(path), strict=True):
        assert found.shape == graph.shape(output)
        assert np.isfinite(found).all()
        assert found.std() > 0


@pytest.mark.parametrize("name", COLD_START_MODELS)
def test_models_split_into_kernels_with_finite_sizes(name: str) -> None:
    rules = FusionRules(pairs={"conv_bn": True, "bn_relu": True})
    nodes = executed_graph(None, simplify(COLD_START_MODELS[name]()), rules).nodes
    table = Table.of([node.config for node in nodes])
    assert len(table.place) == len(nodes) > 0
    assert np.isfinite(table.sizes).all()


def _constant(name: str, values: Any, kind: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype=kind), name)


def _write(path: Path, node: onnx.NodeProto, constants: Sequence[TensorProto], shape: Sequence[int], opset: int = 17) -> Path:
    outputs = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None) for o in ("y",)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, list(shape))]
    body = helper.make_graph([node], "other", inputs, outputs, list(constants))
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())
    return path


def _lstm(inputs: Sequence[str], outputs: Sequence[str] = ("y",), **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("LSTM", list(inputs), list(outputs), name="odd", hidden_size=3, **attributes)


_LSTM_CONSTANTS = (
    _constant("w", np.ones((1, 12, 4))),
    _constant("r", np.ones((1, 12, 3))),
    _constant("b", np.ones((1, 24))),
    _constant("zero", np.zeros((1, 2, 3))),
    _constant("one", np.ones((1, 2, 3))),
    _constant("lens", [5, 4], np.int32),
    _constant("p", np.ones((1, 9))),
)


def _read_lstm(tmp_path: Path, node: onnx.NodeProto) -> Graph:
    used = [c for c in _LSTM_CONSTANTS if c.name in node.input]
    return load_onnx(_write(tmp_path / "m.onnx", node, used, (5, 2, 4)))


def test_an_lstm_as_exporters_write_it_is_brought_to_one_form(tmp_path: Path) -> None:
    node = _lstm(["x", "w", "r", "b", "", "zero", "zero"], ["y", "last_h", "last_c"], activations=["Sigmoid", "Tanh", "Tanh"])
    (op,) = _read_lstm(tmp_path, node).operators
    assert (op.inputs, op.weights, op.outputs) == (("x",), ("w", "r", "b"), ("y",))
    assert dict(op.attributes) == {"hidden_size": 3}


@pytest.mark.parametrize(
    ("node", "said"),
    [
        (_lstm(["x", "w", "r", "b", "", "one"]), "one initial state"),
        (_lstm(["x", "w", "r", "x"]), "whose B"),
        (_lstm(["x", "w", "r"], clip=1.0), "attribute clip"),
        (_lstm(["x", "w", "r"], input_forget=1), "attribute input_forget"),
        (_lstm(["x", "w", "r"], activations=["Relu", "Tanh", "Tanh"]), "attribute activations"),
        (_lstm(["x", "x", "r"]), "whose W"),
    ],
)
def test_an_lstm_of_another_form_is_refused_by_name(tmp_path: Path, node: onnx.NodeProto, said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        _read_lstm(tmp_path, node)
    assert "'odd'" in caught.value.where
    assert caught.value.next_step


def _resize(*inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node("Resize", list(inputs), ["y"], name="odd", **attributes)


@pytest.mark.parametrize(
    ("inputs", "kept"),
    [(("x", "", "scales"), "scales"), (("x", "empty", "scales"), "scales"), (("x", "empty", "empty", "sizes"), "sizes")],
)
def test_a_resize_takes_scales_or_sizes(tmp_path: Path, inputs: tuple[str, ...], kept: str) -> None:
    constants = {
        "scales": _constant("scales", [1, 1, 2, 2]),
        "sizes": _constant("sizes", [1, 4, 16, 16], np.int64),
        "empty": _constant("empty", []),
    }
    used = [constants[name] for name in constants if name in inputs]
    graph = load_onnx(_write(tmp_path / "m.onnx", _resize(*inputs, mode="nearest"), used, (1, 4, 8, 8)))
    (op,) = graph.operators
    assert (op.inputs, op.weights) == (("x",), ())
    assert dict(op.attributes) == {"mode": "nearest", kept: (1, 1, 2, 2) if kept == "scales" else (1, 4, 16, 16)}
    assert graph.shape("y") == (1, 4, 16, 16)
    again = to_onnx(graph)
    onnx.checker.check_model(again, full_check=True)
    (back,) = load_onnx(save_onnx(graph, tmp_path / "again.onnx")).operators
    assert back.attributes == op.attributes


@pytest.mark.parametrize(
    ("node", "opset", "said"),
    [
        (_resize("x", "", "scales", coordinate_transformation_mode="tf_crop_and_resize"), 17, "region"),
        (_resize("x", "", "x"), 17, "no constant"),
    ],
)
def test_a_resize_of_another_form_is_refused_by_name(tmp_path: Path, node: onnx.NodeProto, opset: int, said: str) -> None:
    used = [_constant("scales", [1, 1, 2, 2])] if "scales" in node.input else []
    with pytest.raises(ModelError, match=said) as caught:
        load_onnx(_write(tmp_path / "m.onnx", node, used, (1, 4, 8, 8), opset))
    assert "'odd'" in caught.value.where
