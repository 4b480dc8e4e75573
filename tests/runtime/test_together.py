"""Several plans of memory in one process: within one budget, split by what memory gains, and right."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamed_models import Streamed, streamed
from streamed_plans import least, middle, write_streamed_plan

from edgeplan.errors import InfeasibleError, ParamsError
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import PlanFolder
from edgeplan.runtime.streaming.together import TogetherSession, shares

Edgeplan = Callable[..., Any]
NAMES = ("plain", "residual")
_MIB = 1 << 20


@pytest.fixture(scope="module")
def models(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Streamed, PlanFolder]]:
    """Models, and plans of them."""
    folder = tmp_path_factory.mktemp("together")
    found = [streamed(dnnl, name, folder, 8192) for name in NAMES]
    return [
        (model, write_streamed_plan(dnnl, model, folder / f"plan-{name}")) for model, name in zip(found, NAMES, strict=True)
    ]


def test_a_budget_for_all_gives_each_its_fastest_schedule(models: list[tuple[Streamed, PlanFolder]]) -> None:
    plans = [plan for _, plan in models]
    found = shares(plans, sum(middle(model) for model, _ in models))
    assert [share.budget_bytes for share in found] == [middle(model) for model, _ in models]
    tight = sum(least(model) for model, _ in models)
    assert [share.budget_bytes for share in shares(plans, tight)] == [least(model) for model, _ in models]


def test_a_budget_below_the_sum_of_the_least_is_refused_with_it(models: list[tuple[Streamed, PlanFolder]]) -> None:
    tight = sum(least(model) for model, _ in models)
    with pytest.raises(InfeasibleError, match=f"= {tight / _MIB:.2f} MiB over idle") as refused:
        shares([plan for _, plan in models], tight - 1)
    assert "--budget" in (refused.value.next_step or "")


def test_models_run_in_turns_as_they_do_alone(dnnl: Dnnl, models: list[tuple[Streamed, PlanFolder]]) -> None:
    alone = []
    for model, _ in models:
        with model.session(dnnl, model.resident()) as session:
            alone.append(session.run(model.inputs))
    budget = sum(least(model) for model, _ in models) + _MIB // 4
    with TogetherSession([plan for _, plan in models], budget, dnnl) as together:
        assert sum(share.budget_bytes for share in together.shares) <= budget
        arenas = [session.stream.schedule.arena_bytes for session in together.sessions]
        assert sum(arenas) <= budget
        for session in together.sessions:
            session.stream.expect(3)
        for _ in range(3):
            for (model, _), session, expected in zip(models, together.sessions, alone, strict=True):
                assert session.stream.run(model.inputs) == expected


def test_the_command_runs_plans_in_turns_and_checks_them(edgeplan: Edgeplan, models: list[tuple[Streamed, PlanFolder]]) -> None:
    folders = [str(plan.path) for _, plan in models]
    found = edgeplan("run", *folders, "--budget", "64MiB", "--check", "--repeat", "2")
    assert found.code == 0, found.err
    assert found.out.count("largest difference from ONNX Runtime") == len(NAMES)
    assert re.search(r"together: [0-9.]+ ms predicted", found.out)
    assert "budget 64.00" in found.out


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ((), "--budget"),
        (("--budget", "64MiB", "--cold"), "--cold"),
        (("--budget", "64MiB", "--budgets", "1MiB,2MiB"), "--budgets"),
        (("--budget", "64MiB", "--output", "out.npz"), "--output"),
        (("--budget", "much"), "--budget"),
    ],
)
def test_options_of_one_plan_are_refused_for_several(
    edgeplan: Edgeplan, models: list[tuple[Streamed, PlanFolder]], options: tuple[str, ...], where: str
) -> None:
    found = edgeplan("run", *(str(plan.path) for _, plan in models), *options)
    assert found.code == ParamsError.exit_code
    assert where in found.err


def test_one_plan_takes_budgets_of_its_own(edgeplan: Edgeplan, models: list[tuple[Streamed, PlanFolder]]) -> None:
    found = edgeplan("run", str(models[0][1].path), "--budget", "64MiB")
    assert found.code == ParamsError.exit_code
    assert "--budgets" in found.err


def test_a_plan_of_another_kind_holds_no_budget(
    edgeplan: Edgeplan, models: list[tuple[Streamed, PlanFolder]], tmp_path: Path
) -> None:
    cold = edgeplan("plan", "cold-start", str(models[0][0].model), "-o", str(tmp_path / "cold"), "--costs", "predicted")
    assert cold.code == 0, cold.err
    found = edgeplan("run", str(tmp_path / "cold"), str(models[0][1].path), "--budget", "64MiB")
    assert found.code == ParamsError.exit_code
    assert "holds no budget" in found.err
