"""A limit of memory holds a plan of memory in a group that pays for its libraries: what is proven, told and counted."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pandas as pd
import pytest

from edgeplan.chapters.memory.budget import MIB
from edgeplan.chapters.memory.contained import contained
from edgeplan.chapters.memory.plan import Planner, RunCores
from edgeplan.cli.memory import summary
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process import memory_group as memory_groups
from edgeplan.measurement.process.memory_group import NoCopiesError, NoGroupError, memory_group, run_paying
from edgeplan.planning.memory.quick import Mode
from edgeplan.profiling.streaming import run_apart
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


@pytest.mark.long
@pytest.mark.usefixtures("groups")
def test_runs_in_containers_are_rows_and_kills_count(planner: Planner, tmp_path: Path) -> None:
    runs = pd.DataFrame(contained(planner, tmp_path, 60 * MIB, 0.3))
    assert runs.groupby("setting").size().to_dict() == {"least": 3, "30 %": 3}
    assert ((runs["failures"] == 0) & (runs["major_faults"] == 0)).sum() >= 5
    assert (runs["peak"] <= runs["budget"]).all()
    planner.hold_total()
    made = planner.write(64 * MIB, Mode.back_to_back, tmp_path / "plan")
    killed = planner.prover(made.run.files).contained(made.folder, 8 * MIB)
    assert killed.ended
    assert not killed.holds


@pytest.mark.long
@pytest.mark.usefixtures("groups")
def test_the_least_limit_that_the_process_starts_in_is_found(planner: Planner) -> None:
    made = planner.candidate(planner.forms[0])
    prover = planner.prover(run_apart(made.folder, [None], planner.settings(2)).files)
    low = 2 * MIB
    assert not prover.contained(made.folder, low).idle_bytes
    found = prover.least_start(made.folder, low)
    assert low < found < 64 * MIB
    assert prover.contained(made.folder, found + 8 * MIB).idle_bytes


def test_what_cannot_be_proven_is_told(planner: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise NoCopiesError("copies of libraries stay in the page cache")

    monkeypatch.setattr(memory_groups, "copied", refused)
    made = planner.write(24 * MIB, Mode.back_to_back, tmp_path / "plan")
    (line,) = [line for line in summary(made) if "held to it" in line]
    assert line.endswith("not proven from outside: copies of libraries stay in the page cache")


@pytest.mark.usefixtures("groups")
def test_a_file_of_a_process_in_a_group_is_a_copy_that_the_group_pays_for(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.write_bytes(bytes(8 * MIB))
    data.read_bytes()  # this process has it in memory, and has paid for it
    gate = tmp_path / "gate"
    code = (
        "import os, sys, time\n"
        "sys.stderr.write('ready\\n'); sys.stderr.flush()\n"
        f"while not os.path.exists({str(gate)!r}): time.sleep(0.01)\n"
        f"print(len(open({str(data)!r}, 'rb').read()))\n"
    )
    (tmp_path / "copies").mkdir()
    paid = run_paying([sys.executable, "-S", "-c", code], b"", gate, [str(data)], tmp_path / "copies", limit=128 * MIB)
    assert (paid.code, paid.stdout.strip()) == (0, str(8 * MIB).encode())
    assert paid.peak_bytes - paid.idle_bytes > 12 * MIB  # what it holds, and the page cache
