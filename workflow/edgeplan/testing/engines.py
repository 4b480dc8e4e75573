"""These contracts hold an engine, and a setting that is started cold, to edgeplan's demands by tests: subclass and name it.

    class TestMine(EngineContract):
        name = "mine"

    class TestMineCached(SettingContract):
        name = "mine-cached"

pytest collects the tests of the classes. An engine that another package brings is found by its
entry point (`edgeplan.engines.registry`). Each cold start is a process of its own, as when it is measured.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from edgeplan.engines.base import Array, Engine, EngineNode, EngineSettings, ProfiledSession, random_inputs
from edgeplan.engines.cold import Artefact
from edgeplan.engines.program import Program
from edgeplan.engines.registry import engine_class, setting, setting_protocol
from edgeplan.errors import DeviceError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
from edgeplan.graph.nodes import NodeConfig, Operand
from edgeplan.graph.onnx.compare import session_options
from edgeplan.graph.onnx.write import save_onnx, to_onnx
from edgeplan.measurement.process.inputs import random_inputs as random_values
from edgeplan.measurement.process.job import PrepareJob, RunJob, RunResult
from edgeplan.measurement.process.starts import prepare_offline, run_cold
from edgeplan.support.tensors import OUTPUT_TOLERANCE


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
        """Operators are computed as without fusion or blocked layouts, to the bit as before, counted or on more threads."""
        graph = everything()
        found, again = outputs_of(engine, graph, tmp_path), outputs_of(engine, graph, tmp_path)
        require_close(found, reference_outputs(graph), 1e-4)
        for name, value in found.items():
            np.testing.assert_array_equal(value, again[name])
        if engine.reports_nodes:
            require_close(outputs_of(engine, graph, tmp_path, profiled=True), found, 1e-6)
        threaded = type(engine)(EngineSettings(threads=2))
        require_close(outputs_of(threaded, graph, tmp_path), found, 1e-5)

    def test_arithmetic_is_single_precision(self, engine: Engine, tmp_path: Path) -> None:
        """bfloat16 keeps 8 bits: its products of these sizes are off by 1e-3 and more; single precision stays below 1e-5."""
        b = GraphBuilder("precise", (1, 64, 14, 14))
        graph = b.build(b.conv(b.input, 64, 3))
        (kernel,) = (numpy_helper.to_array(one).astype(np.float64) for one in to_onnx(graph).graph.initializer)
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
        """Nodes are known before the first run; times are those of the blocks that were asked for."""
        if not engine.reports_nodes:
            pytest.skip("a black box")
        b = GraphBuilder("counted", (1, 32, 56, 56))
        graph = b.build(b.maxpool(b.relu(b.conv(b.input, 64, 3)), 3, 1, 1))
        with _profile(engine, graph, tmp_path, 0) as session:
            nodes, times = session.profile([])
        assert ("conv_0", "relu_1") in [n.members for n in nodes]
        assert times.shape == (0, len(nodes))
        with _profile(engine, graph, tmp_path, 12) as session:
            nodes, times = session.profile([(1, 6), (7, 12), (11, 12)])
        assert times.shape == (3, len(nodes))
        assert np.isfinite(times).all()
        assert (times >= 0).all()
        convolution = next(i for i, n in enumerate(nodes) if "conv_0" in n.members)
        assert (times[:2, convolution] > 50).all()  # 58 million multiply-adds
        assert (times[:2, convolution] < 1e6).all()

    def test_nodes_are_loaded_in_copies(self, engine: Engine) -> None:
        """Copies write what the node that was described writes."""
        x = Operand("float32", (2, 8))
        config = NodeConfig("Relu", inputs=(x,), outputs=(x,))
        with engine.load_copies(config, 3) as session:
            session.run()
            assert {value.shape for value in session.outputs().values()} == {(2, 8)}

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
    options = session_options(1, optimised=False)
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
            assert make_kernel(graph, node.members).kind


def executed(engine: Engine, graph: Graph, folder: Path) -> tuple[EngineNode, ...]:
    """Return the nodes that an engine runs for a graph; a black box skips the test."""
    if not engine.reports_nodes:
        pytest.skip("a black box")
    with _profile(engine, graph, folder, 1) as session:
        return session.profile([(0, 1)])[0]


def _profile(engine: Engine, graph: Graph, folder: Path, runs: int) -> ProfiledSession:
    session = engine.load_profiled(save_onnx(graph, folder / "model.onnx"), graph)
    for _ in range(runs):
        session.run()
    return session


_INPUTS: dict[str, tuple[int, ...]] = {"input": (1, 3, 32, 32)}
_REFERENCE = "onnxruntime"
_TELL_MODULES = """
import signal
import sys


def tell(number, frame):
    with open({told!r}, "w") as file:
        file.write("\\n".join(sys.modules))


signal.signal(signal.SIGUSR1, tell)
"""


class SettingContract:
    """A contract holds a setting to its interface; `name` is the setting's, as in `cold_start.settings`."""

    name: ClassVar[str] = ""

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        """Return the path of a small classifier."""
        b = GraphBuilder("small", _INPUTS["input"])
        x = b.conv_bn(b.input, 16, 3, 2)
        y = b.conv_bn(x, 16, 3, groups=16, act="relu6")
        x = b.relu(b.add(b.conv_bn(y, 16, 1, act=""), x))
        return save_onnx(b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 10))), tmp_path / "small.onnx")

    @pytest.fixture
    def artefact(self, model: Path, tmp_path: Path) -> Artefact:
        """Prepare the setting's artefact; the tests are skipped where its engine is not installed."""
        return _prepared(self.name, model, tmp_path / "artefact")

    def test_rows_have_a_protocol(self) -> None:
        """Rows are keyed by it."""
        assert setting_protocol(self.name).name
        assert setting(self.name).title

    def test_outputs_are_those_of_onnx_runtime(self, artefact: Artefact, model: Path, tmp_path: Path) -> None:
        """Outputs agree in single precision, on one thread and on two."""
        wanted = tmp_path / "outputs.npz"
        _started(_REFERENCE, _prepared(_REFERENCE, model, tmp_path / "reference"), save_outputs=wanted)
        for threads in (1, 2):
            found = _started(self.name, artefact, threads=threads, reference=wanted)
            assert found.output_error is not None
            assert found.output_error < OUTPUT_TOLERANCE

    def test_opening_and_the_first_run_are_what_is_timed(self, artefact: Artefact) -> None:
        """Hold that opening and the first run are timed, and further runs apart."""
        found = _started(self.name, artefact, warm_runs=3)
        assert found.reason == ""
        assert found.cold_ms == pytest.approx(found.stages_ms["open"] + found.stages_ms["first_run"])
        assert len(found.warm_ms) == 3

    def test_a_stock_engine_is_started_with_nothing_of_edgeplan(self, artefact: Artefact, tmp_path: Path) -> None:
        """Hold that the process of a stock setting has no module of edgeplan."""
        if not setting(self.name).stock:
            pytest.skip("it is edgeplan's own")
        assert own_modules(self.name, artefact, _INPUTS, tmp_path) == []


def own_modules(name: str, artefact: Artefact, inputs: Mapping[str, tuple[int, ...]], folder: Path) -> list[str]:
    """Return edgeplan's modules in `sys.modules` of a setting's process, which has opened and run a model."""
    hook, told = folder / "hook", folder / "modules.txt"
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(_TELL_MODULES.format(told=str(told)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(hook), os.environ.get("PYTHONPATH")))))
        with Program(name, artefact, random_values(inputs, 0), threads=1) as program:
            program.go()
            os.kill(program.number, signal.SIGUSR1)
            assert len(list(program.run(1))) == 1, "it has answered the signal before"
    modules = told.read_text().split()
    assert "numpy" in modules
    return [module for module in modules if module.partition(".")[0] == "edgeplan"]


def _prepared(name: str, model: Path, folder: Path) -> Artefact:
    folder.mkdir()
    made = prepare_offline(PrepareJob(setting=name, threads=1, model=model, inputs=_INPUTS, folder=folder))
    if made.artefact is None:
        if "not installed" in made.reason:
            pytest.skip(made.reason)
        raise AssertionError(made.reason)
    return made.artefact


def _started(name: str, artefact: Artefact, threads: int = 1, **more: object) -> RunResult:
    job = {"setting": name, "threads": threads, "artefact": artefact, "inputs": _INPUTS, "state": "cached", **more}
    return run_cold(RunJob.model_validate(job))
