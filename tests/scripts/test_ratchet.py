"""Sizes of the tree may rise by what a new line of reasons says, and by no more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "workflow/scripts/ratchet.py"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("workflow/scripts", "workflow/edgeplan", "tests"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "workflow/scripts/ratchet.py").write_text(SCRIPT.read_text())
    (tmp_path / "workflow/edgeplan/tables.py").write_text('TABLES = (TableSpec("a"),)\nBARS = (Bar("b"),)\n')
    (tmp_path / "tests/test_a.py").write_text("assert True\n")
    (tmp_path / "params.yaml").write_text("a: 1\nb: {c: 2, d: [3, 4]}\n")
    _git(tmp_path, "init", "--quiet")
    _commit(tmp_path)
    return tmp_path


def _git(tree: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(tree), "-c", "user.name=a", "-c", "user.email=a@localhost", *words], check=True)


def _commit(tree: Path) -> None:
    _git(tree, "add", "--all")
    _git(tree, "commit", "--quiet", "--message", "sizes")


def _compared(tree: Path) -> tuple[int, str, str]:
    found = subprocess.run([sys.executable, tree / "workflow/scripts/ratchet.py"], capture_output=True, text=True, check=False)
    return found.returncode, found.stdout, found.stderr


@pytest.mark.parametrize(
    ("path", "text", "figures"),
    [
        ("tests/test_b.py", "assert 1\n", ["files of tests", "lines of tests"]),
        ("workflow/edgeplan/more.py", 'F = FigureSpec("c")\n', ["figures", "files of workflow", "lines of workflow"]),
        ("workflow/edgeplan/tables.py", 'T = (TableSpec("a"), TableSpec("b"))\nBARS = ()\n', ["tables"]),
        ("workflow/edgeplan/tables.py", 'add("--much")\n', ["options"]),
        ("workflow/edgeplan/loops.c", "int a;\n", ["files of workflow", "lines of C"]),
        ("params.yaml", "a: 1\nb: {c: 2, d: [3], e: 4}\n", ["params"]),
    ],
)
def test_what_grows_needs_a_reason_in_a_changed_tree_and_in_a_clean_one(
    tree: Path, path: str, text: str, figures: list[str]
) -> None:
    (tree / path).write_text(text)
    for state in ("changed", "clean"):
        status, _, said = _compared(tree)
        assert status == 1
        assert [line.split(":")[1].strip() for line in said.splitlines()] == figures
        if state == "changed":
            _commit(tree)
    (tree / "workflow/rises.txt").write_text("".join(f"+1 {name}: it is asked for\n" for name in figures))
    _git(tree, "add", "--all")
    _git(tree, "commit", "--quiet", "--amend", "--no-edit")
    assert _compared(tree)[0] == 0


def test_a_reason_counts_once_and_allows_what_it_says(tree: Path) -> None:
    (tree / "workflow/rises.txt").write_text("# why sizes rose\n+1 lines of tests: one more\n")
    (tree / "tests/test_a.py").write_text("assert True\nassert 1\n")
    assert _compared(tree)[0] == 0
    _commit(tree)
    assert _compared(tree)[0] == 0
    (tree / "tests/test_a.py").write_text("assert True\nassert 1\nassert 2\n")
    status, _, said = _compared(tree)
    assert status == 1
    assert "lines of tests: 2 -> 3, 1 more than" in said


def test_a_fall_needs_no_reason_and_a_line_that_is_none_is_told(tree: Path) -> None:
    (tree / "tests/test_a.py").unlink()
    status, said, _ = _compared(tree)
    assert status == 0
    assert "lines of tests (-1)" in said
    (tree / "workflow/rises.txt").write_text("because\n")
    assert "no reason: 'because'" in _compared(tree)[2]


def test_without_git_it_says_so(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert _compared(tree) == (0, "sizes are not compared: no git, or no earlier commit, here\n", "")
