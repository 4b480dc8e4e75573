"""What a measurement says: latency, noise, normalisation; and what identifies a subject."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.measurement.records import Measurement, Subject, graph_digest
from edgeplan.measurement.references import References, ReferenceTimes
from edgeplan.measurement.settings import ReferenceExponents


def _measurement(least: list[float], compute: list[float], *, exponents: tuple[float, float] = (1.0, 0.0)) -> Measurement:
    blocks = len(least)
    return Measurement(
        subject="s",
        sample=0,
        least_us=np.array(least),
        median_us=np.array(least),
        compute_us=np.array(compute),
        bandwidth_us=np.full(blocks, 800.0),
        measured_at=np.arange(blocks, dtype=np.float64),
        nodes=(),
        node_us=np.zeros((blocks, 0)),
        nominal=ReferenceTimes(100.0, 400.0),
        exponents=ReferenceExponents(compute=exponents[0], bandwidth=exponents[1]),
    )


def test_drift_of_the_clock_is_divided_out() -> None:
    m = _measurement([10.0, 20.0, 15.0], [100.0, 200.0, 150.0])
    np.testing.assert_allclose(m.block_us, [10.0, 10.0, 10.0])
    assert m.latency_us == pytest.approx(10.0)
    assert m.noise == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("exponents", "expected"),
    [((0.0, 0.0), 20.0), ((1.0, 0.0), 10.0), ((0.0, 1.0), 10.0), ((0.5, 0.5), 10.0), ((1.0, 1.0), 5.0)],
)
def test_each_reference_counts_by_its_exponent(exponents: tuple[float, float], expected: float) -> None:
    m = _measurement([20.0] * 3, [200.0] * 3)
    other = replace(m, exponents=ReferenceExponents(compute=exponents[0], bandwidth=exponents[1]))
    assert other.latency_us == pytest.approx(expected)


def test_the_usual_run_is_the_median_one_of_a_block() -> None:
    m = replace(_measurement([10.0, 20.0, 15.0], [100.0, 200.0, 150.0]), median_us=np.array([11.0, 24.0, 18.0]))
    assert m.latency_us == pytest.approx(12.0)


@pytest.mark.parametrize(
    ("least", "expected"),
    [
        ([9.0, 10.0, 11.0], 0.1),
        ([10.0, 9.0, 11.0], 0.1),
        ([1.0, 9.0, 10.0, 11.0, 99.0], 0.1),  # the outer two are trimmed
        ([1.0, 2.0, 9.0, 10.0, 11.0, 98.0, 99.0], 0.1),
        ([10.0, 10.0, 10.0], 0.0),
    ],
)
def test_noise_is_half_the_range_of_the_middle_blocks(least: list[float], expected: float) -> None:
    assert _measurement(least, [100.0] * len(least)).noise == pytest.approx(expected)


def test_node_times_are_normalised_like_the_whole() -> None:
    m = replace(_measurement([10.0, 20.0, 15.0], [100.0, 200.0, 150.0]), node_us=np.array([[4.0, 1.0], [8.0, 6.0], [6.0, 3.0]]))
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


def test_references_take_time_and_the_least_counts() -> None:
    references = References()
    found = references.time(3)
    assert found.compute_us > 1.0
    assert found.bandwidth_us > 1.0
