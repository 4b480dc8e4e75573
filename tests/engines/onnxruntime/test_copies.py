"""Copies of executed nodes give what the node gives by itself, with weights of their own, and run though nobody reads them."""

from __future__ import annotations

import base64
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeplan.engines.base import APART_BYTES, MOST_WEIGHT_BYTES, EngineSettings, copies_of
from edgeplan.engines.onnxruntime.session import CopiesModel, OnnxRuntime, copies_model
from edgeplan.errors import ModelError
from edgeplan.graph.nodes import AttributeValue, NodeConfig, Operand

F32, NCHWC, CONTRIB = "float32", "com.microsoft.nchwc", "com.microsoft"
Read = tuple[Operand | None, ...]


def read(*shape: int, dtype: str = F32) -> Operand:
    return Operand(dtype, shape)


def held(*shape: int, dtype: str = F32, values: tuple[int, ...] | None = None) -> Operand:
    return Operand(dtype, shape, constant=True, values=values)


def listed(*values: int) -> Operand:
    return held(len(values), dtype="int64", values=values)


def described(
    op: str, inputs: Read, outputs: Read, domain: str = "", body: str = "", **attributes: AttributeValue
) -> NodeConfig:
    return NodeConfig(op, domain, tuple(sorted(attributes.items())), inputs, outputs, body)


_CONV: dict[str, AttributeValue] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (1, 1), "dilations": (1, 1)}
_ZERO, _SCALE = held(dtype="uint8", values=(128,)), held()
_BYTES = {"dtype": "uint8"}
_BLOCKED = (read(1, 32, 8, 8), held(32, 32, 3, 3), held(32))
_KERNEL = (held(8, 4, 3, 3, dtype="int8"), held(8), held(8, dtype="int8"))
NODES = {
    "conv": described("Conv", (read(1, 3, 9, 9), held(8, 3, 3, 3), held(8)), (read(1, 8, 9, 9),), group=1, **_CONV),
    "blocked conv": described("Conv", _BLOCKED, _BLOCKED[:1], NCHWC, activation="Relu", group=1, **_CONV),
    "blocked sum": described("Conv", (*_BLOCKED, _BLOCKED[0]), _BLOCKED[:1], NCHWC, group=1, **_CONV),
    "to blocks": described("ReorderInput", (read(1, 32, 4, 4),), (read(1, 32, 4, 4),), NCHWC),
    "gemm": described("Gemm", (read(2, 24), held(24, 40), held(40)), (read(2, 40),), alpha=1.0, beta=1.0),
    "matmul, broadcast": described("MatMul", (read(2, 3, 4, 5), read(5, 6)), (read(2, 3, 4, 6),)),
    "matmul of weights": described("MatMul", (read(1, 7, 64), held(64, 32)), (read(1, 7, 32),)),
    "lstm": described(
        "LSTM",
        (read(5, 1, 6), held(1, 32, 6), held(1, 32, 8), held(1, 64), read(1, dtype="int32"), read(1, 1, 8), read(1, 1, 8)),
        (read(5, 1, 1, 8), read(1, 1, 8), None),
        hidden_size=8,
        direction="forward",
    ),
    "matmul of bytes": described(
        "MatMulInteger",
        (read(4, 16, **_BYTES), held(16, 8, dtype="int8"), read(**_BYTES), held(8, dtype="int8")),
        (read(4, 8, dtype="int32"),),
    ),
    "conv of bytes": described(
        "QLinearConv",
        (read(1, 4, 6, 6, **_BYTES), _SCALE, _ZERO, *_KERNEL, _SCALE, _ZERO, held(8, dtype="int32")),
        (read(1, 8, 6, 6, **_BYTES),),
        group=1,
        **_CONV,
    ),
    "quantised as it goes": described("DynamicQuantizeLinear", (read(4, 16),), (read(4, 16, **_BYTES), read(), read(**_BYTES))),
    "dequantised bias": described("DequantizeLinear", (held(8, dtype="int32"), _SCALE, held(dtype="int32")), (read(8),)),
    "gather": described("Gather", (held(40, 8), read(1, 6, dtype="int64")), (read(1, 6, 8),), axis=0),
    "gather of an inner axis": described("Gather", (read(5, 3, 4), read(2, dtype="int32")), (read(5, 2, 4),), axis=1),
    "gather of places": described("GatherND", (read(4, 3, 5), read(2, 2, dtype="int64")), (read(2, 5),), batch_dims=0),
    "slice": described("Slice", (read(4, 8), listed(1), listed(5), listed(1), listed(2)), (read(4, 2),)),
    "slice by attributes": described("Slice", (read(4, 8),), (read(4, 4),), axes=(1,), starts=(1,), ends=(5,)),
    "transpose": described("Transpose", (read(2, 3, 4),), (read(4, 2, 3),), perm=(2, 0, 1)),
    "split": described("Split", (read(4, 8), listed(6, 2)), (read(4, 6), read(4, 2)), axis=1),
    "layer norm": described("LayerNormalization", (read(2, 16), held(16), held(16)), (read(2, 16),), axis=-1, epsilon=1e-5),
    "reshape": described("Reshape", (read(2, 6), listed(-1, 4)), (read(3, 4),)),
    "reshape as a model says": described("Reshape", (read(2, 6), read(2, dtype="int64")), (read(3, 4),)),
    "power": described("Pow", (read(2, 6), held()), (read(2, 6),)),
    "resize": described("Resize", (read(1, 2, 4, 4), None, held(4)), (read(1, 2, 8, 12),), mode="nearest"),
    "integer division": described("Div", (read(4, dtype="int64"), read(4, dtype="int64")), (read(4, dtype="int64"),)),
    "large sum": described("Add", (read(256, 300), read(256, 300)), (read(256, 300),)),
}
#: Versions of the standard operators that this file writes by itself.
_OPSETS = {"slice by attributes": 9}


def session_of(model: bytes, weights: dict[str, npt.NDArray[Any]], folder: Path | None = None) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if weights:
        options.add_external_initializers(list(weights), list(map(ort.OrtValue.ortvalue_from_numpy, weights.values())))
    if folder:
        options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def values_of(made: CopiesModel) -> dict[str, npt.NDArray[Any]]:
    inside = (one for one in onnx.ModelProto.FromString(made.model).graph.initializer if one.name not in made.weights)
    return {**{one.name: numpy_helper.to_array(one) for one in inside}, **made.weights, **made.inputs}


def alone(config: NodeConfig, given: list[npt.NDArray[Any] | None], opset: int) -> list[npt.NDArray[Any]]:
    """What the node gives in a model of its own, all of whose values are in it."""
    inputs = ["" if value is None else f"i{place}" for place, value in enumerate(given)]
    outputs = [f"o{place}" if one else "" for place, one in enumerate(config.outputs)]
    node = helper.make_node(config.op, inputs, outputs, domain=config.domain, **dict(config.attributes))
    kept = [numpy_helper.from_array(value, f"i{place}") for place, value in enumerate(given) if value is not None]
    told = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in outputs if name]
    for info, one in zip(told, filter(None, config.outputs), strict=True):
        info.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(np.dtype(one.dtype))
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(CONTRIB, 1), helper.make_opsetid(NCHWC, 1)]
    model = helper.make_model(helper.make_graph([node], "one", [], told, kept), opset_imports=opsets, ir_version=8)
    return list(session_of(model.SerializeToString(), {}).run(None, {}))


@pytest.mark.parametrize("name", NODES)
def test_a_copy_gives_what_its_node_gives_by_itself_from_weights_of_its_own(name: str) -> None:
    """And reads small activations with the others."""
    config = NODES[name]
    assert NodeConfig.from_json(config.to_json()) == config
    made = copies_model(config, 3)
    values, graph = values_of(made), onnx.ModelProto.FromString(made.model).graph
    given = [values[place] if place else None for place in graph.node[0].input]
    expected = alone(config, given, _OPSETS.get(name, 17))
    found = OnnxRuntime(EngineSettings()).load_copies(config, 3).outputs()
    copies = 3 if config.activation_bytes > APART_BYTES else 1
    assert sum(value.nbytes for name, value in values.items() if name not in made.inputs) == 3 * config.weight_bytes
    assert not any(np.shares_memory(a, b) for a, b in combinations(made.weights.values(), 2))
    assert len(made.inputs) == copies * sum(one is not None and not one.constant for one in config.inputs)
    assert len(found) == copies * sum(one is not None for one in config.outputs[: None if copies == 3 else 1])
    for output, value in zip(found.values(), expected, strict=False):
        assert output.dtype == value.dtype
        assert np.isfinite(value).all()
        np.testing.assert_allclose(output, value, rtol=1e-6)


def test_copies_that_nobody_reads_are_run(tmp_path: Path) -> None:
    made = copies_model(NODES["gemm"], 7)
    session = session_of(made.model, dict(made.weights), tmp_path)
    session.run(None, dict(made.inputs))
    events = json.loads(Path(session.end_profiling()).read_text())
    assert sum(event.get("name", "").endswith("_kernel_time") for event in events) == 7


def test_attributes_that_are_no_plain_values_come_back() -> None:
    filled = helper.make_node("ConstantOfShape", [], [], value=helper.make_tensor("v", TensorProto.FLOAT, [1], [2.5]))
    body = base64.b64encode(filled.SerializeToString()).decode()
    config = described("ConstantOfShape", (read(2, dtype="int64"),), (read(3, 4),), body=body)
    found = OnnxRuntime(EngineSettings()).load_copies(config, 2).outputs()
    assert all((value == np.full((3, 4), 2.5, np.float32)).all() for value in found.values())


REFUSED = {
    "an operator that is not there": (described("Nothing", (read(2),), (read(2),)), "has no node Nothing"),
    "an attribute that it has not": (described("Relu", (read(2),), (read(2),), speed=2), "has no node Relu"),
    "shapes that do not fit": (described("MatMul", (read(2, 3), read(4, 5)), (read(2, 5),)), "does not run a node MatMul"),
    "another output": (described("Relu", (read(2, 3),), (read(2, 4),)), r"it writes \(\(2, 3\),\)"),
    "shapes that contradict each other": (described("Tile", (read(2), read(2, dtype="int64")), (read(2, 2),)), "node Tile"),
    "a type that is none": (described("Relu", (read(2, dtype="float5"),), (read(2, dtype="float5"),)), "node Relu"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_node_that_cannot_be_built_or_run_is_refused(case: str) -> None:
    config, message = REFUSED[case]
    with pytest.raises(ModelError, match=message):
        OnnxRuntime(EngineSettings()).load_copies(config, 2)


def product(rows: int, width: int, height: int) -> NodeConfig:
    return described("MatMul", (read(rows, width), held(width, height)), (read(rows, height),))


_ADD = described("Add", (read(1000, 1000),) * 2, (read(1000, 1000),))
_SMALLER = described("Add", (read(100, 1000),) * 2, (read(100, 1000),))


@pytest.mark.parametrize(
    ("config", "context", "least", "most"),
    [
        pytest.param(described("Relu", (read(16),), (read(16),)), 0, 24, 48, id="tiny"),
        pytest.param(product(1, 64, 64), 0, 24, 24, id="small"),
        pytest.param(product(1, 512, 512), 14 << 20, 13, 14, id="fills the model"),
        pytest.param(product(1, 512, 512), 1 << 40, 79, 80, id="fills every cache"),
        pytest.param(product(1, 4096, 8192), 1 << 40, 1, 1, id="one is enough"),
        pytest.param(product(16, 4096, 8192), 1 << 40, 1, 1, id="no two fit"),
        pytest.param(product(512, 1024, 1024), 80 << 20, 2, 2, id="computes for long"),
        pytest.param(_ADD, 1 << 30, 2, 2, id="large"),
        pytest.param(_SMALLER, 1 << 30, 8, 8, id="apart"),
    ],
)
def test_copies_fill_what_the_model_fills(config: NodeConfig, context: int, least: int, most: int) -> None:
    copies = copies_of(config, context)
    assert least <= copies <= most
    assert copies == 1 or copies * config.weight_bytes <= MOST_WEIGHT_BYTES
