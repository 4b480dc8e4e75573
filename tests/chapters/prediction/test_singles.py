"""Models of a single operator: what is drawn, and what a real engine makes of it."""

from __future__ import annotations

import math
from pathlib import Path
from random import Random

import pandas as pd
import pytest
from edgeplan.chapters.prediction.sampling.adaptive import CarrierSampler
from edgeplan.chapters.prediction.sampling.labels import CounterModel
from edgeplan.chapters.prediction.sampling.singles import single_graphs
from edgeplan.predictors.features import FIRST_WORK, WORK_VERSION
from edgeplan.predictors.labels import read_labels
from edgeplan.predictors.training import bandwidth_of
from edgeplan.predictors.training_rows import SINGLE, TRAINED_ON
from quick_bench import DEVICE, SETTINGS, measuring_alone  # noqa: F401  a fixture
from shipped_params import PARAMS_FILE

from edgeplan.chapters.params import load_params
from edgeplan.chapters.prediction.sampling.prior import ConvPrior, conv_shapes
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import KernelConfig, make_kernel
from edgeplan.graph.kinds import kind
from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.onnx.write import to_onnx
from edgeplan.graph.operators.registry import BANDWIDTH_BOUND, SPECS
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Subject
from edgeplan.zoo import prior_models

ROOT = Path(__file__).parents[3]


def test_every_operator_of_the_family_is_drawn_and_so_are_new_compute_bound_ones() -> None:
    graphs = list(single_graphs(7, 8))
    kinds = {kind(graph, graph.operators[0]) for graph in graphs}
    assert {name for name, spec in SPECS.items() if spec.bandwidth_bound} <= {g.operators[0].op_type for g in graphs}
    assert kinds >= BANDWIDTH_BOUND | {"deconv", "layernorm", "groupnorm", "matmul", "logsoftmax"}
    assert len({Subject(graph, profiled=True).id for graph in graphs}) == len(graphs)


def test_new_devices_measure_single_operators_and_shipped_ones_keep_their_rows() -> None:
    params = load_params(PARAMS_FILE)
    assert {params.sampling.singles_on(device) for device in params.devices if device.startswith("cpu-")} == {0}
    assert params.sampling.singles_on("my-own") > 0


def test_shipped_devices_keep_their_moments_and_features_and_new_ones_have_the_later() -> None:
    params = load_params(PARAMS_FILE)
    assert {params.training.work_on(device) for device in params.devices} == {FIRST_WORK}
    assert params.training.work_on("my-own") == WORK_VERSION
    assert set(params.devices) <= set(params.measurement.least)


def test_the_draw_of_one_operator_depends_on_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def ids(seed: int) -> dict[str, str]:
        return {graph.name: Subject(graph).id for graph in single_graphs(seed, 2)}

    one, other = ids(7), ids(8)
    assert ids(7) == one
    assert not {one[name] for name in one if "Conv" in name} & set(other.values())
    fewer = {name: spec for name, spec in SPECS.items() if name not in ("Abs", "Split")}
    monkeypatch.setattr("edgeplan.chapters.prediction.sampling.singles.SPECS", fewer)
    assert ids(7) == {name: text for name, text in one.items() if name.split("-")[1] in fewer}


@pytest.mark.parametrize("graph", [*single_graphs(3, 2)], ids=lambda graph: graph.name)
def test_files_hold_the_operator_that_was_drawn(graph: Graph) -> None:
    again = from_onnx(to_onnx(graph))
    (op,), (drawn,) = again.operators, graph.operators
    assert op.op_type == drawn.op_type
    assert [again.shape(name) for name in again.outputs] == [graph.shape(name) for name in graph.outputs]
    assert make_kernel(again, (op.name,)).config == make_kernel(graph, (drawn.name,)).config


def test_maps_span_the_range_from_a_launch_to_beyond_the_caches() -> None:
    sizes = [math.prod(g.shape(g.inputs[0])) for g in single_graphs(7, 8) if g.operators[0].op_type == "Tanh"]
    assert sizes == sorted(sizes)
    assert sizes[0] < 4_000
    assert sizes[-1] > 1_000_000


def test_an_engine_measures_them_and_the_family_is_fitted_on_what_it_says(tmp_path: Path) -> None:
    """Of operators that ONNX Runtime runs in several steps, too: all of their time is the operator's."""
    wanted = ("Tanh", "Div", "GroupNormalization", "Mish", "DepthToSpace", "ReduceSum", "ConvTranspose")
    graphs = [graph for graph in single_graphs(7, 3) if graph.operators[0].op_type in wanted]
    settings = load_params(PARAMS_FILE).sampling
    prior = ConvPrior(conv_shapes([prior_models()["resnet18"]()]))
    with Bench(DEVICE, SETTINGS, tmp_path / "rows" / "dev") as bench:
        sampled = CarrierSampler(bench, settings, prior, FusionRules(pairs={}), 7).fixed(graphs)
    rows = pd.DataFrame(sampled.rows(CounterModel(0.0, 1.0, 0.0), {}, SINGLE))
    rows = rows[rows["kind"] != "reorder"]
    assert rows["kind"].tolist() == [kind(graph, graph.operators[0]) for graph in graphs]
    assert SINGLE in TRAINED_ON
    place = next(i for i, graph in enumerate(graphs) if graph.name == "single-Mish-2")
    nodes_us = sampled.measurements[place].node_latency_us
    assert len(nodes_us) > 1
    assert rows["latency_us"].iloc[place] > 0.7 * nodes_us.sum()  # not the last of its steps alone
    fit = bandwidth_of(read_labels(rows), 0.9)
    assert fit is not None
    assert set(fit.levels) == {"tanh", "div", "mish", "depthtospace", "reducesum"}
    assert fit.us_per_byte > 0


def test_draws_of_small_maps_are_shapes() -> None:
    """Whatever map a draw is told, sizes are positive: maps of one pixel and four channels."""
    for name, spec in SPECS.items():
        for seed in range(20 if spec.single else 0):
            assert spec.single is not None
            drawn = spec.single(Random(seed), (1, 4, 1, 1))  # noqa: S311  not cryptography
            for shape in (*drawn.inputs, drawn.output, *drawn.more, *drawn.weights.values()):
                assert min(shape) > 0, (name, drawn)


def test_configurations_of_singles_are_read_back() -> None:
    for graph in single_graphs(5, 1):
        config = make_kernel(graph, (graph.operators[0].name,)).config
        assert KernelConfig.from_json(config.to_json()) == config
