"""Two results folders are held against each other value by value."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

SCRIPT = Path(__file__).parents[2] / "workflow/scripts/compare_results.py"


def _compare(*arguments: Path) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, check=False)
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
