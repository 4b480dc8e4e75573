"""Kernels for later runs (the mode for continuous inference): when they are made, used and refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cold_session_support import assert_close, preparation_of, small_net, wait_while
from plan_folders import reserve_in

from edgeplan.engines.base import random_inputs
from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Graph
from edgeplan.planning.document import Plan
from edgeplan.runtime import cold_executor
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.preparation import Preparer

Planned = Callable[..., Plan]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_net()


def _with_later_kernels(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, widen_from: int) -> tuple[Path, list[str]]:
    """A plan folder that names other kernels for later runs than for the first, and the implementations of these."""
    plan, warm = planned(model, graph, picks=[1] * 40, widen_from=widen_from), planned(model, graph)
    names = [warm.implementations[i] for i in warm.implementation]
    return build_plan_folder(dnnl, model, plan, model.parent / "plan", warm=names), names


@pytest.mark.parametrize("continuous", [False, True])
def test_later_runs_use_their_own_kernels(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], continuous: bool
) -> None:
    folder, names = _with_later_kernels(dnnl, planned, graph, model, widen_from=-1)
    with ColdSession(dnnl, folder, threads=2, continuous=continuous) as session:
        assert_close(session.run(random_inputs(graph)), wanted)
        for _ in range(2):
            assert_close(session.run(random_inputs(graph)), wanted)
        assert not preparation_of(session).unfinished
        reserve = reserve_in(folder)
        expected = {k for k, step in enumerate(reserve.later) if step is not None}
        assert set(preparation_of(session).later) == expected
        assert {reserve.later[k].implementation for k in expected} <= set(names)  # type: ignore[union-attr]


def test_the_timeline_stays_when_later_kernels_are_prepared(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> None:
    folder, _ = _with_later_kernels(dnnl, planned, graph, model, widen_from=-1)
    with ColdSession(dnnl, folder, threads=2, stealing=False) as session:
        for _ in range(2):
            session.run(random_inputs(graph))
        spans = session.spans()
        assert preparation_of(session).later
        assert {s.layer for s in spans if s.stage != "execute"} == set(range(session.program.step_count))


def test_kernels_for_later_runs_are_prepared_between_runs(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray]
) -> None:
    folder, _ = _with_later_kernels(dnnl, planned, graph, model, widen_from=3)  # from there on no core is idle
    with ColdSession(dnnl, folder, threads=2, continuous=True) as session:
        session.run(random_inputs(graph))
        wait_while(lambda: preparation_of(session).working)
        assert preparation_of(session).later
        assert not preparation_of(session).unfinished
        before = dict(preparation_of(session).later)
        assert_close(session.run(random_inputs(graph)), wanted)
        assert preparation_of(session).later == before


def test_the_last_kernel_of_a_later_run_that_fails_between_runs_fails_the_next_one(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = build_plan_folder(dnnl, model, planned(model, graph, widen_from=3), model.parent / "plan")
    reserve = reserve_in(folder)
    *_, last = (k for k, step in enumerate(reserve.later) if step is not None)
    real = Preparer.prepare

    def failing(self: Preparer, index: int, *given: Any) -> int:
        if index == last:
            raise DeviceError("no such kernel")
        return real(self, index, *given)

    monkeypatch.setattr(Preparer, "prepare", failing)
    with ColdSession(dnnl, folder, threads=2, continuous=True) as session:
        session.run(random_inputs(graph))
        wait_while(lambda: preparation_of(session).working)
        assert not preparation_of(session).unfinished
        for _ in range(2):
            with pytest.raises(DeviceError, match="no such kernel"):
                session.run(random_inputs(graph))


def test_the_first_outputs_do_not_wait_for_kernels_of_later_runs(
    dnnl: Dnnl,
    planned: Planned,
    graph: Graph,
    model: Path,
    wanted: Mapping[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = build_plan_folder(dnnl, model, planned(model, graph, widen_from=3), model.parent / "plan")
    gate = threading.Event()
    asked: list[int] = []
    real = cold_executor.read_reserve

    def late(*given: Any) -> Any:
        asked.append(threading.get_ident())
        gate.wait(20)
        return real(*given)

    monkeypatch.setattr(cold_executor, "read_reserve", late)
    with ColdSession(dnnl, folder, threads=2, continuous=True) as session:
        assert_close(session.run(random_inputs(graph)), wanted)
        wait_while(lambda: not asked, 20)
        assert preparation_of(session).working
        gate.set()
        assert_close(session.run(random_inputs(graph)), wanted)
    assert threading.get_ident() not in asked
    assert len(asked) == 1


def test_no_kernel_of_a_later_run_is_begun_before_the_first_outputs(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path
) -> None:
    """Where execution widens, it would wait for it."""
    folder = build_plan_folder(dnnl, model, planned(model, graph, widen_from=5), model.parent / "plan")
    asked: list[bool] = []

    class Late(ColdSession):
        def _run_cold(self) -> None:
            wait_while(lambda: preparation_of(self).working)  # the lane steals all there is to prepare
            super()._run_cold()
            asked.append(bool(preparation_of(self).later))

    with Late(dnnl, folder, threads=2, continuous=True) as session:
        session.run(random_inputs(graph))
        wait_while(lambda: preparation_of(session).unfinished)
        assert asked == [False]
        assert preparation_of(session).later
