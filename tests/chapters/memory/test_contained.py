"""A limit of memory holds a plan of memory in a group that pays for its libraries: what is proven, told and counted."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd
import pytest

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.contained import CASE, RATIO_CASE, contained
from edgeplan.chapters.memory.plan import Planner, RunCores
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.memory_group import NoGroupError, memory_group
from edgeplan.planning.memory.quick import Mode
from edgeplan.runtime.dnnl import Dnnl

LANE = "processes"  # see tests/conftest.py


@pytest.fixture(scope="module")
def groups() -> None:
    """Memory cgroups, of a system that gives some."""
    try:
        with memory_group():
            pass
    except NoGroupError as error:
        pytest.skip(str(error))


def _model(path: Path) -> Path:
    """Most of its 5 MiB of weights need not be in memory at a time."""
    b = GraphBuilder("wide", (1, 3, 32, 32))
    x = b.flatten(b.maxpool(b.relu(b.conv("input", 16, 3)), 4, 4))
    for width in (1024, 256):
        x = b.relu(b.fc(x, width))
    return save_onnx(b.build(b.fc(x, 10)), path)


@pytest.fixture
def planner(dnnl: Dnnl, tmp_path: Path) -> Planner:
    """A planner of a small model."""
    assert dnnl.info.version  # where the library is not there, nothing can be planned
    (tmp_path / "planner").mkdir()
    cores = RunCores.of(sorted(os.sched_getaffinity(0)), 1)
    return Planner(_model(tmp_path / "wide.onnx"), tmp_path / "planner", 1, cores, 3)


@pytest.mark.usefixtures("groups")
def test_a_budget_is_held_where_the_group_pays_for_the_library(planner: Planner, tmp_path: Path) -> None:
    made = planner.write(24 * MIB, Mode.back_to_back, tmp_path / "plan")
    assert not made.proof.reason
    assert made.proof.holds
    assert made.proof.limit_bytes <= made.proof.idle_bytes + made.budget
    needed = set(made.candidate.profile.running[::2])
    assert needed
    assert made.proof.taken_bytes > made.document.arena_bytes + 4096 * sum(made.candidate.profile.running[1::2]) // 2


@pytest.mark.usefixtures("groups")
def test_runs_in_containers_are_rows_and_kills_count(planner: Planner, tmp_path: Path) -> None:
    rows = pd.DataFrame(contained(planner, tmp_path, 40 * MIB, 0.3, turns=2))
    runs, ratios = rows[rows["case"] == CASE], rows[rows["case"] == RATIO_CASE]
    assert runs.groupby("setting").size().to_dict() == {"least": 3, "30 %": 3}
    assert ((runs["failures"] == 0) & (runs["major_faults"] == 0)).sum() >= 5
    assert (runs["peak"] <= runs["budget"]).all()
    assert (ratios["failures"] == 0).all()
    assert (ratios["pause_ms"] > 0).all()
    planner.hold_total()
    made = planner.write(64 * MIB, Mode.back_to_back, tmp_path / "plan")
    killed = planner.prover(made.run.files).contained(made.folder, 12 * MIB)
    assert killed.ended
    assert not killed.holds
