"""Sampling: sources of convolutions, the prior, carriers, sweeps and extracted kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from random import Random

import numpy as np
import pytest
import yaml
from edgeplan.chapters.prediction.sampling.adaptive import CarrierSampler, CarrierSamples, errors_beyond_labels
from edgeplan.chapters.prediction.sampling.carriers import build_carrier
from edgeplan.chapters.prediction.sampling.carriers_detection_text import further_graphs
from edgeplan.chapters.prediction.sampling.carriers_large_grouped import beyond_carriers
from edgeplan.chapters.prediction.sampling.isolated import chains, extract, fit_boundary, isolated_label
from edgeplan.chapters.prediction.sampling.labels import CounterModel, fit_counters, label_rows, node_labels
from edgeplan.chapters.prediction.sampling.sources import (
    FINE_GRAINED_RANGE,
    MAX_MACS,
    TYPICAL_MACS,
    FocusSource,
    PriorSource,
    UniformSource,
)
from shipped_params import PARAMS_FILE

from edgeplan.chapters.prediction.sampling.prior import (
    TABLE5_IN_CHANNELS,
    TABLE5_KERNELS,
    TABLE5_OUT_CHANNELS,
    TABLE5_SIZES,
    TABLE5_STRIDES,
    ConvPrior,
    ConvShape,
    conv_shapes,
)
from edgeplan.chapters.prediction.sampling.settings import SamplingSettings
from edgeplan.chapters.prediction.sampling.sweeps import check_graphs, sweep_graphs, sweep_of
from edgeplan.engines.base import EngineNode
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import KernelConfig, make_kernel
from edgeplan.graph.kinds import kind
from edgeplan.graph.onnx.write import to_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.measurement.records import Measurement
from edgeplan.measurement.references import ReferenceTimes
from edgeplan.measurement.settings import ReferenceExponents

PRIOR = ConvPrior(
    Counter(
        {
            ConvShape(28, 3, 32, 3, 2): 2,
            ConvShape(28, 32, 64, 3, 1): 4,
            ConvShape(14, 64, 128, 1, 1): 9,
            ConvShape(14, 64, 64, 3, 2, depthwise=True): 3,
        }
    )
)
RULES = FusionRules(pairs={"conv_bn": True, "conv_relu": True})
QUIET = ReferenceTimes(1.0, 1.0)


def _measured(plain: float, node_us: Sequence[float], nodes: Sequence[EngineNode] = ()) -> Measurement:
    count = len(node_us)
    return Measurement(
        subject="s",
        sample=0,
        least_us=np.full(3, plain),
        median_us=np.full(3, plain),
        compute_us=np.ones(3),
        bandwidth_us=np.ones(3),
        measured_at=np.zeros(3),
        nodes=tuple(nodes) or tuple(EngineNode(f"n{i}", "Conv", "Conv", (f"o{i}",)) for i in range(count)),
        node_us=np.tile(np.array(node_us), (3, 1)),
        nominal=QUIET,
        exponents=ReferenceExponents(compute=1.0, bandwidth=1.0),
    )


def test_macs_of_a_convolution() -> None:
    assert ConvShape(28, 32, 64, 3, 1).macs == 28 * 28 * 64 * 32 * 9
    assert ConvShape(7, 16, 16, 3, 2, depthwise=True).macs == 4 * 4 * 16 * 9


def test_conv_shapes_counts_square_convolutions() -> None:
    b = GraphBuilder("g", (1, 16, 14, 14))
    x = b.conv(b.conv(b.input, 16, 3), 16, 3)
    x = b.dwconv(x, 5, 2)
    graph = b.build(b.conv(x, 8, (1, 3)))
    assert conv_shapes([graph]) == {ConvShape(14, 16, 16, 3, 1): 2, ConvShape(14, 16, 16, 5, 2, depthwise=True): 1}


def test_uniform_draws_stay_in_table_5() -> None:
    rng, source = Random(1), UniformSource()  # noqa: S311
    seen = set()
    for _ in range(300):
        channels, size = source.start(rng)
        assert TABLE5_IN_CHANNELS[0] <= channels <= TABLE5_IN_CHANNELS[1]
        assert size in TABLE5_SIZES
        shape = source.next(rng, channels, size, depthwise=False)
        seen.add((shape.kernel, shape.stride))
        assert (shape.in_channels, shape.size) == (channels, size)
        assert 4 <= shape.out_channels <= TABLE5_OUT_CHANNELS[1]
        assert shape.macs <= MAX_MACS or shape.out_channels == 4
    assert seen == {(k, s) for k in TABLE5_KERNELS for s in TABLE5_STRIDES}


def test_draws_from_the_prior_look_like_it() -> None:
    rng, source = Random(2), PriorSource(PRIOR)  # noqa: S311
    starts = [source.start(rng) for _ in range(200)]
    assert {size for _, size in starts} == {28, 14}
    assert all(c == 3 or 4 <= c <= round(64 * 1.8) for c, _ in starts)
    shapes = [source.next(rng, 60, 14, depthwise=False) for _ in range(100)]
    assert {s.kernel for s in shapes} == {1}  # near 14 pixels only pointwise ones are known
    assert all(4 <= s.out_channels <= 1.8 * 256 for s in shapes)
    deep = source.next(rng, 60, 14, depthwise=True)
    assert (deep.depthwise, deep.in_channels, deep.out_channels, deep.stride) == (True, 60, 60, 2)


def test_focus_draws_each_hard_configuration_once_with_channels_near_it() -> None:
    hard = [ConvShape(28, 100, 200, 5, 1), ConvShape(14, 50, 50, 3, 2, depthwise=True)]
    rng, source = Random(3), FocusSource(hard, PRIOR)  # noqa: S311
    low, high = FINE_GRAINED_RANGE
    dense = source.next(rng, 90, 28, depthwise=False)
    assert (dense.size, dense.kernel, dense.stride, dense.in_channels) == (28, 5, 1, 90)
    assert round(low * 200) <= dense.out_channels <= round(high * 200)
    assert not source.exhausted
    deep = source.next(rng, 33, 14, depthwise=True)
    assert (deep.kernel, deep.stride, deep.in_channels, deep.out_channels, deep.depthwise) == (3, 2, 33, 33, True)
    assert source.exhausted
    after = source.next(rng, 64, 14, depthwise=False)  # then the prior goes on
    assert after.kernel == 1


def test_focus_asks_for_other_channels_where_those_at_hand_are_far() -> None:
    source = FocusSource([ConvShape(28, 100, 200, 3, 1)], PRIOR)
    found = source.next(Random(4), 512, 28, depthwise=False)  # noqa: S311
    assert round(FINE_GRAINED_RANGE[0] * 100) <= found.in_channels <= round(FINE_GRAINED_RANGE[1] * 100)


@pytest.mark.parametrize("seed", range(6))
def test_carriers_are_seeded_simple_and_of_about_the_size_asked(seed: int) -> None:
    graph = build_carrier("c", f"unit/{seed}", PriorSource(PRIOR), 10)
    again = build_carrier("c", f"unit/{seed}", PriorSource(PRIOR), 10)
    assert graph.operators == again.operators
    assert simplify(graph) is graph
    assert len(graph.by_name) == len(graph.operators)
    work = sum(op.op_type in ("Conv", "MaxPool", "AveragePool", "Concat", "Add", "Gemm", "LRN") for op in graph.operators)
    assert 1 <= work <= 60
    assert build_carrier("c", f"unit/{seed}/other", PriorSource(PRIOR), 10).operators != graph.operators


def test_carriers_with_a_weight_that_onnx_cannot_hold_are_passed_over() -> None:
    class Huge(UniformSource):
        def next(self, rng: Random, channels: int, size: int, *, depthwise: bool) -> ConvShape:
            drawn = super().next(rng, channels, size, depthwise=depthwise)
            return drawn if depthwise or rng.random() < 0.95 else replace(drawn, out_channels=20_000, kernel=9)

    settings = SamplingSettings.model_validate(yaml.safe_load(PARAMS_FILE.read_text())["sampling"])
    sampler = CarrierSampler(None, settings, PRIOR, RULES, 7)  # type: ignore[arg-type]  nothing is measured
    found = list(islice(sampler.carriers("random", Huge()), 12))
    assert all(carrier.tensors[w].size_bytes < 2**31 for carrier in found for op in carrier.operators for w in op.weights)
    assert [carrier.name for carrier in found] != [f"random-{i}" for i in range(12)]  # some were too large


def test_a_sample_is_cut_at_its_budget_whatever_the_batches_were() -> None:
    graphs = [build_carrier(f"c{i}", str(i), PriorSource(PRIOR), 3) for i in range(5)]
    measured = [replace(_measured(10.0, [4.0, 5.0]), subject=f"c{i}", seconds=2.0) for i in range(5)]
    sampled = CarrierSamples(errors=[{"round": 1.0}])
    sampled.add(graphs[:2], measured[:2], 0)
    sampled.add(graphs[2:], measured[2:], 1)
    kept = sampled.within(7.0)
    assert [m.subject for m in kept.measurements] == ["c0", "c1", "c2"]
    assert (kept.graphs, kept.rounds, kept.errors) == (graphs[:3], [0, 0, 1], sampled.errors)
    assert (kept.seconds, kept.seconds_after_initial) == (6.0, 2.0)
    assert sampled.within(6.0).seconds == 6.0
    assert sampled.within(100.0).measurements == measured
    assert len(sampled.within(0.5).graphs) == 1, "a budget too small for any carrier still leaves rows"
    assert len(sampled.graphs) == 5, "what was measured stays as it was"


def test_errors_within_the_resolution_of_labels_count_for_nothing() -> None:
    labels = np.array([0.5, 0.5, 100.0, 100.0, 100.0])
    predicted = np.array([1.0, 3.0, 103.0, 150.0, 50.0])
    errors = errors_beyond_labels(predicted, labels)
    assert errors[0] == errors[2] == 0.0  # half a microsecond; 3 %
    assert 3.5 < errors[1] < 5.0  # the rest of 2.5 us
    assert 0.44 < errors[3] < 0.46
    assert errors[4] == pytest.approx(-errors[3])


def test_sweeps_vary_one_dimension_each() -> None:
    places: Counter[str] = Counter()
    for graph in sweep_graphs():
        convolutions = [make_kernel(graph, (op.name,)).config for op in graph.operators if op.op_type == "Conv"]
        found = [place for c in convolutions if (place := sweep_of(c))]
        assert found, graph.name
        places.update(name for name, _ in found)
    assert places["kernel_size"] == len(TABLE5_KERNELS)
    assert places["input_size"] >= len(TABLE5_SIZES)
    assert places["out_channels"] == 81
    assert sweep_of(KernelConfig("conv", "conv", in_channels=5)) is None


def test_checked_convolutions_come_with_every_tail() -> None:
    tails = Counter(tuple(op.op_type for op in graph.operators)[-4:] for graph in check_graphs())
    assert set(tails.values()) == {9}
    assert len(tails) == 4


def test_further_carriers_are_seeded_and_hold_the_kinds_that_no_family_has() -> None:
    one, again, other = ([to_onnx(graph).SerializeToString() for graph in further_graphs(seed)] for seed in (1, 1, 2))
    assert one == again
    assert not set(one) & set(other)
    graphs = list(further_graphs(1))
    count = Counter(kind(graph, op) for graph in graphs for op in graph.operators)
    assert all(count[name] >= 25 for name in ("resize", "resize_linear", "lstm")), count
    assert not set(count) & {"resize_cubic", "leakyrelu"}
    lstms = [graph.shape(op.outputs[0]) for graph in graphs for op in graph.operators if op.op_type == "LSTM"]
    assert {directions for _, directions, _, _ in lstms} == {1, 2}
    assert len({make_kernel(g, [o.name]).config for g in graphs for o in g.operators if o.op_type == "LSTM"}) == len(lstms)


def test_carriers_beyond_the_prior_are_seeded_and_hold_large_grouped_and_dilated_convolutions() -> None:
    prior = ConvPrior(
        Counter({ConvShape(7, 512, 512, 3, 1): 2, ConvShape(28, 128, 256, 3, 2): 2, ConvShape(28, 3, 64, 7, 2): 1})
    )
    one, again, other = (list(islice(beyond_carriers(prior, seed), 60)) for seed in (1, 1, 2))
    assert one == again
    assert not {repr(g.tensors) for g in one} & {repr(g.tensors) for g in other}
    for carrier in one:
        assert sum(carrier.tensors[w].size_bytes for op in carrier.operators for w in op.weights) <= 300_000_000
    configs = [make_kernel(g, [op.name]).config for g in one for op in g.operators if op.op_type == "Conv"]
    work = [c.out_channels * c.out_height * c.out_width * c.in_channels // c.groups * c.kernel_h * c.kernel_w for c in configs]
    assert sum(TYPICAL_MACS < macs <= MAX_MACS for macs in work) >= 60
    assert max(c.in_channels * c.kernel_h * c.kernel_w for c in configs) > 30_000  # weights that no cache of a core holds
    assert {c.groups for c in configs if c.kind == "conv"} >= {1, 2, 32}
    dilated = [c for c in configs if c.dilation_h > 1]
    assert {c.kind for c in dilated} == {"conv", "dwconv"}
    assert {c.dilation_h for c in dilated} >= {2, 4}


def test_a_prior_without_large_convolutions_still_gives_the_others() -> None:
    carriers = list(islice(beyond_carriers(ConvPrior(Counter({ConvShape(7, 8, 8, 1, 1): 1})), 1), 3))
    assert [carrier.name for carrier in carriers] == ["beyond-0", "beyond-3", "beyond-6"]


def test_counters_are_fitted_on_what_they_miss() -> None:
    rng = np.random.default_rng(0)
    measurements = []
    for _ in range(40):
        nodes = rng.uniform(5, 300, rng.integers(3, 25))
        measurements.append(_measured(12.0 + 1.1 * nodes.sum() - 0.7 * len(nodes), list(nodes)))
    found = fit_counters(measurements)
    assert (found.call, found.scale, found.overhead) == pytest.approx((12.0, 1.1, -0.7), rel=1e-3)


def test_models_of_an_operator_tell_the_call_that_carriers_do_not_show() -> None:
    """Few carriers whose times vary by more than a call end the fit at no call at all, as a quick run's did."""
    carriers = [_measured(0.98 * total, [total / 4] * 4) for total in (2000.0, 4000.0, 8000.0)]
    small = [_measured(6.0 + size, [size]) for size in (1.0, 2.0, 3.0, 900.0)]
    assert fit_counters(carriers).call < 0.1
    found = fit_counters(carriers, small)
    assert found.call == pytest.approx(6.0, abs=0.5)
    assert found.call + found.scale * 4000 + found.overhead * 4 == pytest.approx(0.98 * 4000, rel=0.02)
    nothing_left = [_measured(5.0, [9.0])]  # counters that say more than the whole run takes
    assert fit_counters(carriers, nothing_left).call == pytest.approx(1.0)


def test_labels_of_a_carrier_add_up_to_its_plain_time() -> None:
    m = _measured(100.0, [10.0, 30.0, 45.0])
    labels = node_labels(m, CounterModel(call=10.0, scale=1.0, overhead=0.0))
    assert labels.sum() == pytest.approx(90.0)
    # what is missing goes where counters may be wrong: by half a microsecond anywhere, and in proportion to large times
    given = labels - [10.0, 30.0, 45.0]
    assert (given > 0).all()
    assert given[0] < given[1] < given[2]
    assert given[0] > 0.1


def test_a_remainder_beyond_belief_is_cut() -> None:
    labels = node_labels(_measured(1000.0, [10.0, 10.0]), CounterModel(0.0, 1.0, 0.0))
    np.testing.assert_allclose(labels, [12.5, 12.5])
    assert (node_labels(_measured(10.0, [0.0, 10.0]), CounterModel(0.0, 1.0, -1.0)) > 0).all()


def _chain() -> Graph:
    b = GraphBuilder("chain", (1, 8, 14, 14))
    return b.build(b.maxpool(b.relu(b.conv(b.input, 16, 3, name="c"), name="r"), 2, 2, name="p"))


def test_rows_of_a_carrier_are_its_kernels_and_conversions() -> None:
    graph = _chain()
    nodes = (
        EngineNode("in", "ReorderInput", "x", (), "input", "nchw", "nchwc"),
        EngineNode("c", "Conv", "Conv.nchwc", ("c", "r"), "", "nchwc", "nchwc"),
        EngineNode("p1", "MaxPool", "Pool.nchwc", ("p",), "", "nchwc", "nchwc"),
        EngineNode("p2", "MaxPool", "Pool.nchwc", ("p",), "", "nchwc", "nchw"),
        EngineNode("odd", "Cast", "Cast", (), "nowhere", "", ""),
    )
    rows = label_rows(graph, _measured(26.0, [2.0, 10.0, 4.0, 6.0, 4.0], nodes), CounterModel(0.0, 1.0, 0.0), {"4": "nchw"})
    assert [(r["kind"], r["type"], r["implementation"], r["input_state"]) for r in rows] == [
        ("reorder", "reorder", "nchw>nchwc", "nchw"),
        ("conv", "conv++relu", "Conv.nchwc", "nchw"),
        ("maxpool", "maxpool", "Pool.nchwc", "nchwc"),
    ]
    assert [r["latency_us"] for r in rows] == pytest.approx([2.0, 10.0, 10.0])
    assert rows[2]["output_layout"] == "nchw"
    assert KernelConfig.from_json(str(rows[1]["config"])) == make_kernel(graph, ("c", "r")).config


def test_an_extracted_kernel_is_a_graph_of_its_own() -> None:
    graph = _chain()
    alone = extract(graph, make_kernel(graph, ("r", "p")))
    assert (alone.inputs, alone.outputs) == (("c",), ("p",))
    assert [op.name for op in alone.operators] == ["r", "p"]
    assert alone.shape("c") == (1, 16, 14, 14)
    assert "c.weight" not in alone.tensors


def test_the_boundary_is_what_longer_chains_do_not_repeat() -> None:
    pairs = chains(12, seed=5)
    assert [len(g.operators) for g in pairs[0]] == [2, 6]
    constant, read, written = 8.0, 2e-5, 5e-5
    times = []
    for number, (single, _) in enumerate(pairs):
        edge = constant + read * 4 * single.tensors["input"].elements
        edge += written * 4 * single.tensors[single.outputs[0]].elements
        kernel = 20.0 + number
        times.append((_measured(edge + kernel, [1.0]), _measured(edge + 3 * kernel, [1.0])))
    boundary = fit_boundary(pairs, times)
    labels = [isolated_label(single, one, boundary) for (single, _), (one, _) in zip(pairs, times, strict=True)]
    assert labels == pytest.approx([20.0 + n for n in range(12)], rel=1e-3)


def test_a_kernel_never_costs_less_than_a_share_of_what_was_timed() -> None:
    (single, _), *_ = chains(1, seed=5)
    assert isolated_label(single, _measured(10.0, [1.0]), np.array([1e6, 0.0, 0.0])) == pytest.approx(0.5)
