"""Carriers of shapes that files from elsewhere hold: what they span, and what a real engine makes of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from quick_bench import DEVICE, SETTINGS, measuring_alone  # noqa: F401  a fixture

from edgeplan.chapters.params import load_params
from edgeplan.chapters.prediction.sampling.adaptive import CarrierSampler
from edgeplan.chapters.prediction.sampling.carriers_wider import SORTS, wider_graphs
from edgeplan.chapters.prediction.sampling.labels import CounterModel
from edgeplan.chapters.prediction.sampling.prior import ConvPrior, conv_shapes
from edgeplan.graph.cost import graph_macs
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import KernelConfig, make_kernel
from edgeplan.graph.kinds import kind
from edgeplan.graph.onnx.read import from_onnx
from edgeplan.graph.onnx.write import to_onnx, weight_bytes
from edgeplan.measurement.bench import Bench
from edgeplan.measurement.records import Subject
from edgeplan.predictors.training_rows import TRAINED_ON, WIDER
from edgeplan.zoo import prior_models

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def many() -> list[Graph]:
    return list(wider_graphs(7, 12))


def _configs(graphs: list[Graph], wanted: str) -> list[KernelConfig]:
    return [make_kernel(g, (op.name,)).config for g in graphs for op in g.operators if kind(g, op) == wanted]


def test_new_devices_measure_them_and_shipped_ones_keep_their_rows() -> None:
    params = load_params(ROOT / "params.yaml")
    assert {params.sampling.wider_on(device) for device in params.devices} == {0}
    assert params.sampling.wider_on("my-own") > 0
    assert WIDER in TRAINED_ON


def test_a_sort_depends_on_no_other_and_more_of_them_leave_the_first_ones() -> None:
    two, three, other = ({g.name: Subject(g).id for g in wider_graphs(seed, n)} for seed, n in ((7, 2), (7, 3), (8, 3)))
    assert len(set(three.values())) == len(three) == 3 * len(SORTS)
    assert two.items() <= three.items()
    assert not set(three.values()) & set(other.values())


def test_they_span_what_the_walks_leave_out(many: list[Graph]) -> None:
    dense, depthwise, layers = (_configs(many, name) for name in ("conv", "dwconv", "fc"))
    few = [c for c in dense if c.groups == 32]
    assert len(few) >= 5
    assert min(c.in_channels // c.groups for c in few) < 8
    assert {c.kernel_h for c in dense} >= {1, 3, 5, 7, 9, 11, 15, 31}
    assert {c.kernel_h for c in depthwise} >= {5, 7, 13, 31}
    assert any(c.kernel_h == 1 < c.kernel_w for c in dense)
    fine = [c for c in dense if c.out_height * c.out_width >= 256 * 256 and c.out_channels <= 16]
    assert len(fine) >= 10
    assert max(c.in_channels for c in layers) > 20_000
    assert max(c.in_channels * c.out_channels for c in layers) > 10_000_000
    assert max(c.out_channels * c.out_height * c.out_width for c in _configs(many, "concat")) > 1_000_000
    assert max(c.out_channels * c.out_height * c.out_width for c in _configs(many, "transpose")) > 300_000
    for cell in ("lstm", "gru"):
        assert len({c.batch for c in _configs(many, cell)}) >= 3, cell
    products = _configs(many, "matmul")
    assert len({(c.batch, c.in_height, c.in_width) for c in products}) >= 12
    stems = {(c.kernel_h, c.stride_h) for c in _configs([g for g in many if "-stems-" in g.name], "conv") if c.in_channels == 3}
    assert {kernel for kernel, _ in stems} == {3, 5, 7, 9, 11}
    assert {stride for _, stride in stems} == {1, 2, 4}
    turned = _configs(many, "deconv")
    assert {c.groups == c.in_channels for c in turned if c.in_channels > 1} == {True, False}


def test_none_takes_long_or_holds_much(many: list[Graph]) -> None:
    for graph in many:
        largest = max(tensor.elements for name, tensor in graph.tensors.items() if "." not in name)
        assert graph_macs(graph) < 4e9, graph.name
        assert weight_bytes(graph) < 400_000_000, graph.name
        assert largest <= 16_000_000, graph.name


def test_files_hold_the_operators_that_were_drawn(many: list[Graph]) -> None:
    for graph in many[: 2 * len(SORTS)]:
        again = from_onnx(to_onnx(graph))
        assert [op.op_type for op in again.operators] == [op.op_type for op in graph.operators]
        assert [again.shape(name) for name in again.outputs] == [graph.shape(name) for name in graph.outputs]


@pytest.mark.parametrize("sort", SORTS)
def test_an_engine_says_which_of_its_nodes_are_their_kernels(sort: str, tmp_path: Path) -> None:
    """Whatever the engine fuses, kernels of the sort's own kinds are told apart and labelled."""
    graphs = [min((g for g in wider_graphs(7, 6) if f"-{sort}-" in g.name), key=graph_macs)]
    prior = ConvPrior(conv_shapes([prior_models()["resnet18"]()]))
    settings = load_params(ROOT / "params.yaml").sampling
    with Bench(DEVICE, SETTINGS, tmp_path / "rows" / "dev") as bench:
        sampled = CarrierSampler(bench, settings, prior, FusionRules(pairs={}), 7).fixed(graphs)
    rows = pd.DataFrame(sampled.rows(CounterModel(0.0, 1.0, 0.0), {}, WIDER))
    told, drawn = Counter(rows["kind"]), Counter(kind(g, op) for g in graphs for op in g.operators)
    heavy = {"conv", "dwconv", "fc", "matmul", "lstm", "gru", "deconv"} & set(drawn)
    assert heavy
    assert {name: told[name] for name in heavy} == {name: drawn[name] for name in heavy}
    assert np.isfinite(rows["latency_us"]).all()
