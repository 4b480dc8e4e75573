"""What is kept beside the rows: cores, load and the commits that measured them."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from quick_bench import measuring_alone, open_bench, subjects  # noqa: F401  a fixture

from edgeplan.measurement import bench as bench_module
from edgeplan.measurement import local
from edgeplan.support.store import STORED_ROWS_ONLY


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits of the checkout, the present one last."""
    found = ["one"]
    monkeypatch.setattr(bench_module, "source_commit", lambda: found[-1])
    return found


def test_cores_and_load_are_kept_with_the_rows_but_decide_none(
    tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stored() -> Any:
        (path,) = (tmp_path / "w" / "rows" / "dev").glob("*.json")
        return json.loads(path.read_text())["environment"]

    loads = iter([1.5, 0.7, 3.25])
    monkeypatch.setattr(os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    monkeypatch.setattr(local, "environment", lambda: {"cpu": "x"})
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(4))  # two batches
    assert stored() == {
        "cpu": "x",
        "affinity": sorted(os.sched_getaffinity(0)),
        "load_1min": {"least": 0.7, "most": 1.5, "batches": 2},
        "commits": ["one"],
    }
    commits.append("two")
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(5))
        assert bench.measured == 1
    assert stored()["load_1min"] == {"least": 0.7, "most": 3.25, "batches": 3}
    assert stored()["commits"] == ["one", "two"]


@pytest.mark.usefixtures("commits")
def test_rows_beside_those_of_an_unknown_commit_say_so(tmp_path: Path) -> None:
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(1))
    (path,) = (tmp_path / "w" / "rows" / "dev").glob("*.json")
    identity = json.loads(path.read_text())
    assert identity["environment"].pop("commits") == ["one"]
    path.write_text(json.dumps(identity))
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(2))
    assert json.loads(path.read_text())["environment"]["commits"] == ["not recorded", "one"]


def test_rows_that_a_killed_run_left_in_the_journal_bring_their_commit(tmp_path: Path, commits: list[str]) -> None:
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(2))
    shutil.rmtree(tmp_path / "w")  # the workspace of an experiment that is gone
    commits.append("two")
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(4))
        assert bench.measured == 2
    (path,) = (tmp_path / "w" / "rows" / "dev").glob("*.json")
    assert json.loads(path.read_text())["environment"]["commits"] == ["one", "two"]


def test_rows_that_tell_no_load_are_said_not_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(1))
    (path,) = (tmp_path / "w" / "rows" / "dev").glob("*.json")
    identity = json.loads(path.read_text())
    identity["environment"] |= {"load_1min": None, "affinity": None}
    path.write_text(json.dumps(identity))
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    with open_bench(tmp_path) as bench:
        kept = bench.store.identity["environment"]
    assert (kept["load_1min"], kept["affinity"]) == ("not recorded", "not recorded")
    assert kept["cores"] == os.cpu_count()
