"""Every operator of the runtime, under every home layout and every candidate, against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph, Operator, Tensor


def _act(which: str) -> Callable[[GraphBuilder, str], str]:
    return lambda b, x: b.activation(b.conv(x, b.channels(x), 3, bias=True), which)


def _lonely(which: str) -> Callable[[GraphBuilder, str], str]:
    return lambda b, x: b.conv(b.activation(b.maxpool(x, 3, 1, 1), which), 8, 1)


def _swish(b: GraphBuilder, x: str) -> str:
    y = b.bn(b.conv(x, 20, 3))
    y = b.mul(y, b.activation(y, "sigmoid"))
    y = b.maxpool(y, 3, 2, 1)
    return b.conv(b.mul(b.activation(y, "sigmoid"), y), 8, 1)  # and one that stands alone


def _residual(b: GraphBuilder, x: str) -> str:
    c = b.channels(x)
    x = b.relu(b.conv(x, c, 1))
    for kept in (False, True):  # the second sum's other operand is read again later
        y = b.relu(b.add(x, b.bn(b.conv(x, c, 3))))
        x = b.add(y, x) if kept else y
    return b.relu(b.add(b.conv(x, c, 1), b.conv(x, c, 3)))


def _gated(b: GraphBuilder, x: str) -> str:
    c = b.channels(x)
    gate = b.activation(b.conv(b.relu(b.conv(b.gap(x), 4, 1, bias=True)), c, 1, bias=True), "hsigmoid")
    return b.conv(b.activation(b.mul(gate, x), "hswish"), c, 1)


def _products(b: GraphBuilder, x: str) -> str:
    return b.mul(b.add(b.maxpool(x, 3, 1, 1), x), b.conv(x, b.channels(x), 1))


def _norms(b: GraphBuilder, x: str) -> str:
    y = b.relu(b.bn(x))
    return b.bn(b.concat([b.conv(y, 7, 3), b.bn(b.maxpool(y, 3, 1, 1))]))


def _pieces(b: GraphBuilder, x: str) -> str:
    c = b.channels(x)
    left, middle, right = b.split(b.relu(b.conv(x, c, 1)), (3, 5, c - 8))
    return b.conv(b.concat([right, b.relu(middle), left]), 9, 1)


def _shuffle(b: GraphBuilder, x: str) -> str:
    y = b.channel_shuffle(b.conv(x, 12, 1), 3)
    return b.conv(b.concat([y, b.channel_shuffle(b.conv(x, 32, 1), 2)]), 8, 1)


def _pools(b: GraphBuilder, x: str) -> str:
    pooled = [b.maxpool(x, 3, 2, 1), b.avgpool(x, 3, 2, 1), b.maxpool(x, 2, 2, ceil=True), b.avgpool(x, 2, 2, ceil=True)]
    return b.concat([b.conv(y, 5, 1) for y in pooled])


def _classifier(b: GraphBuilder, x: str) -> str:
    y = b.relu(b.fc(b.flatten(b.conv(x, 10, 1)), 33))
    return b.softmax(b.fc(y, 10, bias=False))


def _pooled_classifier(b: GraphBuilder, x: str) -> str:
    return b.fc(b.relu(b.flatten(b.gap(b.conv(x, 20, 3)))), 10)


def _transposed(b: GraphBuilder, x: str) -> str:
    y = b.transpose(b.conv(x, 6, 3), (0, 2, 3, 1))
    y = b.reshape(y, (b.shape(y)[1], b.shape(y)[2] * 6))
    z = b.transpose(b.conv(x, 6, 1), (0, 1, 3, 2))
    z = b.conv(b.reshape(z, (1, 12, b.shape(z)[2], b.shape(z)[3] // 2)) if b.shape(z)[3] % 2 == 0 else z, 3, 1)
    return b.concat([b.reshape(y, (1, b.shape(y)[0] * b.shape(y)[1])), b.flatten(z)])


CASES: dict[str, Callable[[GraphBuilder, str], str]] = {
    **{f"conv with {a or 'nothing'}": _act(a) for a in ("", "relu", "relu6", "hswish", "hsigmoid", "sigmoid")},
    **{f"{a} alone": _lonely(a) for a in ("relu", "relu6", "hswish", "hsigmoid", "sigmoid")},
    "swish": _swish,
    "residual": _residual,
    "gated": _gated,
    "products": _products,
    "norms": _norms,
    "pieces": _pieces,
    "shuffle": _shuffle,
    "pools": _pools,
    "classifier": _classifier,
    "pooled classifier": _pooled_classifier,
    "lrn": lambda b, x: b.conv(b.lrn(b.relu(b.conv(x, b.channels(x), 1))), 8, 1),
    "transposed": _transposed,
    "depthwise": lambda b, x: b.conv(b.activation(b.bn(b.dwconv(b.dwconv(x, 3), 5, 2)), "hswish"), 8, 1),
    "dilated and grouped": lambda b, x: b.conv(b.conv(b.conv(x, 12, 3, dilation=2), 18, 3, groups=3), 8, (1, 3)),
    "image": lambda b, x: b.conv(b.conv_bn(b.conv(x, 3, 1), 16, 7, 2), 24, 3),
}


@pytest.mark.parametrize("channels", [16, 19], ids=["aligned", "unaligned"])
@pytest.mark.parametrize("case", CASES)
def test_operators_under_every_candidate(agrees: Callable[..., int], case: str, channels: int) -> None:
    b = GraphBuilder(case, (1, channels, 12, 12))
    entry = b.conv_bn(b.input, channels, 1)  # so that the case reads the home layout
    assert agrees(b.build(CASES[case](b, entry))) >= 3


def _single(
    op_type: str, shape: tuple[int, ...], output: tuple[int, ...], weights: dict[str, Any], **attributes: Any
) -> tuple[Graph, onnx.ModelProto]:
    """A model of one operator that the builder lacks: weights by shape (random) or value (constant inputs of ONNX)."""
    rng = np.random.default_rng(0)
    values = {n: (rng.random(s, dtype=np.float32) - np.float32(0.5)) if isinstance(s, tuple) else s for n, s in weights.items()}
    names = ["x", *values]
    node = helper.make_node(op_type, names, ["y"], name="op", **attributes)
    body = helper.make_graph(
        [node],
        "single",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, output)],
        [numpy_helper.from_array(v, n) for n, v in values.items() if n],
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 9
    floats = {n: v for n, v in values.items() if n and v.dtype == np.float32 and n != "scales"}
    tensors = {"x": Tensor("x", shape), "y": Tensor("y", output)} | {n: Tensor(n, v.shape) for n, v in floats.items()}
    op = Operator("op", op_type, ("x",), ("y",), tuple(floats), MappingProxyType(attributes))
    return Graph("single", (op,), ("x",), ("y",), MappingProxyType(tensors)), model


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_lstm(agrees: Callable[..., int], direction: str, batch: int) -> None:
    both = 2 if direction == "bidirectional" else 1
    weights = {"W": (both, 4 * 12, 7), "R": (both, 4 * 12, 12), "B": (both, 8 * 12)}
    graph, model = _single("LSTM", (5, batch, 7), (5, both, batch, 12), weights, hidden_size=12, direction=direction)
    assert agrees(graph, model) >= 3


@pytest.mark.parametrize(
    ("mode", "coordinates"), [("nearest", "asymmetric"), ("nearest", "half_pixel"), ("linear", "half_pixel")]
)
def test_resize(agrees: Callable[..., int], mode: str, coordinates: str) -> None:
    scales = {"": np.zeros(0, np.float32), "scales": np.array([1, 1, 2, 3], np.float32)}
    rounding = {"nearest_mode": "floor"} if coordinates == "asymmetric" else {}
    graph, model = _single(
        "Resize", (1, 5, 4, 6), (1, 5, 8, 18), scales, mode=mode, coordinate_transformation_mode=coordinates, **rounding
    )
    assert agrees(graph, model) >= 3


@pytest.mark.parametrize(("op_type", "attributes"), [("LeakyRelu", {"alpha": 0.1}), ("Tanh", {})])
def test_further_activations(agrees: Callable[..., int], op_type: str, attributes: dict[str, float]) -> None:
    assert agrees(*_single(op_type, (1, 5, 4, 6), (1, 5, 4, 6), {}, **attributes)) >= 3


@pytest.mark.parametrize(("axes", "kept"), [((2, 3), 1), ((-2, -1), 0)])
def test_mean_over_the_image(agrees: Callable[..., int], axes: tuple[int, ...], kept: int) -> None:
    output = (1, 5, 1, 1) if kept else (1, 5)
    graph, model = _single("ReduceMean", (1, 5, 4, 6), output, {}, axes=axes, keepdims=kept)
    assert agrees(graph, model) >= 3


@pytest.mark.parametrize("shape", [(2, 3, 7), (4, 7)])
def test_matmul_by_a_weight(agrees: Callable[..., int], shape: tuple[int, ...]) -> None:
    assert agrees(*_single("MatMul", shape, (*shape[:-1], 9), {"w": (7, 9)})) >= 3


@pytest.mark.parametrize("operand", [(1, 5, 1, 1), (1, 5, 4, 6), (6,)])
def test_constant_operands(agrees: Callable[..., int], operand: tuple[int, ...]) -> None:
    assert agrees(*_single("Add", (1, 5, 4, 6), (1, 5, 4, 6), {"w": operand})) >= 3
