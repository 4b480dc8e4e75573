"""The front of a model: which plans it holds, which it leaves out, and what `edgeplan plan MODEL` writes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamed_models import plain_model

from edgeplan import plan_memory
from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.first import least_for_first
from edgeplan.cli.front import first_lines
from edgeplan.errors import InfeasibleError, ParamsError
from edgeplan.front import COLD, CONTINUOUS, MEMORY, Front, FrontPlan, PlanForGoal, plan_front
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import COLD_START, read_folder
from edgeplan.runtime.folder import MEMORY as MEMORY_PLAN
from edgeplan.runtime.streaming.memory_session import MemoryPrediction, MemorySchedule

Edgeplan = Callable[..., Any]


def _plan(first: float, later: float, peak: int, kind: str = COLD) -> FrontPlan:
    return FrontPlan(kind, first, later, first, peak, 0, ("cold-start",))


COSTS = st.tuples(*[st.integers(1, 6)] * 3)


@given(COSTS, COSTS, COSTS)
def test_to_beat_is_a_strict_order(a: tuple[int, int, int], b: tuple[int, int, int], c: tuple[int, int, int]) -> None:
    one, two, three = (_plan(*costs) for costs in (a, b, c))
    assert not one.beats(one)
    assert not (one.beats(two) and two.beats(one))
    assert not (one.beats(two) and two.beats(three)) or one.beats(three)
    assert one.beats(two) == (a != b and all(x <= y for x, y in zip(a, b, strict=True)))


def test_goals_choose_within_the_budget() -> None:
    fast, steady = _plan(1.0, 9.0, 30), _plan(2.0, 3.0, 40, CONTINUOUS)
    wide, small = (replace(_plan(first, 4.0, peak, MEMORY), budget_bytes=peak) for first, peak in ((5.0, 20), (6.0, 10)))
    front = Front("net.onnx", (fast, steady, wide, small), (), (), 0.0)
    assert [front.best(goal) for goal in ("first", "steady", "both")] == [fast, steady, steady]
    assert front.best("first", 100) == wide  # others hold no budget
    assert front.best("steady", 19) == front.best("both", 10) == small
    with pytest.raises(InfeasibleError, match="the least is"):
        front.best("first", 9)


@pytest.fixture(scope="module")
def model(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's file."""
    assert dnnl.info.version  # where the library is not there, what needs plans is skipped
    return save_onnx(plain_model(), tmp_path_factory.mktemp("front") / "plain.onnx")


@pytest.fixture(scope="module")
def front(model: Path) -> Front:
    """Its front, where a pair was asked for that is not there."""
    return plan_front(model, pair="pair-nowhere")


def test_no_plan_of_a_front_beats_another_and_each_left_out_is_beaten(front: Front) -> None:
    assert front.plans
    assert {plan.kind for plan in front.plans + front.beaten} >= {COLD, MEMORY}
    assert not [(a, b) for a in front.plans for b in front.plans if a.beats(b)]
    assert all(any(other.beats(plan) for other in front.plans) for plan in front.beaten)
    for plan in front.plans:
        assert 0 < plan.bound_ms <= 1.001 * (plan.later_ms if plan.kind == MEMORY else plan.first_ms)
        assert plan.peak_bytes > 0


def test_the_command_writes_what_runs_for_a_goal_or_a_budget(
    edgeplan: Edgeplan, model: Path, front: Front, tmp_path: Path
) -> None:
    fast = edgeplan("plan", str(model), "-o", str(tmp_path / "fast"))
    assert fast.code == 0, fast.err
    assert "memory plain.onnx --budget" in " ".join(fast.out.split())
    assert read_folder(tmp_path / "fast").kind == COLD_START
    enough = min(plan.budget_bytes for plan in front.plans if plan.kind == MEMORY) // MIB + 2
    small = edgeplan("plan", str(model), "-o", str(tmp_path / "small"), "--for", "steady", "--budget", f"{enough}MiB")
    assert small.code == 0, small.err
    assert read_folder(tmp_path / "small").kind == MEMORY_PLAN
    assert edgeplan("run", str(tmp_path / "small"), "--check").code == 0


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--for", "steady"), "--output"),
        (("--budget", "10MiB"), "--output"),
        (("--budget", "10%", "-o", "plan"), "--budget"),
        (("--budget", "ten", "-o", "plan"), "--budget"),
    ],
)
def test_goals_without_a_folder_and_budgets_that_are_none_are_refused(
    edgeplan: Edgeplan, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found = edgeplan("plan", str(model), *options)
    assert found.code == ParamsError.exit_code
    assert f"where: {where}" in found.err
    assert not (tmp_path / "plan").exists()


def test_a_pair_that_is_not_there_leaves_the_other_plans(front: Front) -> None:
    assert front.plans
    assert any("no plan of pair-nowhere" in line for line in front.about)


def test_a_word_that_is_no_file_is_no_model(edgeplan: Edgeplan) -> None:
    found = edgeplan("plan", "memroy")
    assert found.code == 2
    assert "memory" in found.err + found.out


def test_a_first_inference_is_planned_within_a_budget_and_told(edgeplan: Edgeplan, model: Path, tmp_path: Path) -> None:
    folder, picture = tmp_path / "first", tmp_path / "front.svg"
    made = edgeplan("plan", str(model), "-o", str(folder), "--for", "both", "--budget", "24MiB", "--front", str(picture))
    assert made.code == 0, made.err
    assert "first inference" in made.out
    assert picture.read_text().lstrip().startswith("<?xml")
    plan = read_folder(folder)
    schedule, prediction = plan.scheduled(MemorySchedule), plan.predicted(MemoryPrediction)
    assert schedule.first is not None
    assert schedule.first.placed.arena_bytes <= 24 * MIB
    assert 0 < prediction.first_bound_ms <= prediction.first_ms * 1.000001
    ran = edgeplan("run", str(folder), "--check", "--repeat", "3")
    assert ran.code == 0, ran.err
    assert "from opening the plan to the outputs" in ran.out
    peak = re.search(r"([0-9.]+) over the [0-9.]+ of the idle process, budget 24.00", ran.out)
    assert peak
    assert float(peak[1]) <= 24.0
    again = edgeplan("run", str(folder), "--budgets", "24MiB")  # kernels are made before it then
    assert again.code == 0, again.err


def test_the_first_inference_gives_way_where_the_budget_has_no_room_for_it(model: Path, tmp_path: Path) -> None:
    with pytest.raises(InfeasibleError) as refused:
        plan_memory(model, tmp_path / "none", MIB, first="first")
    least = int(re.findall(r"--budget (\d+)MiB", refused.value.next_step or "")[0])
    made = plan_memory(model, tmp_path / "least", f"{least}MiB", first="first")
    needs = least_for_first(made.candidate)
    told = first_lines(PlanForGoal(made.folder, _plan(1.0, 1.0, 1, MEMORY), None, needs))
    assert "gives way" in told[0]
    assert f"{needs / MIB:.2f} MiB" in told[0]
    assert (made.first is None) == (read_folder(made.folder).scheduled(MemorySchedule).first is None)


def test_a_budget_and_a_pair_contradict_each_other(edgeplan: Edgeplan, model: Path, tmp_path: Path) -> None:
    found = edgeplan("plan", str(model), "-o", str(tmp_path / "plan"), "--budget", "24MiB", "--pair", "pair-pocl")
    assert found.code == ParamsError.exit_code
    assert "where: --budget, --pair" in found.err


def test_a_first_inference_is_not_planned_within_a_total_budget(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ParamsError, match="over the idle process"):
        plan_memory(model, tmp_path / "total", "64MiB", total=True, first="both")
