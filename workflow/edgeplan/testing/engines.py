"""This contract holds an engine to edgeplan's demands by tests: subclass `EngineContract` and name the engine.

    class TestMine(EngineContract):
        name = "mine"

pytest collects the tests of the class. An engine that another package brings is found by its
entry point (`edgeplan.engines.registry`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from edgeplan.engines.base import Array, Engine, EngineNode, EngineSettings, ProfiledSession, random_inputs
from edgeplan.engines.registry import engine_class
from edgeplan.errors import DeviceError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
from edgeplan.graph.nodes import NodeConfig, Operand
from edgeplan.graph.onnx.write import save_onnx, to_onnx


class EngineContract:
    """A contract holds an engine to its interface; `name` is the engine's, by which device files ask for it."""

    name: ClassVar[str] = ""

    @pytest.fixture
    def engine(self) -> Engine:
        """Return the engine on one thread; the tests are skipped where it is not installed."""
        try:
            return engine_class(self.name)(EngineSettings(threads=1))
        except DeviceError as error:
            if error.what.startswith("unknown engine"):
                raise
            pytest.skip(error.what)

    def test_outputs_are_those_of_the_unfused_graph(self, engine: Engine, tmp_path: Path) -> None:
        """Every operator is computed as without any fusion or blocked layout."""
        graph = everything()
        require_close(outputs_of(engine, graph, tmp_path), reference_outputs(graph), 1e-4)

    def test_plain_and_counting_sessions_agree(self, engine: Engine, tmp_path: Path) -> None:
        """Counting nodes changes no result."""
        if not engine.reports_nodes:
            pytest.skip("a black box")
        graph = everything()
        require_close(outputs_of(engine, graph, tmp_path, profiled=True), outputs_of(engine, graph, tmp_path), 1e-6)

    def test_runs_repeat_exactly(self, engine: Engine, tmp_path: Path) -> None:
        """The same model gives the same bits."""
        graph = everything()
        first, second = outputs_of(engine, graph, tmp_path), outputs_of(engine, graph, tmp_path)
        for name, value in first.items():
            np.testing.assert_array_equal(value, second[name])

    def test_arithmetic_is_single_precision(self, engine: Engine, tmp_path: Path) -> None:
        """bfloat16 keeps 8 bits: its products of these sizes are off by 1e-3 and more; single precision stays below 1e-5."""
        b = GraphBuilder("precise", (1, 64, 14, 14))
        graph = b.build(b.conv(b.input, 64, 3))
        kernel = _initialiser(graph, "conv_0.weight").astype(np.float64)
        padded = np.pad(random_inputs(graph)["input"].astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
        exact = np.einsum("nchwij,ocij->nohw", windows, kernel, optimize=True)
        (found,) = outputs_of(engine, graph, tmp_path).values()
        assert np.abs(found - exact).max() / np.abs(exact).max() < 1e-5

    @pytest.mark.parametrize("channels", [16, 13], ids=["aligned", "unaligned"])
    @pytest.mark.parametrize("last", ["relu", "relu6", "hswish", "hsigmoid", "sigmoid"])
    def test_an_activation_that_ends_the_graph_is_mapped(
        self, engine: Engine, tmp_path: Path, last: str, channels: int
    ) -> None:
        """An activation that ends the graph, which nothing reads, is mapped to a node, too."""
        b = GraphBuilder("last", (1, 16, 7, 7))
        graph = b.build(b.conv_bn(b.input, channels, 3, act=last))
        require_mapped(graph, executed(engine, graph, tmp_path))

    def test_operators_of_one_chain_are_named_exactly(self, engine: Engine, tmp_path: Path) -> None:
        """Members of nodes are names of the graph."""
        b = GraphBuilder("chain", (1, 16, 14, 14))
        first = b.relu(b.bn(b.conv(b.input, 32, 3, name="c1"), name="b1"), name="r1")
        second = b.relu(b.bn(b.conv(first, 32, 1, name="c2"), name="b2"), name="r2")
        graph = b.build(b.maxpool(second, 3, 1, 1, name="p"))
        nodes = executed(engine, graph, tmp_path)
        assert [n.members for n in nodes if n.members] == [("c1", "b1", "r1"), ("c2", "b2", "r2"), ("p",)]

    def test_counters_come_by_block_and_node(self, engine: Engine, tmp_path: Path) -> None:
        """Times are those of the blocks that were asked for."""
        if not engine.reports_nodes:
            pytest.skip("a black box")
        b = GraphBuilder("counted", (1, 32, 56, 56))
        graph = b.build(b.maxpool(b.relu(b.conv(b.input, 64, 3)), 3, 1, 1))
        with _profile(engine, graph, tmp_path, 12) as session:
            nodes, times = session.profile([(1, 6), (7, 12), (11, 12)])
        assert times.shape == (3, len(nodes))
        assert np.isfinite(times).all()
        assert (times >= 0).all()
        convolution = next(i for i, n in enumerate(nodes) if "conv_0" in n.members)
        assert (times[:2, convolution] > 50).all()  # 58 million multiply-adds
        assert (times[:2, convolution] < 1e6).all()

    def test_what_would_run_shows_without_a_run(self, engine: Engine, tmp_path: Path) -> None:
        """Nodes are known before the first run."""
        if not engine.reports_nodes:
            pytest.skip("a black box")
        b = GraphBuilder("idle", (1, 3, 16, 16))
        graph = b.build(b.relu(b.conv(b.input, 8, 3)))
        with _profile(engine, graph, tmp_path, 0) as session:
            nodes, times = session.profile([])
        assert ("conv_0", "relu_1") in [n.members for n in nodes]
        assert times.shape == (0, len(nodes))

    def test_nodes_are_loaded_in_copies(self, engine: Engine) -> None:
        """Copies write what the node that was described writes."""
        x = Operand("float32", (2, 8))
        config = NodeConfig("Relu", inputs=(x,), outputs=(x,))
        with engine.load_copies(config, 3) as session:
            session.run()
            assert {value.shape for value in session.outputs().values()} == {(2, 8)}

    def test_a_threaded_engine_computes_the_same(self, engine: Engine, tmp_path: Path) -> None:
        """More threads change no result beyond rounding."""
        graph = everything()
        threaded = type(engine)(EngineSettings(threads=2))
        require_close(outputs_of(threaded, graph, tmp_path), outputs_of(engine, graph, tmp_path), 1e-5)

    def test_an_engine_knows_its_version(self, engine: Engine) -> None:
        """Engines tell their version: rows are keyed by it."""
        assert engine.version()[0].isdigit()
        assert engine.name


def everything() -> Graph:
    """Return every operator that the builder has, each activation included."""
    b = GraphBuilder("everything", (1, 3, 17, 17))
    x = b.conv_bn(b.input, 16, 3, 2, act="relu6")
    x = b.conv(x, 16, (1, 3), dilation=1, bias=True)
    x = b.activation(b.bn(b.dwconv(x, 3)), "hswish")
    x = b.conv(x, 16, 3, groups=4, dilation=2)
    gate = b.activation(b.conv(b.relu(b.conv(b.gap(x), 4, 1, bias=True)), 16, 1, bias=True), "hsigmoid")
    x = b.add(x, b.mul(x, gate))
    left, right = b.split(x, (6, 10))
    x = b.concat([b.activation(left, "sigmoid"), b.lrn(right)])
    x = b.channel_shuffle(x, 2)
    x = b.concat([b.maxpool(x, 3, 2, 1, ceil=True), b.avgpool(x, 3, 2, 1)])
    x = b.relu(b.fc(b.flatten(x), 20))
    return b.build(b.softmax(b.fc(x, 10, bias=False)))


def reference_outputs(graph: Graph) -> dict[str, Array]:
    """Return outputs computed operator by operator, without any fusion or blocked layout."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(to_onnx(graph).SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip(graph.outputs, session.run(list(graph.outputs), random_inputs(graph)), strict=True))


def outputs_of(engine: Engine, graph: Graph, folder: Path, *, profiled: bool = False) -> dict[str, Array]:
    """Return the outputs of one run of a graph."""
    model = save_onnx(graph, folder / "model.onnx")
    with engine.load_profiled(model, graph) if profiled else engine.load(model, graph) as session:
        session.run()
        return {name: np.array(value) for name, value in session.outputs().items()}


def require_close(found: Mapping[str, Array], wanted: Mapping[str, Array], tolerance: float) -> None:
    """Outputs have the wanted names, shapes and types, and differ by at most `tolerance` of the largest value."""
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name].shape == value.shape
        assert found[name].dtype == np.float32
        assert np.abs(found[name] - value).max() <= tolerance * np.abs(value).max(), name


def _initialiser(graph: Graph, name: str) -> Array:
    return next(np.array(numpy_helper.to_array(i)) for i in to_onnx(graph).graph.initializer if i.name == name)


def require_mapped(graph: Graph, nodes: tuple[EngineNode, ...]) -> None:
    """Every operator runs in one node, and nodes are told whole."""
    names = [op.name for op in graph.operators]
    owners = Counter(m for members in {n.members for n in nodes if n.members} for m in members)
    free = {op.name for op in graph.operators if op.op_type in ("Reshape", "Flatten", "Transpose", "Squeeze")}
    assert set(owners) <= set(names)
    assert {n for n, count in owners.items() if count > 1} == set(), "operators in two kernels"
    assert set(names) - set(owners) <= free, "operators in no kernel"
    assert len({n.name for n in nodes}) == len(nodes)
    order = {name: i for i, name in enumerate(names)}
    for node in nodes:
        assert node.implementation, node
        if node.is_reorder:
            assert node.tensor in graph.tensors, node
            assert node.input_layout, node
            assert node.output_layout, node
        else:
            assert list(node.members) == sorted(node.members, key=order.__getitem__), node
            assert node.tensor == "", node
            assert make_kernel(graph, node.members).config.kind


def executed(engine: Engine, graph: Graph, folder: Path) -> tuple[EngineNode, ...]:
    """Return the nodes that an engine runs for a graph; a black box skips the test."""
    if not engine.reports_nodes:
        pytest.skip("a black box")
    return engine.executed(save_onnx(graph, folder / "model.onnx"), graph)


def _profile(engine: Engine, graph: Graph, folder: Path, runs: int) -> ProfiledSession:
    session = engine.load_profiled(save_onnx(graph, folder / "model.onnx"), graph)
    for _ in range(runs):
        session.run()
    return session
