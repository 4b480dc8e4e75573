"""Scripts: results held against each other, sizes that rise by what a reason says, lists of files."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "workflow/scripts"


def _compare(*arguments: Path) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, SCRIPTS / "compare_results.py", *arguments], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout.splitlines()


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    pd.DataFrame({"ms": [1.5, 2.0], "why": ["", "NA"]}).to_csv(before / "table.csv", index=False)
    pd.DataFrame({"ms": [1.5, float("nan")]}).to_parquet(before / "rows.parquet")
    page = {"tables": [{"id": "a", "sha256": "1"}, {"id": "b", "sha256": "2"}], "metrics": [["x", "1"], ["y", "2"]]}
    (before / "part.page.json").write_text(json.dumps(page))
    (before / "drawing.svg").write_text("<svg/>")
    shutil.copytree(before, after)
    return before, after


def test_equal_folders_have_no_difference_and_every_value_is_written(folders: tuple[Path, Path], tmp_path: Path) -> None:
    code, said = _compare(*folders, tmp_path / "all.csv")
    assert (code, said) == (0, ["13 values equal, 0 changed, 0 went, 0 came"])
    with (tmp_path / "all.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert len(rows) == 14
    assert ["table.csv", "ms[1]", "2.0", "2.0"] in rows


def test_a_value_that_changed_is_told_apart_from_what_went_and_came(folders: tuple[Path, Path]) -> None:
    before, after = folders
    (before / "gone.csv").write_text("a\n1\n")
    pd.DataFrame({"ms": [1.5, 2.5], "new": [1, 2]}).to_csv(after / "table.csv", index=False)
    pd.DataFrame({"ms": [1.25, float("nan")]}).to_parquet(after / "rows.parquet")
    (after / "part.page.json").write_text(json.dumps({"tables": [{"id": "b", "sha256": "3"}], "metrics": [["y", "2"]]}))
    code, said = _compare(before, after)
    assert code == 1
    assert said[:2] == ["changed: rows.parquet: ms[0]: 1.5 -> 1.25", "changed: table.csv: ms[1]: 2.0 -> 2.5"]
    assert "went: gone.csv" in said
    assert "went: table.csv: why[0]; why[1]" in said
    assert "went: part.page.json: tables[a].id; metrics[x][x]; metrics[x][1]" in said
    assert said[-1].split(", ")[1:] == ["2 changed", "6 went", "2 came"]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("workflow/scripts", "workflow/edgeplan", "tests"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "workflow/scripts/ratchet.py").write_text((SCRIPTS / "ratchet.py").read_text())
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


def test_the_lists_are_whole_and_test_files_of_no_package_that_anything_was_tuned_on() -> None:
    tuned, tests = (pd.read_csv(ROOT / f"docs/{name}.csv") for name in ("real-models", "real-files"))
    for files in (tuned, tests):
        assert files["path"].is_unique
        assert files["sha256"].str.fullmatch("[0-9a-f]{64}").all()
    for column in ("package", "sha256"):
        assert not {*tests[column]} & {*tuned[column]}
