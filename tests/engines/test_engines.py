"""Every engine is held to the suite that other packages use, and tells and copies the nodes of models of all operators.

Engines that run graphs of ours tell their nodes, and run copies of each as they run it in its model.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from quick_bench import timed
from random_graphs import graphs

from depth import MANY, by_day
from edgeplan.engines.base import Engine, EngineSettings, ProfiledSession
from edgeplan.engines.registry import ENGINES, engine_class
from edgeplan.errors import DeviceError, FormatError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernel_nodes import REORDER, described, executed_graph
from edgeplan.graph.nodes import NodeConfig
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.graph.simplify import simplify
from edgeplan.measurement.kernel_labels import label_us, labels_us
from edgeplan.measurement.records import Measurement
from edgeplan.testing.engines import (
    EngineContract,
    everything,
    executed,
    outputs_of,
    reference_outputs,
    require_close,
    require_mapped,
)
from edgeplan.zoo import prior_models
from edgeplan.zoo.cold_start_models import crnn_lite


@pytest.fixture(params=sorted(ENGINES))
def each_engine(request: pytest.FixtureRequest) -> Engine:
    """An engine; skipped if it is not installed."""
    try:
        return engine_class(request.param)(EngineSettings(threads=1))
    except DeviceError as error:
        pytest.skip(error.what)


class TestEngines(EngineContract):
    """With the fixture `engine` of `conftest.py`, which takes each."""

    @pytest.fixture
    def engine(self, each_engine: Engine) -> Engine:
        return each_engine


_DRAWN = [*graphs(100 if MANY else 12)]


@pytest.mark.parametrize("graph", _DRAWN, ids=range(len(_DRAWN)))
def test_models_of_all_operators_compute_what_they_say_and_are_told(each_engine: Engine, tmp_path: Path, graph: Graph) -> None:
    wanted, told = reference_outputs(graph), each_engine.reports_nodes
    if MANY or not told:
        require_close(outputs_of(each_engine, graph, tmp_path), wanted, 1e-3)
    if told:
        with each_engine.load_profiled(save_onnx(graph, tmp_path / "told.onnx"), graph) as session:
            session.run()
            require_close(session.outputs(), wanted, 1e-3)
            members = {name for node in session.profile([(0, 1)])[0] for name in node.members}
        assert set() < members <= graph.by_name.keys()


@pytest.mark.parametrize(
    "name", by_day(["crnn_lite", "mobilenetv3_small", "googlenet", "shufflenetv2_0.5", "squeezenet1_1", "resnet18"], least=2)
)
def test_every_operator_of_networks_runs_in_one_kernel(each_engine: Engine, tmp_path: Path, name: str) -> None:
    graph = simplify(crnn_lite() if name == "crnn_lite" else prior_models()[name]())
    require_mapped(graph, executed(each_engine, graph, tmp_path))


_RULES = FusionRules(pairs={"conv_bn": True, "bn_relu": True})
_MOST_UNLIKE = 0.1


@pytest.fixture
def counting(each_engine: Engine) -> Engine:
    """One whose nodes are kernels of graphs."""
    if not each_engine.counts_copies:
        pytest.skip("its nodes are described otherwise")
    return each_engine


def _blocks() -> Graph:
    """Return layers as networks have them: fused sums, windows, gates, a product, layouts between them."""
    b = GraphBuilder("blocks", (1, 3, 24, 24))
    x = b.maxpool(b.conv_bn(b.input, 32, 3, 2), 3, 2, 1)
    y = b.bn(b.conv(b.conv_bn(x, 32, 3), 32, 3))
    x = b.relu(b.add(y, x))
    x = b.mul(x, b.activation(b.conv(b.gap(x), 32, 1, bias=True), "sigmoid"))
    x = b.concat([b.dwconv(x, 3), b.avgpool(x, 3, 1, 1)])
    return b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10)))


@pytest.mark.parametrize("name", ["blocks", "everything", "mobilenetv2_1.0", "crnn"][: 4 if MANY else 2])
def test_every_operator_lies_in_one_executed_node(counting: Engine, name: str) -> None:
    made = {"blocks": _blocks, "everything": everything, "crnn": crnn_lite}
    graph = made[name]() if name in made else prior_models()[name]()
    model = executed_graph(counting, graph, _RULES)
    assert Counter(op for node in model.nodes for op in node.operators) == Counter(op.name for op in graph.operators)
    assert model.told_by.startswith(counting.name)
    for node in model.nodes:
        assert NodeConfig.from_json(node.config.to_json()) == node.config
        assert bool(node.operators) or node.config.op == REORDER


def test_a_graph_is_loaded_from_any_file_once_its_nodes_are_told(counting: Engine, tmp_path: Path) -> None:
    graph = everything()
    told = counting.told(graph)
    with counting.load_profiled(save_onnx(graph, tmp_path / "another.onnx"), graph) as session:
        session.run()
        assert [(node.members, node.tensor) for node in session.profile([])[0]] == [(n.members, n.tensor) for n in told]


def _counted(session: ProfiledSession, runs: int = 3) -> Measurement:
    for _ in range(runs):
        session.run()
    nodes, node_us = session.profile([(0, runs)])
    return timed([1000.0], nodes=nodes, node_us=node_us)


def test_copies_are_executed_as_the_kernel_is_in_its_model(counting: Engine) -> None:
    """With the layouts of the model, fused alike, and each by itself; and they compute what the reference does."""
    told = [node.config for node in executed_graph(counting, _blocks(), _RULES).nodes]
    kernels = [config for config in told if config.op != REORDER]
    unlike = []
    for config in dict.fromkeys(told):
        with counting.load_copies_profiled(config, 3) as session:
            measured = _counted(session)
            require_close(session.outputs(), reference_outputs(counting.copies_graph(config, 3)), 1e-4)
        if config.op == REORDER:
            continue
        labels = labels_us(config, measured, 100, 3)
        if config.op == "Conv":  # conversions are labelled beside the kernel
            assert all(label > 0 for label in labels.values())
            of_nodes = described(counting.copies_graph(config, 3), measured.nodes)
            assert sum(labels[found] for _, found, *_ in of_nodes if found in labels) <= 900 * (1 + 1e-9)
        if config not in labels:
            unlike.append((config.op, config.attributes, labels.keys()))
        else:
            assert label_us(config, measured, 100, 3) == (config, labels[config])
            assert 0 < labels[config] <= 300
    assert len(unlike) <= _MOST_UNLIKE * len(kernels), unlike


def test_without_its_device_the_rules_tell_what_an_engine_runs() -> None:
    """As of a GPU that is not here: nothing of its engine is loaded."""
    graph = _blocks()
    model = executed_graph(None, graph, _RULES)
    assert Counter(op for node in model.nodes for op in node.operators) == Counter(op.name for op in graph.operators)


def test_a_node_of_another_engine_is_refused(counting: Engine) -> None:
    with pytest.raises(FormatError, match="no kernel of a graph"):
        counting.load_copies(NodeConfig("Conv", "com.microsoft.nchwc"), 2)
