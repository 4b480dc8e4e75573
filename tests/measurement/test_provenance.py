"""By which commit rows are measured: of a repository, of a changed one, of none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import edgeplan
from edgeplan.support.machine import source_commit


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


def test_a_package_that_another_repository_ignores_has_none(package: Path) -> None:
    root = package.parent
    git(root, "init", "--quiet")
    (root / ".gitignore").write_text("edgeplan/")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "--message", "of something else")
    assert source_commit() == "not recorded"


def test_a_package_outside_of_git_has_none(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(package.parents[1]))
    assert source_commit() == "not recorded"


def test_a_machine_without_git_tells_none(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(package))
    assert source_commit() == "not recorded"
