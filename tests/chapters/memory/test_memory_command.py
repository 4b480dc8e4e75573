"""`edgeplan plan memory` and `edgeplan run` of its plans: what they do, what they refuse, what is left when they end early."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from plan_folders import body_of
from streamed_models import plain_model, residual_model, streamed

from edgeplan import plan_memory
from edgeplan.chapters.memory.api import held_by_use
from edgeplan.chapters.memory.budget import Budget
from edgeplan.chapters.memory.folders import RunCores
from edgeplan.chapters.memory.programs import ModelPrograms
from edgeplan.errors import InfeasibleError, ModelError, ParamsError, StoreError
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process import memory_group as memory_groups
from edgeplan.measurement.process.memory_group import memory_group
from edgeplan.planning.memory.document import MemoryUse
from edgeplan.planning.memory.quick import Mode
from edgeplan.planning.memory.workload import least_bytes
from edgeplan.profiling.streaming import RunSettings, run_apart
from edgeplan.runs import run
from edgeplan.runtime.bands import Region
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.program_file import PROGRAM_BIN, read_head
from edgeplan.support.workers import ColdRunError

Edgeplan = Callable[..., Any]
_MIB = 1 << 20
_ENOUGH = "64MiB"
_MORE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") + 1
_OPTIONS = (("plan", "--budget"), ("plan", "--max-slowdown"), ("run", "--budgets"))
_NO_BUDGETS = [(*option, text) for option in _OPTIONS for text in ("-3MB", "nan")]
_TOO_MUCH = "a budget of .* MiB is more than the .* MiB that are left"


@pytest.fixture(scope="module")
def place(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a plan of it."""
    assert dnnl.info.version  # where the library is not there, what needs plans is skipped
    folder = tmp_path_factory.mktemp("memory")
    save_onnx(plain_model(), folder / "plain.onnx")
    plan_memory(folder / "plain.onnx", folder / "plan", _ENOUGH)
    return folder


@pytest.fixture
def plan(place: Path, tmp_path: Path) -> Path:
    """A copy of the plan, to be damaged."""
    return Path(shutil.copytree(place / "plan", tmp_path / "plan"))


def _peak(out: str) -> float:
    found = re.search(r"measured peak\s+([\d.]+) MiB", out)
    assert found, out
    return float(found[1])


@pytest.mark.usefixtures("dnnl")
def test_plan_and_run_by_commands(edgeplan: Edgeplan, tmp_path: Path) -> None:
    save_onnx(residual_model(), tmp_path / "net.onnx")
    made = edgeplan("plan", "memory", "net.onnx", "--budget", "20MiB", "-o", "plan", folder=tmp_path)
    assert made.code == 0, made.err
    assert 0 < _peak(made.out) <= 20
    assert "budget          20.00 MiB over the idle process" in made.out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["net.onnx", "plan"]

    given_file, output = tmp_path / "x.npz", tmp_path / "y.npz"
    np.savez(given_file, input=np.random.default_rng(3).random((1, 3, 37, 29), dtype=np.float32))
    ran = edgeplan("run", "plan", "-i", "x.npz", "-o", "y.npz", "--check", "--repeat", "3", folder=tmp_path)
    assert ran.code == 0, ran.err
    assert "(median of 3, least" in ran.out
    difference = re.search(r"largest difference from ONNX Runtime: (\S+)", ran.out)
    assert difference
    assert float(difference[1]) < 1e-5
    with np.load(output) as found:
        assert [value.shape for value in found.values()] == [(1, 10)]
    assert given_file.is_file()


def test_budgets_follow_each_other_in_one_session(edgeplan: Edgeplan, place: Path) -> None:
    least = _least(place / "plan")
    budgets = [f"{_MIB * 64}", f"{least}B", "30MB"]
    ran = edgeplan("run", str(place / "plan"), "--budgets", ",".join(budgets), "--repeat", "2", "--check")
    assert ran.code == 0, ran.err
    lines = [line for line in ran.out.splitlines() if "planned in" in line]
    assert [line.split(" MiB:")[0] for line in lines] == ["64.0", f"{least / _MIB:.1f}", "28.6"]
    read = [float(line.split(" MiB read")[0].split()[-1]) for line in lines]
    assert read[0] == read[2] == 0  # all stays in memory
    assert read[1] > 0
    with pytest.raises(ParamsError, match="0 runs are none"):
        run(place / "plan", repeat=0)


def test_the_process_that_runs_changes_budgets_without_numpy_and_stays_in_them(plan: Path, tmp_path: Path) -> None:
    borders = read_head(plan / PROGRAM_BIN).inputs
    inputs = {b.name: tmp_path / f"{k}.bin" for k, b in enumerate(borders)}
    for border in borders:
        inputs[border.name].write_bytes(bytes(border.size))
    settings = RunSettings(inputs, runs=2, isolated=False)
    own = run_apart(plan, [None], settings)
    assert own.phases[0].replan_ms == 0
    budgets = [_least(plan) + k * _MIB for k in (1, 2, 1)]
    again = run_apart(plan, budgets, settings)
    assert again.idle.rss < own.idle.rss + 2 * _MIB
    assert {digest for phase in again.phases for digest in phase.digests} == set(own.phases[0].digests)
    assert [phase.replan_ms > 0 for phase in again.phases] == [False, True, True]  # it was opened by the first
    for budget, phase in zip(budgets, again.phases, strict=True):
        assert phase.memory.rss - again.idle.rss <= budget
    with pytest.raises(ColdRunError, match="is not enough: the least is"):
        run_apart(plan, [1], settings)


def _least(plan: Path) -> int:
    """The least budget that a plan's slices can be run by, as the message says it."""
    with pytest.raises(InfeasibleError, match="the least is") as told:
        run(plan, budgets=["1"])
    found = re.search(r"the least is ([\d.]+) MiB", told.value.what)
    assert found
    assert "edgeplan plan memory" in (told.value.next_step or "")
    return round((float(found[1]) + 0.01) * _MIB)


def test_a_share_is_of_what_onnx_runtime_takes(edgeplan: Edgeplan, place: Path, tmp_path: Path) -> None:
    made = edgeplan("plan", "memory", str(place / "plain.onnx"), "-b", "100%", "-o", str(tmp_path / "plan"))
    assert made.code == 0, made.err
    budget = body_of(tmp_path / "plan")["schedule"]["budget_bytes"]
    assert 3 * _MIB < budget < 300 * _MIB
    assert _peak(made.out) * _MIB <= budget + _MIB / 100


def test_the_least_budget_for_a_slowdown_and_pictures(edgeplan: Edgeplan, place: Path, tmp_path: Path) -> None:
    folder, curve, memory_map = tmp_path / "plan", tmp_path / "curve.svg", tmp_path / "map.svg"
    arguments = ("plan", "memory", str(place / "plain.onnx"), "-o", str(folder), "--curve", str(curve))
    made = edgeplan(*arguments, "--map", str(memory_map), "--max-slowdown", "900%")
    assert made.code == 0, made.err
    assert str(memory_map) in made.out
    budget = body_of(folder)["schedule"]["budget_bytes"]
    loaded = body_of(folder)["prediction"].get("loaded_bytes", 0)
    assert loaded > 0 or budget > (folder / "weights.bin").stat().st_size, "all stay only if beside other work all fit"
    assert _peak(made.out) * _MIB <= budget + _MIB / 100
    svg = curve.read_text()
    assert svg.startswith(("<?xml", "<svg"))
    assert "bound" in svg
    assert "planned" in svg
    assert "nan" not in svg
    drawn = memory_map.read_text()
    assert all(f">{axis}<" in drawn for axis in ("step of plain", "address (MiB)"))
    assert any(f">{use}<" in drawn for use in MemoryUse), "which of them it holds depends on what steps take here"
    assert edgeplan("run", str(folder), "--check").code == 0


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("plan",), "where: --budget, --max-slowdown"),
        (("plan", "--budget", "64MB", "--max-slowdown", "5%"), "where: --budget, --max-slowdown"),
        (("plan", "--total", "--max-slowdown", "5%"), "where: --total"),
        (("plan", "--budget", f"{_MORE}"), _TOO_MUCH),
        (("run", "--budgets", f"64MiB,{_MORE}"), _TOO_MUCH),
        (("plan", "--budget", "100.1%"), "no budget of memory(.|\n)*up to 100%"),  # but see --max-slowdown
        (("run", "--budgets", "10%"), "give sizes: 300MB"),
        *(((of, f"{name}={text}"), f"'{text}'(.|\n)*where: {name}\n(.|\n)*as in") for of, name, text in _NO_BUDGETS),
        (("run", "--cold"), "--cold"),
    ],
)
def test_what_does_not_fit_is_refused(
    edgeplan: Edgeplan, place: Path, tmp_path: Path, options: tuple[str, ...], told: str
) -> None:
    """A plan is for a budget or a slowdown, a total is of a budget, and nothing is run in more memory than there is."""
    plans = ("plan", "memory", str(place / "plain.onnx"), "-o", str(tmp_path / "plan"))
    found = edgeplan(*(plans if options[0] == "plan" else ("run", str(place / "plan"))), *options[1:])
    assert found.code == ParamsError.exit_code, found.err
    assert re.search(told, found.err)
    assert not (tmp_path / "plan").exists()


def test_a_total_counts_the_idle_process(edgeplan: Edgeplan, place: Path, tmp_path: Path) -> None:
    arguments = ("plan", "memory", str(place / "plain.onnx"), "--total", "--mode", "isolated", "-o", str(tmp_path / "plan"))
    made = edgeplan(*arguments, "-b", "100MiB")
    assert made.code == 0, made.err
    found = re.search(r"budget\s+([\d.]+) MiB over the idle process \(([\d.]+) MiB\)", made.out)
    assert found
    assert float(found[1]) + float(found[2]) == pytest.approx(100, abs=0.1)
    before = {path: path.read_bytes() for path in (tmp_path / "plan").rglob("*.*")}
    small = edgeplan(*arguments, "-b", "1MiB")
    assert small.code == InfeasibleError.exit_code
    assert small.err.startswith("error: 1.00 MiB is not enough: the least is ")
    again = re.search(r"give --budget (\d+)MiB or more", small.err)
    assert again
    assert int(again[1]) > float(found[2])  # as users count it
    assert {path: path.read_bytes() for path in (tmp_path / "plan").rglob("*.*")} == before
    enough = edgeplan(*arguments, "-b", f"{again[1]}MiB")
    assert enough.code == 0, enough.err


def test_a_folder_with_other_things_is_not_replaced(edgeplan: Edgeplan, place: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    found = edgeplan("plan", "memory", str(place / "plain.onnx"), "-b", _ENOUGH, "-o", str(tmp_path))
    assert found.code == StoreError.exit_code
    assert "thesis.tex" in found.err
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


@given(
    st.text(max_size=12) | st.from_regex(r"\s*-?[0-9]{1,18}(\.[0-9]{0,8})?(e[0-9]+)?\s*([kmgKMG]?i?[bB]?|%)", fullmatch=True)
)
def test_what_is_parsed_is_one_finite_positive_amount(text: str) -> None:
    try:
        found = Budget.parsed(text)
    except ParamsError:
        assert not re.fullmatch(r"\s*[1-9][0-9]{0,4}\s*([kmg]?i?b|)\s*", text, re.IGNORECASE | re.ASCII)
        return
    assert (found.size > 0) != (found.share > 0)
    assert 0 <= found.size <= 1 << 50
    assert 0 <= found.share <= 1


@given(
    st.integers(1, 1000),
    st.sampled_from(["", "B", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB"]),
    st.sampled_from(["", " "]),
)
def test_units_are_what_they_are_called(number: int, unit: str, space: str) -> None:
    power = "BKMGT".index((unit or "B").upper()[0])
    assert Budget.parsed(f"{number}{space}{unit}") == Budget(size=number * (1024 if "i" in unit else 1000) ** power)


def test_a_model_that_hands_its_input_on_is_refused(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 8, 8]) for name in "xy"]
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "g", [values[0]], [values[1]])
    path = tmp_path / "same.onnx"
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    with pytest.raises(ModelError, match="computes nothing: it hands its inputs on") as caught:
        ModelPrograms(path, tmp_path, 1, RunCores((0,), (0,)))
    assert caught.value.where == str(path)


def test_a_group_is_made_within_the_one_that_holds_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.procs").touch()
    (tmp_path / "own").mkdir()
    monkeypatch.setattr(memory_groups, "_ROOT_1", tmp_path)
    monkeypatch.setattr(memory_groups, "groups", lambda _: iter([(2, tmp_path), (1, tmp_path / "own"), (1, tmp_path)]))
    with memory_group():
        assert len(list((tmp_path / "own").iterdir())) == 1
    assert not list((tmp_path / "own").iterdir())


def test_a_map_shows_weights_activations_and_what_stays(dnnl: Dnnl, tmp_path: Path) -> None:
    found = streamed(dnnl, "residual", tmp_path, 4096, (Region(1, 3, 2),))
    program = found.built.program
    plan = found.document(least_bytes(found.workload) + (24 << 10), Mode.back_to_back)
    held = held_by_use(plan, program)
    assert set(held) == set(MemoryUse)
    assert any(h.name.startswith("weights of region") for h in held[MemoryUse.weights])
    assert not any(h.name.startswith("weights") for h in held[MemoryUse.tensor])
    for k, step in enumerate(program.steps):
        there = [h for of in held.values() for h in of if h.lower <= k < h.upper]
        assert sum(h.size for h in there) <= plan.arena_bytes
        assert not step.weight_bytes or f"weights of {step.name}" in {h.name for h in there}
    stay = {k for k, again in enumerate(plan.again) if again == k}
    assert {h.name for h in held[MemoryUse.stays]} == {f"weights of {plan.steps[k]}" for k in stay}
    assert all((h.lower, h.upper) == (0, len(plan.steps)) for h in held[MemoryUse.stays])
