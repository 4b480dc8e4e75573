"""Graphs survive the way through an ONNX file."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import onnx
from hypothesis import given, settings
from hypothesis import strategies as st

from depth import examples
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Attribute, Graph
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx, to_onnx

Step = Callable[[GraphBuilder, str, int], str]


def _gate(b: GraphBuilder, x: str, _number: int) -> str:
    return b.mul(x, b.activation(b.conv(b.gap(x), b.channels(x), 1, bias=True), "hsigmoid"))


def _halves(b: GraphBuilder, x: str, _number: int) -> str:
    left, right = b.split(x, (b.channels(x) // 2, b.channels(x) - b.channels(x) // 2))
    return b.concat([b.relu(right), left])


def _tall_pool(b: GraphBuilder, x: str, number: int) -> str:
    tall = b.shape(x)[2] > 1  # several pools leave a single row, which holds no window
    return b.maxpool(x, (2, 3), (1 + number % 2, 1), (0, 1)) if tall else x


_STEPS: Mapping[str, Step] = {
    "conv": lambda b, x, n: b.conv(x, 4 + 2 * (n % 5), (1, 3, 5)[n % 3], 1 + n % 2, bias=n % 4 == 0),
    "grouped": lambda b, x, n: b.conv(x, b.channels(x), 3, groups=2, dilation=1 + n % 2),
    "dwconv": lambda b, x, _: b.dwconv(x, 3),
    "bn": lambda b, x, _: b.bn(x),
    "relu": lambda b, x, _: b.relu(x),
    "relu6": lambda b, x, _: b.activation(x, "relu6"),
    "hswish": lambda b, x, _: b.activation(x, "hswish"),
    "hsigmoid": lambda b, x, _: b.activation(x, "hsigmoid"),
    "sigmoid": lambda b, x, _: b.activation(x, "sigmoid"),
    "add": lambda b, x, _: b.add(x, b.relu(x)),
    "mul": lambda b, x, _: b.mul(x, b.relu(x)),
    "gate": _gate,
    "maxpool": lambda b, x, n: b.maxpool(x, 3, 1 + n % 2, 1, ceil=n % 3 == 0),
    "avgpool": lambda b, x, n: b.avgpool(x, 3, 1 + n % 2, 1, ceil=n % 3 == 0),
    "concat": lambda b, x, _: b.concat([x, b.relu(x)]),
    "split": _halves,
    "shuffle": lambda b, x, _: b.channel_shuffle(x, 2),
    "lrn": lambda b, x, _: b.lrn(x),
    "leakyrelu": lambda b, x, _: b.activation(x, "leakyrelu"),
    "upsample": lambda b, x, n: b.upsample(x, 2 + n % 2),
    "tall pool": _tall_pool,
    "skewed pool": lambda b, x, n: b.maxpool(x, 2, 1, (0, 0, 1, 1)) if n % 2 else b.avgpool(x, 2, 1, (1, 0, 0, 1)),
    "skewed conv": lambda b, x, _: b.conv(x, 4, (2, 4), pad=(1, 1, 0, 2)),
    "tanh": lambda b, x, _: b.activation(x, "tanh"),
    "fold": lambda b, x, _: b.squeeze(b.unsqueeze(x, (1, 3)), (1, 3)),
}


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    """Chains with branches over every operator of the builder; channels stay even."""
    b = GraphBuilder("drawn", (1, 2 * draw(st.integers(1, 6)), draw(st.integers(5, 17)), draw(st.integers(5, 17))))
    x = b.input
    for step, number in draw(st.lists(st.tuples(st.sampled_from(sorted(_STEPS)), st.integers(0, 59)), min_size=1, max_size=8)):
        x = _STEPS[step](b, x, number)
    outputs = [x]
    if draw(st.booleans()):
        outputs.append(b.softmax(b.fc(b.flatten(b.gap(x)), draw(st.integers(1, 9)), bias=draw(st.booleans()))))
    if draw(st.booleans()):
        sequence = b.transpose(b.squeeze(b.gap(x), (3,)), (2, 0, 1))
        outputs.append(b.lstm(sequence, draw(st.integers(1, 5)), bidirectional=draw(st.booleans())))
    return b.build(*outputs)


def _single(value: Attribute) -> Attribute:
    """As ONNX keeps it: floats in single precision."""
    if isinstance(value, float):
        return float(onnx.helper.make_attribute("a", value).f)
    return value


@settings(max_examples=examples(40), deadline=None)
@given(graphs())
def test_operators_shapes_and_names_come_back(graph: Graph) -> None:
    onnx.checker.check_model(to_onnx(graph), full_check=True)
    with tempfile.TemporaryDirectory() as folder:
        back = load_onnx(save_onnx(graph, Path(folder) / "m.onnx"))
    assert (back.name, back.inputs, back.outputs) == (graph.name, graph.inputs, graph.outputs)
    assert len(back.operators) == len(graph.operators)
    for found, op in zip(back.operators, graph.operators, strict=True):
        assert (found.name, found.op_type, found.inputs, found.weights, found.outputs) == (
            op.name, op.op_type, op.inputs, op.weights, op.outputs,
        )  # fmt: skip
        given_back, wanted = ({k: _single(v) for k, v in o.attributes.items()} for o in (found, op))
        assert given_back == wanted
        for name in (*op.inputs, *op.weights, *op.outputs):
            assert (back.shape(name), back.tensors[name].dtype) == (graph.shape(name), "float32"), name


@settings(max_examples=15, deadline=None)
@given(graphs(), st.integers(0, 9))
def test_weights_depend_on_seed_and_name_alone(graph: Graph, seed: int) -> None:
    first = {i.name: i.raw_data for i in to_onnx(graph, seed).graph.initializer}
    assert first == {i.name: i.raw_data for i in to_onnx(graph, seed).graph.initializer}
    other = {i.name: i.raw_data for i in to_onnx(graph, seed + 1).graph.initializer}
    weights = {w for op in graph.operators for w in op.weights}
    assert all(first[w] != other[w] for w in weights)
