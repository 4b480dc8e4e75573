"""Plans whose runs take too much, crash or are killed, and runs that a limit of memory holds: what is kept, proven and told."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from edgeplan.chapters.memory import measuring, programs
from edgeplan.chapters.memory.budget import MIB, mib
from edgeplan.chapters.memory.folders import RunCores
from edgeplan.chapters.memory.plan import MemoryPlanned, Planner, TooSmallError
from edgeplan.chapters.memory.settings import MemorySettings
from edgeplan.chapters.memory.studies import StudiedModel, contained
from edgeplan.cli.memory import memory_lines
from edgeplan.errors import InfeasibleError
from edgeplan.measurement.process import memory_group as memory_groups
from edgeplan.measurement.process.memory_group import NoGroupError
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import RunSettings, StreamProfile, profile_program, run_apart
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.runtime.streaming.program import StreamProgram
from edgeplan.runtime.streaming.schedules import MemoryPrediction, MemorySchedule

LANE = "processes"  # see tests/conftest.py

_FORGOTTEN = 3 * MIB // 2


@pytest.fixture
def subject(dnnl: Dnnl, tmp_path: Path, wide: Path, cores: RunCores) -> StudiedModel:
    """A small model to be planned."""
    assert dnnl.info.version  # where the library is not there, nothing can be planned
    settings = MemorySettings(
        devices=["cpu-onednn"], models=("vgg19",), settings=("onnxruntime",), shares=(0.5,), threads=1, runs=3
    )
    (tmp_path / "work").mkdir()
    return StudiedModel("wide", wide, tmp_path / "work", cores, settings)


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
def test_a_budget_that_runs_exceed_is_named_as_it_was_given_and_not_proven_too_small(
    subject: StudiedModel, planner: Planner, tmp_path: Path
) -> None:
    budget = planner.programs.least_bytes() + MIB // 2
    with pytest.raises(InfeasibleError, match="more than was profiled") as told:
        planner.write(budget, Mode.back_to_back, tmp_path / "plan")
    assert told.value.what.startswith(f"{mib(budget)} is not enough: the least is ")
    enough = re.search(r"give --budget (\d+)MiB or more", told.value.next_step)
    assert enough
    assert int(enough[1]) * MIB > budget
    made, row = _attempted(subject, planner, budget)
    assert made is None
    assert set(row) == {"reason"}


@pytest.mark.long
@pytest.mark.usefixtures("forgetful")
def test_the_budget_that_is_advised_holds_where_runs_take_more_than_was_profiled(planner: Planner, tmp_path: Path) -> None:
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
def test_runs_in_containers_are_rows(planner: Planner, tmp_path: Path) -> None:
    runs = pd.DataFrame(contained(planner, tmp_path, 60 * MIB, 0.3))
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
