"""What `edgeplan plan MODEL` shows was run, and its rows are written by the commands that they name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamed_models import plain_model

from edgeplan.cli.front import print_front
from edgeplan.errors import ParamsError
from edgeplan.front import COLD, CONTINUOUS, MEMORY, STOCK, Front, FrontPlan, plan_front
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import COLD_START, read_folder

Edgeplan = Callable[..., Any]


def _plan(first: float, later: float, peak: int, kind: str = COLD) -> FrontPlan:
    return FrontPlan(kind, 1, first, later, peak, 0, ("cold-start",))


def test_goals_choose_among_all_plans() -> None:
    fast, steady, small = _plan(1.0, 9.0, 30), _plan(2.0, 3.0, 40, CONTINUOUS), _plan(1.5, 3.05, 20, MEMORY)
    front = Front("net.onnx", (fast, small, steady), _plan(0.5, 0.5, 10, STOCK), (), 0.0)
    assert [front.best(goal) for goal in ("first", "steady", "both")] == [fast, steady, small]


@pytest.fixture(scope="module")
def model(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's file."""
    assert dnnl.info.version  # where the library is not there, what needs plans is skipped
    return save_onnx(plain_model(), tmp_path_factory.mktemp("front") / "plain.onnx")


@pytest.fixture(scope="module")
def front(model: Path) -> Front:
    """Its front, where a pair was asked for that is not there."""
    return plan_front(model, pair="pair-nowhere")


def test_each_plan_ran_and_what_its_budget_is_was_granted(front: Front) -> None:
    assert {plan.kind for plan in front.plans} >= {COLD, MEMORY}
    assert front.stock.kind == STOCK
    ways = (front.stock, *front.plans)
    # of each the least: threads that wait for one another are slow beside other work
    assert min(way.first_ms for way in ways) > min(way.later_ms for way in ways) > 0, (
        "a whole process is more than an inference"
    )
    for plan in ways:
        assert plan.peak_bytes > plan.budget_bytes
        assert (plan.kind == MEMORY) == (plan.budget_bytes > 0) == (plan.arguments[:1] == ("memory",))


def test_rows_are_written_by_the_commands_that_are_shown(
    edgeplan: Edgeplan,
    front: Front,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    print_front(front, [str(model), "--batch", "1"], ("--device", "cpu-onednn"))
    shown = re.findall(r"edgeplan plan (\S+) (.* -o plan)", capsys.readouterr().out)
    assert len(shown) == len(front.plans)
    for kind, words in shown:
        written = edgeplan("plan", kind, *shlex.split(words), folder=tmp_path)
        assert written.code == 0, written.err
        assert edgeplan("run", "plan", "--check", folder=tmp_path).code == 0


def test_the_command_writes_what_runs_for_a_goal(edgeplan: Edgeplan, model: Path, tmp_path: Path) -> None:
    fast = edgeplan("plan", str(model), "-o", str(tmp_path / "fast"))
    assert fast.code == 0, fast.err
    assert "ONNX Runtime" in fast.out
    assert read_folder(tmp_path / "fast").kind in {COLD_START, "memory"}
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
