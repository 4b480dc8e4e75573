"""Plan folders built and executed: agreement with ONNX Runtime, the schedule as planned, stealing, refusals."""

from __future__ import annotations

import _thread
import errno
import gc
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from cold_session_support import assert_close, kernels_made, preparation_of, shared_of, small_net, started_ns, wait_while
from plan_folders import tape_in

from edgeplan.engines.base import random_inputs
from edgeplan.errors import FormatError, ModelError
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.document import Plan
from edgeplan.runtime import cold_executor, lanes, raw_weights
from edgeplan.runtime.cold_executor import ColdSession
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.native import entries, words
from edgeplan.runtime.plan_folder import build_plan_folder
from edgeplan.runtime.preparation import Shared
from edgeplan.runtime.program import default_program
from edgeplan.runtime.session import SequentialSession
from edgeplan.zoo.cold_start_models import COLD_START_MODELS

Planned = Callable[..., Plan]


@pytest.fixture(scope="module")
def graph() -> Graph:
    return small_net()


@pytest.fixture
def files_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lanes begin once files are open: no kernel is made ahead, and each step is prepared in one go."""
    start, look = lanes.LanePreparation.start, ColdSession._read_ahead

    def begin(self: ColdSession) -> None:
        look(self)
        start(self._preparation)

    monkeypatch.setattr(lanes.LanePreparation, "start", lambda _: None)
    monkeypatch.setattr(ColdSession, "_read_ahead", begin)


@pytest.mark.usefixtures("files_first")
def test_the_schedule_is_the_planned_one(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> None:
    plan = planned(model, graph, widen_from=5)
    folder = build_plan_folder(dnnl, model, plan, model.parent / "plan")
    with ColdSession(dnnl, folder, threads=2, stealing=False) as session:
        session.run(random_inputs(graph))
        spans = session.spans()
        stages = session.stages_ms()
    prepared = {core: [s.layer for s in spans if s.core == core and s.stage != "execute"] for core in ("main", "prepare:0")}
    assert [k for k, _ in itertools.groupby(prepared["main"])] == list(plan.main)
    assert [k for k, _ in itertools.groupby(prepared["prepare:0"])] == list(plan.queues[0])
    executed = [s.layer for s in sorted(spans, key=lambda s: s.start_ms) if s.stage == "execute" and s.core == "main"]
    assert executed == list(range(len(plan.steps)))
    assert [s.layer for s in spans if s.stage == "execute" and s.core == "prepare:0"] == executed[5:]
    assert set(stages) == {"open", "read", "create", "transform", "execute"}
    assert stages["execute"] > 0


class _WeightsOnTheirWay:
    """Stands for a disk that brings nothing before all kernels are made, and then, after a while, everything."""

    def __init__(self, shared: Shared, kernels: int) -> None:
        flags = shared.objects.store.flags
        flags[words.ARRIVED] = 0
        self.arrived_ns = 0

        def bring() -> None:
            wait_while(lambda: kernels_made(shared) < kernels)
            time.sleep(0.02)
            self.arrived_ns = time.perf_counter_ns()
            flags[words.ARRIVED] = shared.program.step_count

        self._thread = threading.Thread(target=bring)
        self._thread.start()

    def end(self) -> None:
        self._thread.join()


@pytest.mark.parametrize("stealing", [True, False])
def test_kernels_are_made_while_weights_are_on_their_way(
    dnnl: Dnnl,
    planned: Planned,
    graph: Graph,
    model: Path,
    wanted: Mapping[str, np.ndarray],
    stealing: bool,
) -> None:
    plan = planned(model, graph, widen_from=-1)
    folder = build_plan_folder(dnnl, model, plan, model.parent / "plan")
    with ColdSession(dnnl, folder, threads=2) as session:
        session.run(random_inputs(graph))
        kernels = kernels_made(shared_of(session))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cold_executor, "reading_ahead", lambda shared, _: _WeightsOnTheirWay(shared, kernels))
        with ColdSession(dnnl, folder, threads=2, stealing=stealing) as session:
            assert_close(session.run(random_inputs(graph)), wanted)
            spans, on_their_way = session.spans(), session._reader
    assert isinstance(on_their_way, _WeightsOnTheirWay)
    for core, own in (("main", plan.main), ("prepare:0", plan.queues[0])) if not stealing else ():
        first = min(s.start_ms for s in spans if s.core == core and s.stage == "read")
        assert first * 1e6 + started_ns(session) >= on_their_way.arrived_ns, "weights are not touched before they have come"
        assert set(own) <= {s.layer for s in spans if s.core == core and s.stage == "create" and s.start_ms < first}


def test_an_idle_core_takes_what_others_have_not_begun(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> None:
    """The only preparing core is held up at its first step: the main core prepares the rest itself."""
    count = len(planned(model, graph).steps)
    plan = planned(model, graph, queued=[k > 0 for k in range(count)], widen_from=-1)
    folder = build_plan_folder(dnnl, model, plan, model.parent / "plan")
    held = threading.Event()
    real = lanes.LanePreparation._prepare_all

    def slow(self: lanes.LanePreparation, lane: lanes.Lane) -> None:
        store = self._objects.store
        if lane.number == 1:
            k = entries.take(self._objects.context, lane.number, stealing=False)
            held.set()
            wait_while(lambda: (store.items[words.FIRST :: words.ITEM_WORDS] == 0).sum() > 1)
            self._objects.publish(k, lane.preparer.take_over(k, lane.by_hand))
        real(self, lane)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lanes.LanePreparation, "_prepare_all", slow)
        with ColdSession(dnnl, folder, threads=2) as session:
            assert held.wait(60)
            session.run(random_inputs(graph))
            by_main = {s.layer for s in session.spans() if s.core == "main" and s.stage != "execute"}
    assert count - 1 in by_main
    assert len(by_main) >= count - 2


def test_kernels_are_made_before_files_are_open(
    dnnl: Dnnl,
    planned: Planned,
    graph: Graph,
    model: Path,
    wanted: Mapping[str, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = build_plan_folder(dnnl, model, planned(model, graph, widen_from=0), model.parent / "plan")
    made: list[int] = []
    opened_ns: list[int] = []
    real = Shared.open_files

    def late(self: Shared) -> None:
        if self.objects.store.flags[words.ARRIVED] == 0:
            wait_while(lambda: not kernels_made(self), 20)
            made.append(kernels_made(self))
            opened_ns.append(time.perf_counter_ns())
        real(self)

    monkeypatch.setattr(Shared, "open_files", late)
    with ColdSession(dnnl, folder, threads=2) as session:
        assert_close(session.run(random_inputs(graph)), wanted)
        fetched = [s.start_ms * 1e6 + started_ns(session) for s in session.spans() if s.stage == "read"]
    assert made[0] > 0
    assert min(fetched) >= opened_ns[0]


def test_a_start_that_is_refused_ends_its_threads(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> None:
    folder = build_plan_folder(dnnl, model, planned(model, graph), model.parent / "plan")

    def held() -> tuple[int, float, bool, int]:
        return _thread._count(), sys.getswitchinterval(), gc.isenabled(), len(list(Path("/proc/self/fd").iterdir()))

    gc.collect()  # what tests before left
    before = held()
    (folder / "plan.json").write_text("{}")
    for _ in range(3):
        with pytest.raises(FormatError, match="has another format"):
            ColdSession(dnnl, folder, threads=2)
        gc.collect()
        assert held() == before


def test_equal_steps_share_primitives(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> None:
    folder = build_plan_folder(dnnl, model, planned(model, graph), model.parent / "plan")
    tape = tape_in(folder).tape
    called = []
    for start in tape.record_starts.tolist():
        groups, slots, calls = tape.records[start + words.HEAD_GROUPS : start + words.HEAD_BLOCK].tolist()
        called += tape.records[start + words.HEAD + groups + 2 * slots :][: calls > 0].tolist()
    assert len(set(called)) < len(called)


@pytest.mark.usefixtures("files_first")
@pytest.mark.parametrize("source", ["raw", "cached_read", "cached_mmap"])
def test_asymmetric_cores_wait(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, wanted: Mapping[str, np.ndarray], source: str
) -> None:
    plan = planned(model, graph, sources=[source], widen_from=-1, equal_cores=False, little_ratio=40.0, threads=1)
    folder = build_plan_folder(dnnl, model, plan, model.parent / "plan")
    with ColdSession(dnnl, folder, threads=1, stealing=False) as session:
        assert_close(session.run(random_inputs(graph)), wanted)
        lane = preparation_of(session).marks[1]
    by_step = {k: [m for m in lane if m[1] == k] for k in plan.queues[0]}
    for marks in by_step.values():
        work = sum(end - start for _, _, start, end in marks[:-1]) if len(marks) > 1 else 1
        assert marks[-1][3] - marks[0][2] >= 40 * work


def test_the_interpreter_is_left_as_it_was(dnnl: Dnnl, planned: Planned, graph: Graph, model: Path) -> None:
    before = (sys.getswitchinterval(), gc.isenabled(), os.sched_getaffinity(0))
    folder = build_plan_folder(dnnl, model, planned(model, graph, widen_from=3), model.parent / "plan")
    cores = tuple(sorted(before[2]))[:2]
    with ColdSession(dnnl, folder, threads=2, cores=cores if len(cores) == 2 else ()) as session:
        session.run(random_inputs(graph))
        assert (sys.getswitchinterval(), gc.isenabled(), os.sched_getaffinity(0)) == before
    with ColdSession(dnnl, folder, threads=2):
        pass  # closed without a run
    assert (sys.getswitchinterval(), gc.isenabled(), os.sched_getaffinity(0)) == before
    (folder / "program.json").unlink()
    with pytest.raises(FormatError):
        ColdSession(dnnl, folder, threads=2)
    assert gc.isenabled() == before[1]


def test_a_session_whose_cold_start_failed_says_so_again(
    dnnl: Dnnl, planned: Planned, graph: Graph, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that failed was taken and never published: a second run would wait for it for ever."""
    folder = build_plan_folder(dnnl, model, planned(model, graph, sources=["raw"], widen_from=0), model.parent / "plan")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with ColdSession(dnnl, folder, threads=2) as session:
        monkeypatch.setattr(raw_weights, "read_fully", fail)
        with pytest.raises(ModelError, match=r"^cannot read the weights"):
            session.run(random_inputs(graph))
        monkeypatch.undo()
        for _ in range(2):
            with pytest.raises(ModelError, match="the cold start of this session failed: cannot read the weights"):
                session.run(random_inputs(graph))
    with ColdSession(dnnl, folder, threads=2) as session:
        session.run(random_inputs(graph))


def test_layouts_that_depend_on_threads(dnnl: Dnnl, planned: Planned, tmp_path: Path) -> None:
    """An LSTM's weights lie otherwise for one thread than for two: each step is made for the threads that execute it."""
    graph = COLD_START_MODELS["crnn_lite"]()
    model = save_onnx(graph, tmp_path / "m.onnx")
    wanted = SequentialSession(dnnl, default_program(dnnl, model, graph, "nchw"), tmp_path).run(random_inputs(graph))
    for widen in (0, -1):
        dnnl.set_threads(2)
        folder = build_plan_folder(dnnl, model, planned(model, graph, widen_from=widen), tmp_path / f"plan{widen}")
        with ColdSession(dnnl, folder, threads=2) as session:
            for _ in range(2):
                assert_close(session.run(random_inputs(graph)), wanted)
