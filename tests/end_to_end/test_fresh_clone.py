"""A fresh clone of what is committed: nothing to run or measure, a page, and failures that take nothing away."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from workspace import ROOT, Workspace

from edgeplan.chapters.registry import STAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
_MEASURING = {stage.name for stage in STAGES if stage.rows}


@pytest.fixture
def clone(tmp_path: Path) -> Workspace:
    """The last commit, with nothing in DVC's cache."""
    programs = os.fspath(Path(sys.executable).parent)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
        "PATH": os.pathsep.join([programs, os.environ["PATH"]]),
        "PYTHONPATH": os.fspath(tmp_path / "clone/workflow"),
        "XDG_STATE_HOME": os.fspath(tmp_path / "state"),
        "DVC_NO_ANALYTICS": "1",
    }
    here = Workspace(ROOT, environment)
    here.run("git", "clone", "--quiet", ".", os.fspath(tmp_path / "clone"))
    return Workspace(tmp_path / "clone", environment)


def _changed(workspace: Workspace) -> list[str]:
    return workspace.run("git", "status", "--porcelain").splitlines()


def test_nothing_is_run_and_nothing_is_measured(clone: Workspace) -> None:
    """Else `dvc repro` would measure for half an hour: `make relock`, once it is clear that no result changes by a commit."""
    tried = clone.run("dvc", "repro", "--allow-missing", "--dry")
    assert re.findall(r"Running stage '([^']+)'", tried) == []
    planned = re.findall(r"^rule (\w+):", clone.run("snakemake", "-n", "--quiet", "host"), re.MULTILINE)
    assert set(planned) <= {"report", "all"}
    assert not set(planned) & _MEASURING


def test_the_page_is_built_and_no_tracked_file_changes(clone: Workspace) -> None:
    clone.run("make", "report", f"VENV={sys.prefix}")
    assert _changed(clone) == []
    page = (clone.folder / "results/report.html").read_text()
    targets = re.findall(r'<a href="#([\w-]+)">[^<]+</a> <span class="soft">([\w-]+)</span>', page)
    assert {target for _, target in targets} >= {"cpu-onnxruntime", "cpu-openvino", "cpu-onednn", "pair-pocl"}
    assert all(f'id="{place}"' in page for place, _ in targets)
    assert "Nothing to be done" in clone.run("snakemake", "-n")


@pytest.mark.parametrize(
    ("damaged", "stage"),
    [
        ("results/cpu-onednn/cold/runs.parquet", "cold_tables@cpu-onednn"),
        ("results/cpu-onednn/memory/runs.parquet", "memory_tables@cpu-onednn"),
        ("results/pair-pocl/partition/models.parquet", "partition_tables@pair-pocl"),
        ("results/chapters/cpu-onednn/memory.page.json", "report"),
    ],
)
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_stage_that_fails_deletes_no_committed_file(clone: Workspace, damaged: str, stage: str, how: str) -> None:
    path = clone.folder / damaged
    path.write_bytes(path.read_bytes()[:100]) if how == "damaged" else path.unlink()
    status, _ = clone.result("dvc", "repro", "--force", "--single-item", stage)
    assert status != 0
    assert _changed(clone) == [f" {'M' if how == 'damaged' else 'D'} {damaged}"]
