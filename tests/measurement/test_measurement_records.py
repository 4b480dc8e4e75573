"""What a measurement says of graphs and of nodes, and what identifies a subject."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from quick_bench import measuring_alone, node_subjects, open_bench, subjects, timed  # noqa: F401  a fixture
from trained_nodes import RULES

from edgeplan.devices.config import load_device
from edgeplan.errors import ModelError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernel_nodes import executed_graph
from edgeplan.measurement.kernel_labels import label_us
from edgeplan.measurement.records import CALLS, NodeSubject, Subject, call_us, graph_digest
from edgeplan.measurement.settings import ReferenceExponents
from edgeplan.support.store import STORED_ROWS_ONLY

DRIFTING = ([10.0, 20.0, 15.0], [100.0, 200.0, 150.0])


@pytest.mark.parametrize(
    ("median", "latency"), [(DRIFTING[0], 10.0), ([11.0, 24.0, 18.0], 12.0)], ids=["steady", "usual runs are median ones"]
)
def test_drift_of_the_clock_is_divided_out(median: list[float], latency: float) -> None:
    m = timed(median, DRIFTING[1])
    np.testing.assert_allclose(m.block_us, np.array(median) / [1.0, 2.0, 1.5])
    assert m.latency_us == pytest.approx(latency)


@pytest.mark.parametrize(
    ("compute", "bandwidth", "expected"), [(0.0, 0.0, 20.0), (0.0, 1.0, 10.0), (0.5, 0.5, 10.0), (1.0, 1.0, 5.0)]
)
def test_each_reference_counts_by_its_exponent(compute: float, bandwidth: float, expected: float) -> None:
    exponents = ReferenceExponents(compute=compute, bandwidth=bandwidth)
    assert timed([20.0] * 3, 200.0, bandwidth_us=np.full(3, 800.0), exponents=exponents).latency_us == pytest.approx(expected)


@pytest.mark.parametrize(
    ("median", "expected"),
    [
        ([9.0, 10.0, 11.0], 0.1),
        ([1.0, 9.0, 10.0, 11.0, 99.0], 0.1),  # the outer two are trimmed
        ([1.0, 2.0, 9.0, 10.0, 11.0, 98.0, 99.0], 0.1),
        ([10.0, 10.0, 10.0], 0.0),
    ],
)
def test_noise_is_half_the_range_of_the_middle_blocks(median: list[float], expected: float) -> None:
    assert timed(median).noise == pytest.approx(expected)


def test_node_times_are_normalised_like_the_whole() -> None:
    m = timed(*DRIFTING, node_us=np.array([[4.0, 1.0], [8.0, 6.0], [6.0, 3.0]]))
    np.testing.assert_allclose(m.node_latency_us, [4.0, 2.0])


def _graph(name: str = "g", kernel: int = 3) -> Graph:
    b = GraphBuilder(name, (1, 3, 8, 8))
    return b.build(b.relu(b.conv(b.input, 5, kernel, bias=True)))


def test_a_subject_is_known_by_what_it_computes() -> None:
    assert Subject(_graph("a")).id == Subject(_graph("b")).id
    assert Subject(_graph(kernel=1)).id != Subject(_graph()).id
    assert Subject(_graph(), profiled=True).id == f"{graph_digest(_graph())}-nodes"


def test_outputs_and_attributes_are_part_of_the_digest() -> None:
    graph = _graph()
    assert graph_digest(replace(graph, outputs=("conv_0", "relu_1"))) != graph_digest(graph)
    conv = graph.operators[0]
    moved = replace(conv, attributes={**conv.attributes, "group": 3})
    assert graph_digest(replace(graph, operators=(moved, *graph.operators[1:]))) != graph_digest(graph)


def test_weights_are_counted_twice_when_both_sessions_hold_them() -> None:
    elements = 5 * 3 * 3 * 3 + 5
    assert Subject(_graph()).weight_bytes == 4 * elements
    assert Subject(_graph(), profiled=True).weight_bytes == 8 * elements


def test_a_subject_is_told_by_its_node_and_copies_not_by_the_model_that_decided_them() -> None:
    node = node_subjects()[1]
    same = NodeSubject(node.config, 1 << 20)
    other = NodeSubject(node.config, copies=node.copies + 1)
    assert (same, same.id) == (node, node.id)
    assert other.id != node.id
    assert len({one.id for one in (*node_subjects(), *CALLS, *subjects())}) == 7
    assert node.weight_bytes == node.copies * 4 * 64 * 32


def test_a_node_that_the_engine_refuses_is_left_out_and_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = [*node_subjects(refused=True), *subjects(1)]
    with open_bench(tmp_path, batch_size=1) as bench:
        found = bench.measure_in_time(asked)
        assert bench.measured == 3
        assert [one is None for one in found] == [False, False, True, False]
        assert "a node is left out: ONNX Runtime does not run a node MatMul" in caplog.text
        with pytest.raises(ModelError, match="onnxruntime refuses 1 of 4 nodes"):
            bench.measure(asked)
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    with open_bench(tmp_path) as bench:
        assert [one is None for one in bench.measure_in_time(asked)] == [False, False, True, False]


@pytest.mark.parametrize("load", ["load", "load_profiled"])
def test_what_the_library_of_an_engine_raises_of_copies_is_a_refusal(load: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = load_device("cpu-openvino").load_engine()

    def fails(*_: object) -> None:
        raise RuntimeError("Exception from core.cpp:132\nnot supported")

    monkeypatch.setattr(engine, load, fails)
    (graph,) = subjects(1)
    config = executed_graph(None, graph.graph, RULES).nodes[0].config
    with pytest.raises(ModelError, match=r"openvino does not run copies of a node .*: not supported"):
        engine.load_copies(config, 2) if load == "load" else engine.load_copies_profiled(config, 2)


def test_a_label_is_the_share_of_a_copy_without_the_call() -> None:
    call = call_us([timed([2.2] * 3), timed([2.2 + 63 * 0.2] * 3)])
    assert call == pytest.approx(2.0)
    (one, _) = node_subjects()
    assert label_us(one.config, timed([50.0] * 3), call, 24) == (one.config, pytest.approx(2.0))
    assert label_us(one.config, timed([1.9] * 3), call, 24) == (one.config, 0.0)


def test_a_call_is_measured_like_any_node_and_costs_less_than_many(tmp_path: Path) -> None:
    with open_bench(tmp_path, block_ms=20.0, max_runs=1000) as bench:
        one, many = bench.measure(CALLS)
    assert 0 < call_us([one, many]) <= one.latency_us < many.latency_us
