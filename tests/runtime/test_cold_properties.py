"""Whatever a valid plan says, its outputs are ONNX Runtime's, and its timeline respects dependencies and cores."""

from __future__ import annotations

import itertools
import tempfile
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest
from cold_session_support import spans_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from depth import MANY
from edgeplan.engines.base import random_inputs
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.planning.machine import Span
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder

SOURCES = ("raw", "cached_read", "cached_mmap")
STEPS = 14  # at least as many as the net has


def _net() -> Graph:
    b = GraphBuilder("net", (1, 3, 18, 18))
    x = b.conv_bn(b.input, 20, 3, 2)
    y = b.conv_bn(x, 20, 3, groups=20, act="relu6")
    x = b.relu(b.add(b.conv_bn(y, 20, 1, act=""), x))
    x = b.concat([b.maxpool(x, 3, 1, 1), b.conv(x, 12, 1)])
    return b.build(b.softmax(b.fc(b.flatten(b.gap(x)), 9)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_onnx(_net(), tmp_path_factory.mktemp("model") / "net.onnx")


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
        core = {s.layer: s.core for s in spans if s.stage != "execute"}
        assert [core[k] for k in range(len(plan.steps))] == [plan.step(k).place for k in range(len(plan.steps))]


@settings(max_examples=20 if MANY else 8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    home=st.sampled_from(HOMES),
    sources=st.lists(st.sampled_from(SOURCES), min_size=STEPS, max_size=STEPS),
    picks=st.lists(st.integers(0, 9), min_size=STEPS, max_size=STEPS),
    queued=st.lists(st.booleans(), min_size=STEPS, max_size=STEPS),
    widen_from=st.integers(0, STEPS),
    stealing=st.booleans(),
    continuous=st.booleans(),
)
def test_any_plan_agrees_with_onnxruntime(
    dnnl: Dnnl,
    planned: Callable[..., Plan],
    model: Path,
    home: str,
    sources: list[str],
    picks: list[int],
    queued: list[bool],
    widen_from: int,
    stealing: bool,
    continuous: bool,
) -> None:
    graph = _net()
    inputs = random_inputs(graph)
    wanted = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(list(graph.outputs), inputs)
    plan = planned(model, graph, home=home, sources=sources, picks=picks, queued=queued, widen_from=widen_from)
    with tempfile.TemporaryDirectory() as name:
        folder = build_plan_folder(dnnl, model, plan, Path(name))
        with open_session(folder, fixed=not stealing, continuous=continuous) as session:
            for _ in range(3):
                found = session.run(inputs)
                for value, tensor in zip(wanted, graph.outputs, strict=True):
                    assert np.abs(found[tensor] - value).max() <= 1e-4 * np.abs(value).max()
            assert session.fact("checked") == 0
            _check_timeline(plan, spans_of(session), stealing)
