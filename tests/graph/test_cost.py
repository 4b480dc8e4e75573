"""Costs of single operators, worked out by hand."""

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.kinds import (
    graph_macs,
    graph_memory_access_bytes,
    graph_parameters,
    operator_macs,
    operator_parameters,
)


def _graph() -> Graph:
    b = GraphBuilder("small", (1, 4, 8, 8))
    x = b.conv(b.input, 6, 3, 2, bias=True, name="conv")
    x = b.relu(b.bn(x, name="bn"), name="relu")
    x = b.dwconv(x, 5, name="dw")
    x = b.conv(x, 6, 1, groups=2, name="grouped")
    x = b.add(x, x, name="add")
    x = b.fc(b.flatten(b.gap(x, name="gap"), name="flat"), 10, name="fc")
    return b.build(x)


def test_multiply_adds_by_hand() -> None:
    graph = _graph()
    macs = {op.name: operator_macs(graph, op) for op in graph.operators}
    assert macs == {
        "conv": 6 * 4 * 4 * (4 * 3 * 3),
        "bn": 0,
        "relu": 0,
        "dw": 6 * 4 * 4 * (5 * 5),
        "grouped": 6 * 4 * 4 * 3,
        "add": 0,
        "gap": 0,
        "flat": 0,
        "fc": 10 * 6,
    }
    assert graph_macs(graph) == sum(macs.values())


def test_parameters_leave_out_running_statistics() -> None:
    graph = _graph()
    parameters = {op.name: operator_parameters(graph, op) for op in graph.operators if op.weights}
    assert parameters == {"conv": 6 * 4 * 9 + 6, "bn": 2 * 6, "dw": 6 * 25, "grouped": 6 * 3, "fc": 60 + 10}
    assert graph_parameters(graph) == sum(parameters.values())


def test_memory_access_counts_every_weight_and_repeated_input() -> None:
    image, mapped = 4 * 8 * 8, 6 * 4 * 4
    weights = {"conv": 6 * 4 * 9 + 6, "bn": 4 * 6, "dw": 6 * 25, "grouped": 6 * 3, "fc": 60 + 10}
    maps = image + mapped + 5 * 2 * mapped + mapped + (mapped + 6) + (6 + 6) + (6 + 10)  # the sum reads one map twice
    assert graph_memory_access_bytes(_graph()) == 4 * (maps + sum(weights.values()))


def test_lstm_by_hand() -> None:
    steps, batch, features, hidden = 7, 2, 5, 3
    b = GraphBuilder("sequence", (steps, batch, features))
    graph = b.build(b.lstm(b.input, hidden, name="forward"), b.lstm(b.input, hidden, bidirectional=True, name="both"))
    forward, both = graph.by_name["forward"], graph.by_name["both"]
    assert operator_macs(graph, forward) == steps * batch * 4 * hidden * (features + hidden)
    assert operator_macs(graph, both) == 2 * operator_macs(graph, forward)
    assert operator_parameters(graph, both) == 2 * 4 * hidden * (features + hidden + 2)
    assert graph.shape("both") == (steps, 2, batch, hidden)


def test_moving_data_costs_no_multiply_adds() -> None:
    b = GraphBuilder("moves", (1, 4, 8, 8))
    graph = b.build(b.squeeze(b.gap(b.upsample(b.input)), (2, 3)))
    assert graph_macs(graph) == 0
    assert graph.shape(graph.operators[0].outputs[0]) == (1, 4, 16, 16)


def test_batch_and_matmul() -> None:
    b = GraphBuilder("batch", (3, 5))
    x = b.fc(b.input, 7, bias=False, name="fc")
    graph = b.build(x)
    assert operator_macs(graph, graph.by_name["fc"]) == 3 * 5 * 7
    as_matmul = Operator("fc", "MatMul", ("input",), ("fc",), ("fc.weight",))
    assert operator_macs(graph, as_matmul) == 3 * 5 * 7
