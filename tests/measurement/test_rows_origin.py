"""Where rows come from: cores, load and commits that are kept beside them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from quick_bench import measuring_alone, open_bench, subjects  # noqa: F401  a fixture

import edgeplan
from edgeplan.measurement import bench as bench_module
from edgeplan.measurement import local
from edgeplan.support.machine import source_commit
from edgeplan.support.store import STORED_ROWS_ONLY


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commits of the checkout, the present one last."""
    found = ["one"]
    monkeypatch.setattr(bench_module, "source_commit", lambda: found[-1])
    return found


def stored(folder: Path) -> tuple[Path, Any]:
    """The identity of the rows of the test's bench, and its file."""
    (path,) = (folder / "w/rows/dev").glob("*.json")
    return path, json.loads(path.read_text())


def test_cores_and_load_are_kept_with_the_rows_but_decide_none(
    tmp_path: Path, commits: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = iter([1.5, 0.7, 3.25])
    monkeypatch.setattr(os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    monkeypatch.setattr(local, "environment", lambda: {"cpu": "x"})
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(4))  # two batches
    assert stored(tmp_path)[1]["environment"] == {
        "cpu": "x",
        "affinity": sorted(os.sched_getaffinity(0)),
        "load_1min": {"least": 0.7, "most": 1.5, "batches": 2},
        "commits": ["one"],
    }
    commits.append("two")
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(5))
        assert bench.measured == 1
    told = stored(tmp_path)[1]["environment"]
    assert (told["load_1min"], told["commits"]) == ({"least": 0.7, "most": 3.25, "batches": 3}, ["one", "two"])


@pytest.mark.usefixtures("commits")
def test_rows_beside_those_of_an_unknown_commit_say_so(tmp_path: Path) -> None:
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(1))
    path, identity = stored(tmp_path)
    assert identity["environment"].pop("commits") == ["one"]
    path.write_text(json.dumps(identity))
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(2))
    assert stored(tmp_path)[1]["environment"]["commits"] == ["not recorded", "one"]


def test_rows_that_a_killed_run_left_in_the_journal_bring_their_commit(tmp_path: Path, commits: list[str]) -> None:
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(2))
    shutil.rmtree(tmp_path / "w")  # the workspace of an experiment that is gone
    commits.append("two")
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(4))
        assert bench.measured == 2
    assert stored(tmp_path)[1]["environment"]["commits"] == ["one", "two"]


def test_rows_that_tell_no_load_are_said_not_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_bench(tmp_path) as bench:
        bench.measure(subjects(1))
    path, identity = stored(tmp_path)
    identity["environment"] |= {"load_1min": None, "affinity": None}
    path.write_text(json.dumps(identity))
    monkeypatch.setenv(STORED_ROWS_ONLY, "1")
    with open_bench(tmp_path) as bench:
        kept = bench.store.identity["environment"]
    assert (kept["load_1min"], kept["affinity"]) == ("not recorded", "not recorded")
    assert kept["cores"] == os.cpu_count()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with one module; `edgeplan` claims to lie there."""
    folder = tmp_path / "repository" / "edgeplan"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    monkeypatch.setattr(edgeplan, "__file__", str(folder / "__init__.py"))
    return folder


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_is_named_and_marked_where_the_package_changed(package: Path) -> None:
    root = package.parent
    git(root, "init", "--quiet")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "first")
    commit = git(root, "rev-parse", "--short=12", "HEAD")
    assert source_commit() == commit
    (root / "params.yaml").write_text("seed: 1")  # values of params are in the key of rows
    assert source_commit() == commit
    (package / "new.py").write_text("")
    assert source_commit() == f"{commit}+changes"


@pytest.mark.parametrize("why", ["another repository ignores it", "GIT_CEILING_DIRECTORIES", "PATH"])
def test_a_package_outside_of_git_or_a_machine_without_it_has_none(
    package: Path, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = package.parent
    if why.isupper():
        monkeypatch.setenv(why, str(root.parent))
    else:
        git(root, "init", "--quiet")
        (root / ".gitignore").write_text("edgeplan/")
        git(root, "add", ".")
        git(root, "commit", "--quiet", "--message", "of something else")
    assert source_commit() == "not recorded"
