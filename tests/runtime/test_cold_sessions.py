"""Cold starts as planned: outputs are those of ONNX Runtime whatever the plan, timelines respect dependencies and cores."""

from __future__ import annotations

import itertools
import tempfile
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from model_file_runs import made, node, onnxruntime_outputs, values, write
from plan_folders import Span, assert_close, spans_of

from depth import MANY, by_day
from edgeplan.chapters.cold_start.api import read_model
from edgeplan.engines.base import random_inputs
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.model_file import model_sha256
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.planning.machine import MAIN
from edgeplan.planning.profile import SOURCES
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.lowering import lower
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder, write_linked
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

Planned = Callable[..., Plan]


@pytest.fixture(scope="module")
def graph() -> Graph:
    b = GraphBuilder("net", (1, 3, 18, 18))
    x = b.conv_bn(b.input, 20, 3, 2)
    y = b.conv_bn(x, 20, 3, groups=20, act="relu6")
    x = b.relu(b.add(b.conv_bn(y, 20, 1, act=""), x))
    x = b.concat([b.maxpool(x, 3, 1, 1), b.conv(x, 12, 1)])
    return b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 9)))


@pytest.mark.parametrize("source", ["raw", "cached_read", "cached_mmap"])
def test_asymmetric_cores_wait(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], source: str
) -> None:
    plan = planned(model, graph, sources=[source], widen_from=-1, equal_cores=False, little_ratio=40.0, threads=1)
    folder = build_plan_folder(dnnl, model, plan, model.parent / "plan")
    with open_session(folder, fixed=True) as session:
        assert_close(session.run(random_inputs(graph)), wanted)
        lane = sorted((s for s in spans_of(session) if s.core == 0), key=lambda s: s.start_ms)
    for _, one in itertools.groupby(lane, lambda s: s.layer):
        *work, last = one  # the last one of a step is prolonged
        assert last.end_ms - last.start_ms >= 39 * sum(s.end_ms - s.start_ms for s in work)


def test_layouts_that_depend_on_threads(dnnl: Dnnl, planned: Planned, tmp_path: Path) -> None:
    """An LSTM's weights lie otherwise for one thread than for two: each step is made for the threads that execute it."""
    graph = COLD_START_MODELS["crnn_lite"]()
    model = save_onnx(graph, tmp_path / "m.onnx")
    wanted = SequentialSession(dnnl, default_program(dnnl, model, graph, "nchw"), tmp_path).run(random_inputs(graph))
    for widen in (0, -1):
        dnnl.set_threads(2)
        folder = build_plan_folder(dnnl, model, planned(model, graph, widen_from=widen), tmp_path / f"plan{widen}")
        with open_session(folder) as session:
            for _ in range(2):
                assert_close(session.run(random_inputs(graph)), wanted)


def _write(path: Path) -> Path:
    """Interpolation, means, constants on either side, sums of other ranks, last states, six axes, a line, heads."""
    rng = np.random.default_rng(3)
    shapes = {"w": (8, 3, 3, 3), "c": (1, 2, 8, 8), "m": (3, 8), "i": (1, 20, 2), "r": (1, 20, 5), "k": (4, 2, 3)}
    constants = {name: rng.uniform(-0.5, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    constants |= {"s": np.array([1, 8, 8, 8]), "six": np.array([1, 2, 2, 2, 8, 8]), "four": np.array([1, 2, 16, 16])}
    constants |= {"line": np.array([16, 2, 16]), "heads": np.array([1, 8, 2, 4]), "joined": np.array([8, 16])}
    nodes = [
        node("Conv", "x w", "a", pads=[1, 1, 1, 1]),
        node("Resize", "a - - s", "b", mode="linear", coordinate_transformation_mode="align_corners"),
        node("MatMul", "b b", "d"),
        node("MatMul", "m z", "e"),
        node("Add", "d z", "f"),
        node("Reshape", "f six", "g"),
        node("Transpose", "g", "h", perm=[0, 1, 4, 2, 5, 3]),
        node("Reshape", "h four", "shuffled"),
        node("Reshape", "shuffled line", "l"),
        node("Conv", "l k", "n"),
        node("Transpose", "l", "o", perm=[2, 0, 1]),
        node("LSTM", "o i r", ["", "", "q"], hidden_size=5),
        node("Concat", "c f", "p", axis=1),
        node("ReduceMean", "p", "t", axes=[1, 3], keepdims=0),
        node("Reshape", "z heads", "z4"),
        node("Transpose", "z4", "query", perm=[0, 2, 1, 3]),
        node("Neg", "z", "minus"),
        node("Reshape", "minus heads", "minus4"),
        node("Transpose", "minus4", "key", perm=[0, 2, 3, 1]),
        node("MatMul", "query key", "scores"),
        node("Transpose", "scores", "beside", perm=[0, 2, 1, 3]),
        node("Reshape", "beside joined"),
    ]
    return write(made(nodes, {"x": (1, 3, 5, 5), "z": (8, 8)}, constants, output="e n q t y"), path)


@pytest.mark.parametrize("home", HOMES)
@pytest.mark.parametrize("sources", by_day([("cached_mmap", "raw"), ("raw",), ("cached_read",)]))
def test_a_planned_start_gives_onnx_runtimes_numbers(
    dnnl: Dnnl, planned: Planned, tmp_path: Path, home: str, sources: tuple[str, ...]
) -> None:
    path = _write(tmp_path / "composed.onnx")
    graph = load_onnx(path)
    lowered = lower(graph)
    mixing = [k for k, step in enumerate(lowered.steps) if step.kind == "mix"]  # of weights that stand in no file
    assert mixing
    assert any({"read_0", "read_1", "written"} <= set(step.settings) for step in lowered.steps)
    plan = planned(path, graph, home=home, sources=sources, widen_from=-1)
    source = [SOURCES.index(sources[k % len(sources)]) if k in mixing else s for k, s in enumerate(plan.source)]
    folder = build_plan_folder(dnnl, path, plan.model_copy(update={"source": tuple(source)}), tmp_path / "plan")
    inputs = random_inputs(graph)
    wanted = dict(zip(graph.outputs, onnxruntime_outputs(path, inputs), strict=True))
    for _ in range(2):  # twice in a process
        with open_session(folder) as session:
            for found in (session.run(inputs), session.run(inputs)):
                for name, value in wanted.items():
                    np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5)


def test_weights_that_cannot_be_made_at_a_start_stay_in_the_cache(
    dnnl: Dnnl, planned: Planned, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the plan says, and whatever the limit is; a later kernel that would need others is done without."""
    path = _write(tmp_path / "composed.onnx")
    plan = planned(path, load_onnx(path), sources=("raw",), widen_from=-1)
    for limit in (None, 0):
        linked = write_linked(dnnl, path, plan, tmp_path / "plan", limit_bytes=limit)
        sources = {step.kind: step.source for step in linked.steps if step.slots}
        cached = {kind for kind, source in sources.items() if source == "cached_read"}
        assert cached == {"mix", "lstm", "matmul"}
        assert {sources[kind] for kind in {*sources} - cached} == {"raw"}
        assert not {again.kind for again in linked.later if again is not None and again.source == "raw"} & cached
    assert "the rest cannot be made from the model's weights at a start" in caplog.text


def test_a_start_makes_the_bits_that_planning_makes(dnnl: Dnnl, planned: Planned, tmp_path: Path) -> None:
    """Of weights of every kind that can be made from those of the file, stored as numbers and as bytes."""
    norm = {"s": values(8) + 1, "o": values(8, seed=1), "m": values(8, seed=2), "v": values(8, seed=3) + 1}
    stored = {"w": np.arange(-108, 108).reshape(8, 3, 3, 3), "p": np.arange(-28, 28).reshape(7, 8)}
    constants: dict[str, Any] = {name: value.astype(np.int8) for name, value in stored.items()}
    constants |= {"ws": values(8) + 1, "ps": values(8, seed=4) + 1, "bias": values(8), "factor": values(8, 1, 1)}
    constants |= norm | {"summand": values(8, 1, 1, seed=5), "d": values(8, 4, 3, 3), "operand": values(1, 8, 8)}
    constants |= {"g": values(7, 8), "c": values(1, 7), "part": values(1, 3)}
    constants |= {"scale": values(8, seed=6), "shift": values(8, seed=7)}
    nodes = [
        node("DequantizeLinear", "w ws", "wf", axis=0),
        node("Conv", "x wf bias", "0"),
        node("BatchNormalization", "0 s o m v", "1", epsilon=1e-3),
        node("Mul", "1 factor", "2"),
        node("Add", "2 summand", "3"),
        node("ConvTranspose", "3 d bias", "4", group=2, pads=[1, 1, 1, 1]),
        node("Add", "4 summand", "5"),
        node("MaxPool", "5", "6", kernel_shape=[2, 2]),
        node("BatchNormalization", "6 s o m v", "7"),
        node("MaxPool", "7", "8", kernel_shape=[2, 2]),
        node("Mul", "8 operand", "9"),
        node("GlobalAveragePool", "9", "10"),
        node("Flatten", "10", "11"),
        node("Gemm", "11 g c", "12", transB=1, alpha=0.3, beta=1.7),
        node("DequantizeLinear", "p ps", "pf", axis=1),
        node("MatMul", "12 pf", "13"),
        node("LayerNormalization", "13 scale shift", "14"),
        node("Concat", "part 14 part", axis=1),
    ]
    given = write(made(nodes, {"x": (1, 3, 12, 12)}, constants, opset=21), tmp_path / "given.onnx")
    path = prepare_file(given, Preparation(), tmp_path / "ready.onnx")
    graph, _ = read_model(path)
    found = []
    for source in ("raw", "cached_read"):
        plan = planned(path, graph, sources=(source,), model_sha256=model_sha256(path))
        linked = write_linked(dnnl, path, plan, tmp_path / source)
        kinds = {step.kind for step in linked.steps if step.source == source}
        assert kinds >= {"conv", "deconv", "scale", "binary", "fc", "layer_norm", "concat"}
        with open_session(tmp_path / source) as session:
            found.append(session.run(random_inputs(graph))["y"].tobytes())
    assert found[0] == found[1]


STEPS = 14  # at least as many as the net has


def _check_timeline(plan: Plan, spans: list[Span], stealing: bool) -> None:
    by_core = defaultdict(list)
    for span in spans:
        assert span.start_ms <= span.end_ms
        by_core[span.core].append(span)
    for work in by_core.values():  # one thing at a time
        work.sort(key=lambda s: (s.start_ms, s.end_ms))
        assert all(a.end_ms <= b.start_ms for a, b in itertools.pairwise(work))
    executed = {s.layer: s for s in spans if s.stage == "execute"}
    assert sorted(executed) == list(range(len(plan.steps)))
    prepared = {k: max(s.end_ms for s in spans if s.layer == k and s.stage != "execute") for k in executed}
    for k, span in executed.items():
        assert prepared[k] <= span.start_ms
        assert k == 0 or executed[k - 1].end_ms <= span.start_ms
        if k >= plan.widen_from:
            assert max(prepared.values()) <= span.start_ms
    if not stealing:
        for core, planned in ((MAIN, plan.main), (0, plan.queues[0])):
            assert list(dict.fromkeys(s.layer for s in by_core[core] if s.stage != "execute")) == list(planned)


def _drawn(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(values, min_size=STEPS, max_size=STEPS)


@settings(max_examples=20 if MANY else 8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    plans=st.fixed_dictionaries(
        {
            "home": st.sampled_from(HOMES),
            "sources": _drawn(st.sampled_from(("raw", "cached_read", "cached_mmap"))),
            "picks": _drawn(st.integers(0, 9)),
            "queued": _drawn(st.booleans()),
            "widen_from": st.integers(0, STEPS),
        }
    ),
    stealing=st.booleans(),
    continuous=st.booleans(),
    warm=st.booleans(),
)
def test_any_plan_agrees_with_onnxruntime(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, plans: dict[str, Any], stealing: bool, continuous: bool, warm: bool
) -> None:
    """Also where later runs have kernels of their own."""
    inputs = random_inputs(graph)
    wanted = dict(zip(graph.outputs, onnxruntime_outputs(model, inputs), strict=True))
    plan, later = planned(model, graph, **plans), planned(model, graph, home=plans["home"])
    names = [later.implementations[i] for i in later.implementation] if warm else None
    with tempfile.TemporaryDirectory() as name:
        folder = build_plan_folder(dnnl, model, plan, Path(name), warm=names)
        with open_session(folder, fixed=not stealing, continuous=continuous) as session:
            for number in range(4):
                assert_close(session.run(inputs), wanted)
                if number == 1:
                    session.prepare_later()
            assert session.fact("checked") == 0
            _check_timeline(plan, spans_of(session), stealing)
            stages = session.stages_ms()
            assert set(stages) == {"open", "read", "create", "transform", "execute"}
            assert session.cold_ms >= stages["open"] > 0
            assert stages["execute"] > 0
            assert session.fact("widened") == plan.widen_from
