"""A chapter is added with one folder, one line and its section of params.yaml; nothing else is built again."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace

import pandas as pd
import pytest
from workspace import DEVICE, OTHER_DEVICE, Workspace, add_toy_chapter

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def workspace(tiny: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A copy of the workspace in which the tiny profile has run, with the chapter in it."""
    folder = tmp_path_factory.mktemp("toy") / "tree"
    shutil.copytree(tiny.folder, folder, symlinks=True)
    copied = replace(tiny, folder=folder, environment={**tiny.environment, "PYTHONPATH": os.fspath(folder / "workflow")})
    add_toy_chapter(copied)
    return copied


def test_it_runs_and_shows_in_the_report_and_nothing_else_is_built(workspace: Workspace) -> None:
    said = workspace.run("dvc", "repro")
    assert sorted(re.findall(r"Running stage '([^']+)'", said)) == ["check", "report", f"toy@{DEVICE}"]
    results = workspace.folder / "results" / DEVICE
    table = pd.read_csv(results / "toy/sorting.csv")
    assert list(table["size"]) == [1000, 20000, 3000]
    assert table["lane"].iloc[1] != table["lane"].iloc[0], "the longest is alone in its lane"
    merged = json.loads((results / "metrics.json").read_text())
    assert merged["toy.sort_ms"] == pytest.approx(table["sort_ms"].sum(), rel=1e-4)
    assert "prediction.models" in merged
    page = (results.parent / "report.html").read_text()
    assert f"Sorting, on {DEVICE}" in page
    assert "What sorting takes (ms), and in which lane." in page, "the caption stands beside the chapter"
    assert not (workspace.folder / "results" / OTHER_DEVICE / "toy").exists(), "it has targets of its own"


def test_its_rows_are_found_again(workspace: Workspace) -> None:
    workspace.run("dvc", "repro")
    rows = workspace.folder / "data/rows" / DEVICE / "toy/rows.jsonl"
    before = rows.read_text()
    assert len(before.splitlines()) == 3
    workspace.run("dvc", "repro", "--force", "--single-item", f"toy@{DEVICE}")
    assert rows.read_text() == before
    params = workspace.folder / "params.yaml"
    params.write_text(params.read_text().replace("20000", "40000"))
    workspace.run("dvc", "repro")
    assert len(rows.read_text().splitlines()) == 4
