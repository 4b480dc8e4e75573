"""A change of the budget takes what is stored at once; what another process plans for all of the memory is taken later."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest
from streamed_models import Streamed, streamed
from streamed_plans import OBJECTS, least, middle, more, write_streamed_plan

from edgeplan.planning.memory import ladder
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import (
    SCHEDULES_NAME,
    PlanFolder,
)
from edgeplan.runtime.streaming import background
from edgeplan.runtime.streaming.anew import plan_anew
from edgeplan.runtime.streaming.background import BackgroundPlan
from edgeplan.runtime.streaming.memory_session import MemorySession
from edgeplan.runtime.streaming.phases import run_budgets
from edgeplan.runtime.streaming.schedules import ScheduleFile
from edgeplan.runtime.streaming.session import Schedule

LANE = "processes"  # see tests/conftest.py


@pytest.fixture(scope="module")
def model(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Streamed:
    """A model in small parts."""
    return streamed(dnnl, "plain", tmp_path_factory.mktemp("background"), 8192)


@pytest.fixture
def plan(dnnl: Dnnl, model: Streamed, tmp_path: Path) -> PlanFolder:
    """A plan with schedules for a small budget and for a middle one."""
    return write_streamed_plan(dnnl, model, tmp_path / "plan")


def _until_made(session: MemorySession) -> None:
    begun = session._anew
    assert begun is not None
    while not begun.is_made:
        time.sleep(0.01)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that others load, a process that gives way to all of them may take minutes."""
    monkeypatch.setattr(background, "_LOWEST_PRIORITY", 0)
    monkeypatch.setattr(os, "SCHED_IDLE", os.SCHED_OTHER)


def _read(path: Path, model: Streamed) -> tuple[float, Schedule]:
    program = model.built.program
    file = ScheduleFile(path, len(program.step_names), len(program.buffer_names), back_to_back=True)
    return file.stored[0].predicted_ms, file.schedule(file.stored[0])


def test_what_is_planned_anew_is_faster_and_keeps_what_stays(
    plan: PlanFolder, model: Streamed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ladder, "_MOVING", float("inf"))  # whatever keeping costs
    program = model.built.program
    stored = ScheduleFile(plan.path / SCHEDULES_NAME, len(program.step_names), len(program.buffer_names), back_to_back=True)
    before_ms, before = stored.stored[1].predicted_ms, stored.schedule(stored.stored[1])
    plan_anew(plan, more(model), tmp_path / "made")
    made_ms, made = _read(tmp_path / "made", model)
    assert made_ms < before_ms
    assert made.arena_bytes <= more(model) - OBJECTS
    stays = [k for k, until in enumerate(before.again) if until == k]
    assert stays
    assert [made.weight_offset[k] for k in stays] == [before.weight_offset[k] for k in stays]


def test_nothing_is_written_where_nothing_is_faster(plan: PlanFolder, model: Streamed, tmp_path: Path) -> None:
    plan_anew(plan, middle(model), tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_a_session_changes_to_the_better_plan_and_reads_only_what_is_new(dnnl: Dnnl, plan: PlanFolder, model: Streamed) -> None:
    inputs = {name: value.tobytes() for name, value in model.inputs.items()}
    with MemorySession(plan, dnnl) as session:
        expected = session.stream.run(inputs)
        stored_ms, _ = session.adapt(more(model))
        assert session.stream.run(inputs) == expected
        before = session.stream.schedule
        stays = sum(model.workload.weight_bytes[k] for k, until in enumerate(before.again) if until == k)
        assert stays > 0
        _until_made(session)
        better_ms = session.take_better()
        assert better_ms is not None
        assert better_ms < stored_ms
        assert not session.plans_anew
        assert session.stream.run(inputs) == expected
        assert session.stream.bytes_read <= int(model.workload.weight_bytes.sum()) - stays
        assert session.take_better() is None


def test_inferences_by_budget_say_from_when_on_the_better_plan_ran(dnnl: Dnnl, plan: PlanFolder, model: Streamed) -> None:
    inputs = {name: value.tobytes() for name, value in model.inputs.items()}

    def wait_once(name: str, view: memoryview) -> bytes:
        if session.plans_anew:
            _until_made(session)
        return name.encode() + bytes(view)

    with MemorySession(plan, dnnl) as session:
        phases, _, refused = run_budgets(session, inputs, 3, (more(model), middle(model)), wait_once)
    assert refused is None
    assert (phases[0].better_from, phases[1].better_ms) == (1, 0.0)
    assert 0 < phases[0].better_ms < phases[0].predicted_ms
    weights = int(model.workload.weight_bytes.sum())
    assert 0 < phases[0].read_bytes < 4 * weights


def test_a_budget_that_is_stored_or_leaves_nothing_to_read_is_not_planned_anew(
    dnnl: Dnnl, plan: PlanFolder, model: Streamed
) -> None:
    with MemorySession(plan, dnnl) as session:
        session.adapt(middle(model))
        assert not session.plans_anew
        session.adapt(more(model))
        assert session.plans_anew
        session.adapt(least(model))
        assert not session.plans_anew


def test_planning_that_is_killed_leaves_the_session_as_it_is(dnnl: Dnnl, plan: PlanFolder, model: Streamed) -> None:
    inputs = {name: value.tobytes() for name, value in model.inputs.items()}
    with MemorySession(plan, dnnl) as session:
        session.adapt(more(model))
        expected = session.stream.run(inputs)
        assert session._anew is not None
        os.kill(session._anew._process.pid, signal.SIGKILL)
        _until_made(session)
        assert session.take_better() is None
        assert session.stream.run(inputs) == expected
        assert not session.plans_anew


def test_closing_ends_the_planning(dnnl: Dnnl, plan: PlanFolder, model: Streamed) -> None:
    with MemorySession(plan, dnnl) as session:
        session.adapt(more(model))
        begun = session._anew
        assert isinstance(begun, BackgroundPlan)
    assert begun.is_made
    assert not begun.path.parent.exists()
