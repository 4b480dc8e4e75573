"""Plans whose runs take too much, crash or are killed, runs that a limit of memory holds, and plans with halved weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pandas as pd
import pytest
from onnx import numpy_helper
from plan_folders import body_of, changed_plan
from streamed_models import memory_settings, plain_model

from edgeplan import plan_memory
from edgeplan.chapters.memory import measuring, programs
from edgeplan.chapters.memory.budget import MIB, mib
from edgeplan.chapters.memory.folders import RunCores
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner, TooSmallError
from edgeplan.chapters.memory.studies import ModelBench, StudiedModel, contained, halved
from edgeplan.cli.memory import memory_lines
from edgeplan.errors import CheckError, FormatError, ParamsError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process import memory_group as memory_groups
from edgeplan.measurement.process.memory_group import NoGroupError
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import RunSettings, StreamProfile, profile_program, run_apart
from edgeplan.runs import run
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.program_file import PROGRAM_BIN, Section, rows_of
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.schedules import HALVES_TOLERANCE, MemoryPrediction, MemorySchedule, stored_as

LANE = "processes"  # see tests/conftest.py

_FORGOTTEN = 3 * MIB // 2


@pytest.fixture
def subject(dnnl: Dnnl, tmp_path: Path, wide: Path, cores: RunCores) -> StudiedModel:
    """A small model to be planned."""
    assert dnnl.info.version  # where the library is not there, nothing can be planned
    (tmp_path / "work").mkdir()
    return StudiedModel("wide", wide, tmp_path / "work", cores, memory_settings())


@pytest.fixture
def planner(subject: StudiedModel, tmp_path: Path) -> Planner:
    """Its planner."""
    (tmp_path / "planner").mkdir()
    return Planner(programs.ModelPrograms(subject.model, tmp_path / "planner", 1, subject.cores, 3))


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Profiles say that running takes 1.5 MiB less beside the arena than it does."""

    def profiled(folder: Path, program: StreamProgram, settings: RunSettings) -> StreamProfile:
        found = profile_program(folder, program, settings)
        return found.model_copy(update={"objects_bytes": found.objects_bytes - _FORGOTTEN})

    monkeypatch.setattr(programs, "profile_program", profiled)


def _attempted(subject: StudiedModel, planner: Planner, budget: int) -> tuple[MemoryPlanned | None, dict[str, Any]]:
    """A plan for a budget, and the row of what it measures."""
    made, rows = measuring._attempted(
        subject, planner, lambda: planner.write(budget, Mode.back_to_back, subject.work / "plan"), "plan"
    )
    return made, rows[0]


@pytest.mark.long
@pytest.mark.usefixtures("forgetful")
def test_what_a_run_took_too_much_is_left_to_it_by_later_plans(planner: Planner, tmp_path: Path) -> None:
    budget, folder = planner.programs.least_bytes() + 3 * _FORGOTTEN, tmp_path / "plan"
    made = planner.write(budget, Mode.back_to_back, folder)
    assert made.run.peak_over_idle <= budget
    profiled = {candidate.form: candidate.objects_bytes for candidate in planner.programs.profiled.values()}
    stored = read_folder(folder)
    assert stored.predicted(MemoryPrediction).profile["objects_bytes"] > profiled[made.candidate.form] + MIB
    assert stored.scheduled(MemorySchedule).budget_bytes == budget


@pytest.mark.long
@pytest.mark.usefixtures("forgetful")
def test_a_budget_that_runs_exceed_is_not_proven_too_small_and_the_one_that_is_advised_holds(
    subject: StudiedModel, planner: Planner, tmp_path: Path
) -> None:
    small = planner.programs.least_bytes() + MIB // 2
    made, row = _attempted(subject, planner, small)
    assert made is None
    assert set(row) == {"reason"}
    assert row["reason"].startswith(f"{mib(small)} is not enough: the least is ")
    assert "more than was profiled" in row["reason"]
    with pytest.raises(TooSmallError) as told:
        planner.write(MIB, Mode.back_to_back, tmp_path / "plan")
    assert told.value.proven
    tried = planner.tried(told.value, Mode.back_to_back)
    assert tried.what == told.value.what
    assert tried.enough > told.value.enough + MIB  # of the 1.5 that profiles forget
    enough = re.search(r"give --budget (\d+)MiB or more", tried.next_step)
    assert enough
    budget = (int(enough[1]) + 1) * MIB  # what a run takes differs by a part of a MiB from the one before
    made = planner.write(budget, Mode.back_to_back, tmp_path / "plan")
    assert made.run.taken_bytes <= budget


def test_what_is_needed_is_told_where_it_is_proven(subject: StudiedModel, planner: Planner) -> None:
    made, row = _attempted(subject, planner, MIB)
    assert made is None
    assert row["needed"] == planner.programs.least_bytes()
    assert "proven" in row["reason"]


def test_a_run_that_crashes_has_no_right_outputs(subject: StudiedModel, planner: Planner) -> None:
    planner.programs.cores = RunCores((1 << 20,), (1 << 20,))  # the process that runs plans may use no such processor
    made, row = _attempted(subject, planner, 64 * MIB)
    assert made is None
    assert row["equal"] == 0
    assert "exit code 1" in row["reason"]


@pytest.mark.usefixtures("groups")
def test_a_run_that_is_killed_had_a_failed_allocation(subject: StudiedModel, planner: Planner, tmp_path: Path) -> None:
    made = planner.write(64 * MIB, Mode.back_to_back, tmp_path / "plan")
    row = measuring._limited(subject, planner, replace(made, budget=256 << 10), (1.0, 1.0))
    assert "SIGKILL" in row["reason"]
    assert row["failures"] > 0
    free = measuring._limited(subject, planner, made, (1.0, 1.0))
    assert set(free) == {"failures", "major_faults", "pause_ms"}


@pytest.mark.usefixtures("groups")
def test_a_budget_is_held_where_the_group_pays_for_the_library(planner: Planner, tmp_path: Path) -> None:
    made = planner.write(40 * MIB, Mode.back_to_back, tmp_path / "plan")
    assert not made.proof.reason
    assert made.proof.holds
    assert made.proof.limit_bytes <= made.proof.idle_bytes + made.budget
    needed = set(made.candidate.profile.running[::2])
    assert needed
    assert made.proof.taken_bytes > made.document.arena_bytes + 4096 * sum(made.candidate.profile.running[1::2]) // 2


@pytest.mark.long
@pytest.mark.usefixtures("groups")
def test_runs_in_containers_are_rows(subject: StudiedModel) -> None:
    runs = pd.DataFrame(contained(ModelBench(subject, lambda _: None, {"onnxruntime": {"peak": 60 * MIB}}), 0.3))
    assert runs.groupby("setting").size().to_dict() == {"least": 3, "30 %": 3}
    assert ((runs["failures"] == 0) & (runs["major_faults"] == 0)).sum() >= 5
    assert (runs["peak"] <= runs["budget"]).all()


@pytest.mark.long
@pytest.mark.usefixtures("groups")
def test_the_least_limit_that_the_process_starts_in_is_found(planner: Planner) -> None:
    made = planner.programs.candidate(planner.programs.forms[0])
    prover = planner.prover(run_apart(made.folder, [None], planner.programs.settings(2)).files)
    low = 2 * MIB
    assert not prover.contained(made.folder, low).idle_bytes
    found = prover.least_start(made.folder, low)
    assert low < found < 64 * MIB
    assert prover.contained(made.folder, found + 8 * MIB).idle_bytes


def test_what_cannot_be_proven_is_told(planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise NoGroupError("copies of libraries stay in the page cache")

    monkeypatch.setattr(memory_groups, "copied_files", refused)
    made = planner.write(40 * MIB, Mode.back_to_back, tmp_path / "plan")
    (line,) = [line for line in memory_lines(made) if "held to it" in line]
    assert line.endswith("not proven from outside: copies of libraries stay in the page cache")


Edgeplan = Callable[..., Any]
_BUDGET = "64MiB"


@pytest.fixture(scope="module")
def model(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights take more than a page a step."""
    assert dnnl.info.version  # where the library is not there, nothing can be planned
    return save_onnx(plain_model(), tmp_path_factory.mktemp("halves") / "plain.onnx")


@pytest.fixture(scope="module")
def made(model: Path) -> MemoryPlanned:
    """A plan with weights in half their bytes."""
    return plan_memory(model, model.with_name("halves"), _BUDGET, weights="bf16")


@pytest.fixture(scope="module")
def cancelling(dnnl: Dnnl, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights cancel out but for what is lost when they are rounded."""
    assert dnnl.info.version  # see above
    b = GraphBuilder("cancelling", (1, 64))
    path = save_onnx(b.build(b.fc(b.fc("input", 64), 64)), tmp_path_factory.mktemp("cancelling") / "cancelling.onnx")
    document = onnx.load(path)
    matrices = iter((np.zeros((64, 64)), np.tile([1.003, -1.0], (64, 32))))  # whatever comes in, ones go through the second
    for one in document.graph.initializer:
        values = next(matrices) if len(one.dims) == 2 else np.ones(64)
        one.CopyFrom(numpy_helper.from_array(values.astype(np.float32), one.name))
    onnx.save(document, path)
    return path


def test_a_plan_reads_half_the_bytes_and_tells_its_error(made: MemoryPlanned, model: Path) -> None:
    stored = sum(step.stored_bytes for step in made.candidate.program.steps)
    assert stored < 0.6 * sum(made.document.weight_bytes)
    assert (made.folder / "weights.bin").stat().st_size == stored
    assert made.error is not None
    assert 1e-4 < made.error < HALVES_TOLERANCE  # more than rounding of sums
    assert not made.inexact
    assert made.candidate.profile.widened_per_ms > 0
    plan = read_folder(made.folder)
    assert stored_as(plan) == "bf16"
    assert plan.predicted(MemoryPrediction).error == made.error
    assert made.candidate.reader.chunk_bytes == 4 << 20
    found = run(plan, check=True, model=model, repeat=2)
    assert found.difference == pytest.approx(made.error, rel=0.5)
    found.require_checked()


def test_smaller_budgets_run_by_the_same_halves(made: MemoryPlanned) -> None:
    whole = run(made.folder).outputs
    (schedules,) = rows_of(made.folder / PROGRAM_BIN, Section.SCHEDULES)
    small = run(made.folder, budgets=[str(schedules["budget_bytes"][1])], repeat=2)
    assert small.phases[0].read_bytes > 0
    for name, values in small.outputs.items():
        assert values.tobytes() == whole[name].tobytes()


def test_weights_too_inexact_are_told_loudly(edgeplan: Edgeplan, cancelling: Path) -> None:
    planned = edgeplan(
        "plan", "memory", str(cancelling), "-b", _BUDGET, "-o", "plan", "--weights", "bf16", folder=cancelling.parent
    )
    assert planned.code == 0, planned.err
    assert f"MORE THAN {HALVES_TOLERANCE:g}: plan again with --weights f32" in planned.out
    plan = read_folder(cancelling.parent / "plan")
    found = run(plan, check=True)
    with pytest.raises(CheckError, match="its weights are stored as bf16") as told:
        found.require_checked()
    assert "--weights f32" in (told.value.next_step or "")
    ran = edgeplan("run", "plan", "--check", folder=cancelling.parent)
    assert ran.code == CheckError.exit_code


def test_a_plan_says_nothing_of_weights_that_are_whole(model: Path, tmp_path: Path) -> None:
    made = plan_memory(model, tmp_path / "plan", _BUDGET)
    assert (made.weights, made.error) == ("f32", None)
    body = body_of(made.folder)
    assert "weights" not in body["schedule"]
    assert "error" not in body["prediction"]
    assert stored_as(read_folder(made.folder)) == "f32"


@pytest.mark.parametrize("kind", ["fp8", ""])
def test_kinds_of_weights_that_are_not_known_are_refused(made: MemoryPlanned, model: Path, tmp_path: Path, kind: Any) -> None:
    with pytest.raises(ParamsError, match="there is no kind of weights"):
        plan_memory(model, tmp_path / "plan", _BUDGET, weights=kind)
    for path in made.folder.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    changed_plan(tmp_path, lambda body: body["schedule"].update(weights=kind))
    with pytest.raises(FormatError, match="has another format") as told:
        stored_as(read_folder(tmp_path))
    assert "edgeplan plan memory" in (told.value.next_step or "")


def test_both_kinds_are_run_in_turns(model: Path, tmp_path: Path, cores: RunCores) -> None:
    settings = memory_settings(halved_model="vgg19", halved_shares=(1e-6, 1.0), halved_pairs=2)
    subject = StudiedModel("plain", model, tmp_path / "work", cores, settings)
    rows = list(halved(ModelBench(subject, lambda _: None, {"onnxruntime": {"peak": 16 << 20}})))
    assert [(row["share"], row["setting"]) for row in rows] == [(s, kind) for s in (1e-6, 1.0) for kind in ("f32", "bf16")]
    assert all("is not enough" in row["reason"] for row in rows[:2])
    whole, half = rows[2:]
    assert np.isnan(whole["error"])
    assert 1e-4 < half["error"] < HALVES_TOLERANCE
    assert half["weights"] < 0.6 * whole["weights"]
    for row in (whole, half):
        assert row["pairs"] == 2
        assert 0 < row["least_ms"] <= row["median_ms"]
        assert 0 < row["peak"] <= 16 << 20


def test_the_model_of_the_study_is_one_of_those_measured() -> None:
    with pytest.raises(ValueError, match="is none of the models"):
        memory_settings(halved_model="squeezenet")
