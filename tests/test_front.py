"""The front of a model: which plans it holds, which it leaves out, and what `edgeplan plan MODEL` writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamed_models import plain_model

from edgeplan.errors import ParamsError
from edgeplan.front import COLD, CONTINUOUS, MEMORY, Front, FrontPlan, plan_front
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import COLD_START, read_folder

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


def test_goals_choose_among_all_plans() -> None:
    fast, steady, small = _plan(1.0, 9.0, 30), _plan(2.0, 3.0, 40, CONTINUOUS), _plan(5.0, 4.0, 20, MEMORY)
    front = Front("net.onnx", (fast, steady, small), (), (), 0.0)
    assert [front.best(goal) for goal in ("first", "steady", "both")] == [fast, steady, steady]


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


def test_the_command_writes_and_draws_what_runs_for_a_goal(edgeplan: Edgeplan, model: Path, tmp_path: Path) -> None:
    picture = tmp_path / "front.svg"
    fast = edgeplan("plan", str(model), "-o", str(tmp_path / "fast"), "--front", str(picture))
    assert fast.code == 0, fast.err
    assert picture.read_text().lstrip().startswith("<?xml")
    assert "memory plain.onnx --budget" in " ".join(fast.out.split())
    assert read_folder(tmp_path / "fast").kind == COLD_START
    assert edgeplan("run", str(tmp_path / "fast"), "--check").code == 0


@pytest.mark.parametrize(
    ("options", "where"),
    [
        (("--for", "steady"), "--output"),
        (("--for", "both", "--budget", "10MiB", "-o", "plan"), "--budget"),
    ],
)
def test_goals_without_a_folder_and_budgets_are_refused(
    edgeplan: Edgeplan, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], where: str
) -> None:
    monkeypatch.chdir(tmp_path)
    found = edgeplan("plan", str(model), *options)
    assert found.code == ParamsError.exit_code
    assert f"where: {where}" in found.err
    assert where != "--budget" or f"edgeplan plan memory {model} --budget 10MiB -o plan" in found.err
    assert not (tmp_path / "plan").exists()


def test_a_pair_that_is_not_there_leaves_the_other_plans(front: Front) -> None:
    assert front.plans
    assert any("no plan of pair-nowhere" in line for line in front.about)


def test_a_word_that_is_no_file_is_no_model(edgeplan: Edgeplan) -> None:
    found = edgeplan("plan", "memroy")
    assert found.code == 2
    assert "memory" in found.err + found.out
