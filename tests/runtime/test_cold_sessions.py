"""Plan folders of cold starts, built and opened: the schedule as planned, kernels of later runs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from cold_session_support import assert_close, small_net, spans_of

from edgeplan.engines.base import random_inputs
from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import CACHE_NAME
from edgeplan.runtime.native_session import open_session
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

Planned = Callable[..., Plan]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_net()


def test_the_schedule_is_the_planned_one(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> None:
    plan = planned(model, graph, widen_from=5)
    folder = build_plan_folder(dnnl, model, plan, model.parent / "plan")
    with open_session(folder, fixed=True) as session:
        session.run(random_inputs(graph))
        spans, stages = spans_of(session), session.stages_ms()
        assert session.fact("widened") == 5
        assert session.cold_ms >= stages["open"] > 0
    prepared = {core: [s.layer for s in spans if s.core == core and s.stage != "execute"] for core in ("main", "prepare:0")}
    assert list(dict.fromkeys(prepared["main"])) == list(plan.main)
    assert list(dict.fromkeys(prepared["prepare:0"])) == list(plan.queues[0])
    executed = sorted((s for s in spans if s.stage == "execute"), key=lambda s: s.start_ms)
    assert [s.layer for s in executed] == list(range(len(plan.steps)))
    assert set(stages) == {"open", "read", "create", "transform", "execute"}
    assert stages["execute"] > 0


@pytest.mark.parametrize("source", ["raw", "cached_read", "cached_mmap"])
def test_asymmetric_cores_wait(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], source: str
) -> None:
    plan = planned(model, graph, sources=[source], widen_from=-1, equal_cores=False, little_ratio=40.0, threads=1)
    folder = build_plan_folder(dnnl, model, plan, model.parent / "plan")
    with open_session(folder, fixed=True) as session:
        assert_close(session.run(random_inputs(graph)), wanted)
        lane = sorted((s for s in spans_of(session) if s.core == "prepare:0"), key=lambda s: s.start_ms)
    for _, one in itertools.groupby(lane, lambda s: s.layer):
        *work, last = one  # the last one of a step is prolonged
        assert last.end_ms - last.start_ms >= 39 * sum(s.end_ms - s.start_ms for s in work)


def test_a_session_whose_cold_start_failed_says_so_again(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> None:
    """The step that failed was taken and never published: a second run would wait for it for ever."""
    folder = build_plan_folder(dnnl, model, planned(model, graph, widen_from=0), model.parent / "plan")
    cache = folder / CACHE_NAME
    content = cache.read_bytes()
    cache.write_bytes(bytes(byte ^ 1 for byte in content))
    with open_session(folder) as session:
        for _ in range(3):
            with pytest.raises(ModelError, match="the weights are damaged"):
                session.run(random_inputs(graph))
    cache.write_bytes(content)
    with open_session(folder) as session:
        session.run(random_inputs(graph))
        assert session.fact("checked") == 1


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


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("widen_from", [3, -1])
@pytest.mark.parametrize("sources", [("cached_mmap",), ("cached_read", "raw")])
def test_later_runs_have_their_own_kernels(
    dnnl: Dnnl,
    planned: Planned,
    graph: Graph,
    model: Path,
    wanted: Mapping[str, np.ndarray],
    continuous: bool,
    widen_from: int,
    sources: tuple[str, ...],
) -> None:
    plan = planned(model, graph, sources=sources, picks=[1] * 40, widen_from=widen_from)
    warm = planned(model, graph)
    names = [warm.implementations[i] for i in warm.implementation]
    folder = build_plan_folder(dnnl, model, plan, model.parent / "plan", warm=names)
    with open_session(folder, continuous=continuous) as session:
        assert session.continuous is continuous
        for number in range(4):
            assert_close(session.run(random_inputs(graph)), wanted)
            if number == 1:
                session.prepare_later()
        assert {s.layer for s in spans_of(session) if s.stage != "execute"} == set(range(len(plan.steps)))
