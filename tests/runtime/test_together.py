"""Several plans of memory in one process: one program within one budget, and right."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamed_models import MODELS, Streamed, streamed
from streamed_plans import OBJECTS, least, write_streamed_plan

from edgeplan.errors import InfeasibleError, InputError, ParamsError
from edgeplan.planning.memory import bounds
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import PlanFolder
from edgeplan.runtime.streaming.library_pages import runs_of
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.schedules import ScheduleFile
from edgeplan.runtime.streaming.together import TogetherSession, joined
from edgeplan.runtime.streaming.together_plan import plan_together, shared_bytes

Edgeplan = Callable[..., Any]
Models = list[tuple[Streamed, PlanFolder]]
NAMES = ("plain", "residual")
_MIB = 1 << 20


@pytest.fixture(scope="module")
def all_models(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Models:
    """Models of all kinds, rows of tables among them, and plans of them."""
    folder = tmp_path_factory.mktemp("together")
    found = [streamed(dnnl, name, folder, 8192) for name in MODELS]
    return [
        (model, write_streamed_plan(dnnl, model, folder / f"plan-{name}")) for model, name in zip(found, MODELS, strict=True)
    ]


@pytest.fixture(scope="module")
def models(all_models: Models) -> Models:
    """Two of them."""
    return all_models[: len(NAMES)]


def needed(models: Sequence[tuple[Streamed, PlanFolder]]) -> int:
    """The least budget of models in turns, by the bound: the largest step of any, and the objects of all."""
    return max(bounds.least_bytes(model.workload) for model, _ in models) + len(models) * OBJECTS


@pytest.mark.parametrize("more", [8192, 1 << 17, 8 << 20])
def test_models_run_in_turns_as_they_do_alone(dnnl: Dnnl, all_models: Models, tmp_path: Path, more: int) -> None:
    alone = []
    for model, _ in all_models:
        with model.session(dnnl, model.resident()) as session:
            alone.append(session.run(model.inputs))
    budget = needed(all_models) + more
    plans = plan_together([plan for _, plan in all_models], budget, tmp_path / "schedule")
    with TogetherSession(plans, tmp_path / "schedule", dnnl) as together:
        assert together.stream.schedule.arena_bytes + len(all_models) * OBJECTS <= budget
        together.stream.expect(3)
        for _ in range(3):
            for (model, _), expected in zip(all_models, alone, strict=True):
                assert together.run_taking(model.inputs, lambda _, view: bytes(view)) == expected
        kept = sum(together.staying)
    assert kept == sum(int(model.workload.weight_bytes.sum()) for model, _ in all_models) or more < 8 << 20


def test_what_one_of_them_refuses_leaves_the_turn_to_it(dnnl: Dnnl, models: Models, tmp_path: Path) -> None:
    plans = plan_together([plan for _, plan in models], needed(models) + _MIB, tmp_path / "schedule")
    (one, _), (other, _) = models
    with TogetherSession(plans, tmp_path / "schedule", dnnl) as together:
        expected = [together.run_taking(model.inputs, lambda _, view: bytes(view)) for model, _ in models]
        assert together.run_taking(one.inputs, lambda _, view: bytes(view)) == expected[0]
        with pytest.raises(InputError):
            together.run_taking({}, len)
        assert together.run_taking(other.inputs, lambda _, view: bytes(view)) == expected[1]
        together.run_taking(one.inputs, lambda *_: None)
        with pytest.raises(RuntimeError, match="lost"):  # a run that did not end: all begins anew, with the first model
            together.run_taking(other.inputs, _lose)
        assert together.run_taking(one.inputs, lambda _, view: bytes(view)) == expected[0]


def _lose(_: str, __: memoryview) -> None:
    raise RuntimeError("lost")


def test_a_budget_below_the_least_is_refused_with_it(models: Models, tmp_path: Path) -> None:
    least = needed(models)
    with pytest.raises(InfeasibleError, match=f"the least is {least / _MIB:.2f} MiB over idle") as refused:
        plan_together([plan for _, plan in models], least - 1, tmp_path / "schedule")
    assert "--budget" in (refused.value.next_step or "")
    assert refused.value.proven


def test_together_they_need_less_and_are_predicted_faster_than_with_shares(models: Models, tmp_path: Path) -> None:
    budget = sum(least(model) for model, _ in models) + _MIB // 4
    plan_together([plan for _, plan in models], budget, tmp_path / "schedule")
    together = stored_ms(tmp_path / "schedule", [plan for _, plan in models])
    shares = 0.0
    for model, plan in models:
        plan_together([plan], least(model) + _MIB // 8, tmp_path / "share")
        shares += stored_ms(tmp_path / "share", [plan])
    assert together < shares
    assert needed(models) < sum(least(model) for model, _ in models)


def stored_ms(path: Path, plans: Sequence[PlanFolder]) -> float:
    """The prediction of a schedule."""
    program = joined([plan.program_of(StreamProgram) for plan in plans]).program
    file = ScheduleFile(path, len(program.step_names), len(program.buffer_names), back_to_back=True)
    return file.stored[0].predicted_ms


@given(st.lists(st.integers(0, (1 << 12) - 1), min_size=1, max_size=4))
def test_pages_of_the_library_are_counted_once(masks: list[int]) -> None:
    needed = [{page for page in range(12) if mask >> page & 1} for mask in masks]
    assert shared_bytes([runs_of(pages) for pages in needed]) == 4096 * (sum(map(len, needed)) - len(set().union(*needed)))


def test_a_pipe_says_whose_turn_it_is(edgeplan: Edgeplan, models: Models, tmp_path: Path) -> None:
    pipe = tmp_path / "own"
    os.mkfifo(pipe)
    holder = os.open(pipe, os.O_RDWR)
    os.write(holder, b".")
    folder = str(models[0][1].path)
    found = edgeplan("run", folder, "--budget", "64MiB", "--repeat", "3", "--baton", f"{pipe},{pipe}")
    assert found.code == 0, found.err
    assert "(median of 3" in found.out
    assert os.read(holder, 8) == b"."
    os.close(holder)


def test_the_command_runs_plans_in_turns_and_checks_them(edgeplan: Edgeplan, models: Models) -> None:
    folders = [str(plan.path) for _, plan in models]
    found = edgeplan("run", *folders, "--budget", "64MiB", "--check", "--repeat", "2")
    assert found.code == 0, found.err
    assert found.out.count("largest difference from ONNX Runtime") == len(NAMES)
    assert re.search(r"together: [0-9.]+ ms \(median of 2, least [0-9.]+\), predicted [0-9.]+ ms", found.out)
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
    edgeplan: Edgeplan, models: Models, options: tuple[str, ...], where: str
) -> None:
    found = edgeplan("run", *(str(plan.path) for _, plan in models), *options)
    assert found.code == ParamsError.exit_code
    assert where in found.err


def test_one_plan_takes_budgets_of_its_own(edgeplan: Edgeplan, models: Models) -> None:
    found = edgeplan("run", str(models[0][1].path), "--budget", "64MiB")
    assert found.code == ParamsError.exit_code
    assert "--budgets" in found.err


def test_a_plan_of_another_kind_holds_no_budget(edgeplan: Edgeplan, models: Models, tmp_path: Path) -> None:
    cold = edgeplan("plan", "cold-start", str(models[0][0].model), "-o", str(tmp_path / "cold"), "--costs", "predicted")
    assert cold.code == 0, cold.err
    found = edgeplan("run", str(tmp_path / "cold"), str(models[0][1].path), "--budget", "64MiB")
    assert found.code == ParamsError.exit_code
    assert "holds no budget" in found.err
