"""Thousands of damaged ONNX files: each is read as a graph that all behind the border can take, or refused in plain words."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from model_file_runs import W, conv, integers, model, node, weight
from onnx import TensorProto, helper, numpy_helper

from depth import MANY
from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernel_nodes import executed_graph
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import to_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.predictors.nodes.features import Table
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.weights import locate_weights

RULES = FusionRules(pairs={"conv_bn": True, "bn_relu6": True, "conv_relu": True, "add_relu": True})
_EACH = 450 if MANY else 100
_NUMBERS = (*range(-2, 25), 64, 255, 1 << 31, 1 << 32, 1 << 62, (1 << 63) - 1, -(1 << 63))
_FRACTIONS = (0.0, 1.0, -1.0, 2.0, 1e30, float("nan"), float("inf"))
_BYTES = (b"", b"VALID", b"SAME_UPPER", b"reverse", b"\xff\xfe")
_WORDS = (
    "", "x", "y", "lost", "Conv", "Relu", "Add", "Gemm", "MatMul", "Identity", "Dropout", "MaxPool", "LSTM", "Resize", "axis",
)  # fmt: skip


def _image() -> onnx.ModelProto:
    b = GraphBuilder("image", (1, 3, 16, 16))
    y = b.conv_bn(b.input, 8, 3, 2, act="relu6")
    left, right = b.split(y, (4, 4))
    y = b.channel_shuffle(b.concat([b.relu(left), b.maxpool(right, 3, 1, 1)]), 2)
    y = b.add(y, b.conv(y, 8, 3))
    return to_onnx(b.build(b.softmax(b.fc(b.reshape(b.gap(y), (1, 8)), 5))))


def _sequence() -> onnx.ModelProto:
    b = GraphBuilder("sequence", (1, 4, 6, 6))
    y = b.upsample(b.dwconv(b.lrn(b.input), 3))
    y = b.mul(y, b.activation(b.conv(b.gap(y), 4, 1, bias=True), "hsigmoid"))
    y = b.transpose(b.squeeze(b.gap(b.avgpool(y, 2, 2)), (3,)), (2, 0, 1))
    return to_onnx(b.build(b.flatten(b.lstm(y, 3, bidirectional=True))))


def _other() -> onnx.ModelProto:
    """As other exporters write: constants as nodes, aliases, paddings by a mode, bounds as inputs, shapes of inner tensors."""
    given = model(
        [
            node("Constant", [], ["v"], value=W),
            node("Identity", ["v"], ["w"]),
            conv("x", "a", auto_pad="SAME_UPPER", strides=[2, 2]),
            node("Resize", ["a", "", "double"], ["u"], mode="nearest", coordinate_transformation_mode="asymmetric"),
            node("AveragePool", ["u"], ["p"], kernel_shape=[2, 2], auto_pad="SAME_LOWER"),
            node("ReduceMean", ["p"], ["m"], axes=[2, 3], keepdims=0, name="mean"),
            node("Dropout", ["m"], ["d"]),
            node("Constant", [], ["s"], value=integers("", 1, -1)),
            node("Reshape", ["d", "s"], ["r"]),
            node("MatMul", ["r", "k"], ["f"]),
            node("Clip", ["f", "", "one"], ["c"]),
            node("Gemm", ["c", "g", "h"], ["y"], transB=1, alpha=0.5),
        ],
        [
            weight("k", 6, 5),
            weight("g", 3, 5),
            weight("h", 3),
            numpy_helper.from_array(np.array(6.0, dtype=np.float32), "one"),
            numpy_helper.from_array(np.array([1, 1, 2, 2], dtype=np.float32), "double"),
        ],
        output=(1, 3),
        opset=13,
        more=[("k", (6, 5))],
    )
    given.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, (1, 6, 4, 4)))
    return given


MODELS = {"image": _image(), "sequence": _sequence(), "other": _other()}


def _read(path: Path) -> Graph | None:
    """The graph of a file; None of one that is refused, in full."""
    try:
        graph = load_onnx(path)
        executed_graph(None, simplify(graph), RULES)
    except ModelError as refusal:
        error = refusal
    else:
        return graph
    assert all((error.what, error.where, error.next_step))
    return None


def _is_read(path: Path) -> bool:
    """Whether a file is read; what is read must be fit for predictors."""
    if (graph := _read(path)) is None:
        return False
    graph = simplify(graph)
    with suppress(ModelError):  # the runtime lacks some operators
        locate_weights(path, lower(graph))
    assert np.isfinite(Table.of([node.config for node in executed_graph(None, graph, RULES).nodes]).sizes).all()
    return True


def _other_bytes(model: onnx.ModelProto, rng: random.Random) -> bytes:
    spoilt = bytearray(model.SerializeToString())
    for _ in range(rng.choice((1, 1, 3))):
        spoilt[rng.randrange(len(spoilt))] = rng.randrange(256)
    return bytes(spoilt)


def _other_fields(model: onnx.ModelProto, rng: random.Random) -> bytes:
    spoilt = copy.deepcopy(model)
    for _ in range(rng.choice((1, 1, 2))):
        _spoil(rng.choice(list(_messages(spoilt))), rng)
    return spoilt.SerializeToString()


@pytest.mark.parametrize("spoil", [_other_bytes, _other_fields])
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore:Ignoring unknown external data key")
def test_spoilt_files_are_read_or_refused(
    name: str, spoil: Callable[[onnx.ModelProto, random.Random], bytes], tmp_path: Path
) -> None:
    path, rng, read = tmp_path / "m.onnx", random.Random(11), 0  # noqa: S311  not cryptography
    onnx.save(MODELS[name], path)
    assert _is_read(path)
    for _ in range(_EACH):
        path.write_bytes(spoil(MODELS[name], rng))
        read += _is_read(path)
    assert 0 < read < _EACH


def _messages(message: Message) -> Iterator[Message]:
    """A message and all in it."""
    yield message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for inner in value if field.is_repeated else [value]:
                yield from _messages(inner)


def _spoil(message: Any, rng: random.Random) -> None:
    """Change, drop, double or shuffle one field."""
    fields = [field for field, _ in message.ListFields()] if rng.random() < 0.8 else list(message.DESCRIPTOR.fields)
    if not fields:
        return
    field = rng.choice(fields)
    value = getattr(message, field.name)
    if field.is_repeated and len(value) and rng.random() < 0.5:
        kept = [copy.deepcopy(part) for part in rng.sample(list(value), len(value) - rng.randrange(2))]
        del value[:]
        value.extend(kept)
    elif field.message_type is not None:
        if not field.is_repeated:
            message.ClearField(field.name)
        elif len(value):
            value.append(rng.choice(value))
    elif not field.is_repeated:
        setattr(message, field.name, _drawn(field, value, rng))
    elif len(value):
        value[rng.randrange(len(value))] = _drawn(field, value[0], rng)


def _drawn(field: FieldDescriptor, like: object, rng: random.Random) -> object:
    if isinstance(like, float):
        return rng.choice(_FRACTIONS)
    if isinstance(like, bytes):
        return rng.choice(_BYTES)
    if isinstance(like, str):
        return rng.choice(_WORDS)
    if field.enum_type is not None:
        return rng.choice(field.enum_type.values).number
    narrow = field.cpp_type == FieldDescriptor.CPPTYPE_INT32
    return rng.choice([n for n in _NUMBERS if not narrow or -(1 << 31) <= n < 1 << 31])


def test_a_file_cut_anywhere_is_refused_or_whole(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    data = MODELS["image"].SerializeToString()
    path.write_bytes(data)
    whole = load_onnx(path)
    for length in sorted({0, 1, 2, 5, *range(7, len(data), max(1, len(data) // 60))}):
        path.write_bytes(data[:length])
        found = _read(path)
        assert found is None or found.operators == whole.operators, length
