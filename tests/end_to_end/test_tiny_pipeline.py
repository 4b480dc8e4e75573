"""The tiny profile through the whole pipeline, and the commands that a user gives afterwards."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from workspace import DEVICE, Workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_everything_is_written(tiny: Workspace) -> None:
    results = tiny.folder / "results" / DEVICE
    metrics = json.loads((results / "metrics.json").read_text())
    assert metrics["prediction.models"] >= 13
    assert 0 <= metrics["prediction.within_10pct"] <= 1
    tables = {path.stem for path in (results / "tables").glob("*.csv")}
    assert {f"table_{number:02d}" for number in (1, 2, 8, 9, 10, 12)} <= tables
    assert all((results / "tables" / f"{name}.md").is_file() for name in tables)
    assert list((results / "figures").glob("*.png"))
    page = (results / "report.html").read_text()
    assert not re.search(r'(src|href)="https?://', page), "the report is not self-contained"


def test_nothing_to_do_afterwards(tiny: Workspace) -> None:
    before = tiny.rows()
    start = time.monotonic()
    assert "up to date" in tiny.run("dvc", "repro")
    assert time.monotonic() - start <= 5
    assert "Nothing to be done" in tiny.run("snakemake", "-n")
    assert tiny.rows() == before


def test_touched_files_measure_nothing(tiny: Workspace) -> None:
    before = tiny.rows()
    for path in tiny.run("git", "ls-files").split("\n"):
        if path:
            (tiny.folder / path).touch()
    tiny.run("dvc", "repro")
    assert "Nothing to be done" in tiny.run("snakemake", "-n")
    assert tiny.rows() == before


def test_forced_run_measures_nothing(tiny: Workspace, tmp_path: Path) -> None:
    clone = tiny.clone(tmp_path / "clone")
    before = clone.rows()
    assert before == tiny.rows()
    clone.run("dvc", "repro", "--force")
    assert clone.rows() == before


def test_fresh_clone_pulls_and_has_nothing_to_measure(tiny: Workspace, tmp_path: Path) -> None:
    tiny.run("dvc", "remote", "add", "--force", "--local", "storage", str(tmp_path / "storage"))
    tiny.run("dvc", "push", "--remote", "storage")
    clone = tiny.clone(tmp_path / "clone")
    clone.run("dvc", "remote", "add", "--local", "storage", str(tmp_path / "storage"))
    clone.run("dvc", "pull", "--remote", "storage")
    assert (clone.folder / "results" / DEVICE / "predictors/card.json").is_file()
    assert "up to date" in clone.run("dvc", "repro")
    assert "Nothing to be done" in clone.run("snakemake", "-n")
    assert clone.rows() == tiny.rows()


def test_stored_rows_suffice_for_the_tables(tiny: Workspace, tmp_path: Path) -> None:
    clone = tiny.clone(tmp_path / "clone")
    stored = Workspace(clone.folder, {**clone.environment, "EDGEPLAN_STORED_ROWS_ONLY": "1"})
    stored.run("dvc", "repro", "--force")
    assert clone.rows() == tiny.rows()
    truth = f"results/{DEVICE}/evaluation/truth.parquet"
    assert (clone.folder / truth).read_bytes() == (tiny.folder / truth).read_bytes()


def test_experiments_are_run_shown_and_compared(tiny: Workspace, tmp_path: Path) -> None:
    clone = tiny.clone(tmp_path / "clone")
    before = clone.rows()
    lock = (clone.folder / "dvc.lock").read_text()
    clone.run("dvc", "exp", "run", "--temp", "--name", "other-trials", "-S", "training.trials=2")
    assert (clone.folder / "dvc.lock").read_text() == lock, "a run with --temp leaves the workspace alone"
    assert clone.rows() == before
    assert "other-trials" in clone.run("dvc", "exp", "show", "--csv")
    assert "training.trials" in clone.run("dvc", "exp", "diff", "HEAD", "other-trials")
    clone.run("dvc", "exp", "apply", "other-trials")
    assert "prediction.models" in clone.run("dvc", "metrics", "diff", "--all")
    assert "index.html" in clone.run("dvc", "plots", "diff", "HEAD")


def test_another_device_leaves_entries_of_this_one_alone(tiny: Workspace, tmp_path: Path) -> None:
    clone = tiny.clone(tmp_path / "clone")
    other = clone.folder / "config/devices/other-cpu.yaml"
    text = (clone.folder / f"config/devices/{DEVICE}.yaml").read_text()
    other.write_text(text.replace(f"name: {DEVICE}", "name: other-cpu"))
    clone.commit("a new device is one file")
    clone.run("dvc", "exp", "run", "--temp", "--name", "other", "-S", "devices=[other-cpu]")
    clone.run("dvc", "exp", "apply", "other")
    lock = (clone.folder / "dvc.lock").read_text()
    assert f"sampling@{DEVICE}:" in lock
    assert "sampling@other-cpu:" in lock
    assert (clone.folder / "results/other-cpu/report.html").is_file()
