"""Snakemake: one graph builds every stage once, `rows` measures what every chapter asks for, and nobody needs DVC."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from workspace import COLD_DEVICE, DEVICE, ROOT, Workspace, make_workspace

from edgeplan.chapters.registry import STAGES
from edgeplan.support.lazy import sha256


def _tiny(folder: Path, **more: object) -> Workspace:
    workspace = make_workspace(folder)
    workspace.take_tiny_values(cold_start={"budget_seconds": 0}, **more)  # what a budget leaves out is measured by the next run
    return workspace


def _rows(workspace: Workspace) -> dict[str, str]:
    """Every file of rows, of all devices, pairs and chapters; not who else used the machine, which each run notes."""
    rows = workspace.folder / "data/rows"
    files = [path for path in sorted(rows.rglob("*")) if path.is_file() and path.name != "others.json"]
    return {str(path.relative_to(rows)): sha256(path.read_bytes()).hexdigest() for path in files}


def test_rows_asks_for_every_stage_that_measures_and_trains_what_plans_are_made_from_first(tmp_path: Path) -> None:
    workspace = _tiny(tmp_path, devices=[DEVICE, COLD_DEVICE])
    told = workspace.run("snakemake", "-n", "--quiet", "host", "--", "rows")
    planned = re.findall(r"^rule (\w+):$", told, re.MULTILINE)
    measuring = {stage.name for stage in STAGES if stage.rows} - {
        "unseen",
        "cold_gpu",
    }  # which are for what is named, and nothing is
    assert set(planned) == {*measuring, "rows", "zoo", "nodes", "training"}
    (cold,) = re.findall(r"^rule cold_start:\n(?: .*\n)*", told, re.MULTILINE)
    assert f"results/{COLD_DEVICE}/predictors/card.json" in cold
    machines = re.findall(r"device=1, gres=device:(\S+):1", told)
    assert len(machines) == sum(planned.count(name) for name in measuring)
    assert set(machines) == {"local"}


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_nothing_is_measured_after_the_rows(tmp_path: Path) -> None:
    workspace = _tiny(tmp_path)
    workspace.run("snakemake", "--cores", "2", "rows")
    before = _rows(workspace)
    chapters = {stage.rows.split("/")[3] for stage in STAGES if stage.rows} - {"unseen", "cold_gpu"}
    assert {name.split("/")[1] for name in before} >= chapters
    workspace.run("dvc", "repro")
    assert _rows(workspace) == before
    assert (workspace.folder / "results/report.html").is_file()


@pytest.mark.slow
def test_one_graph_builds_every_stage_once_for_one_device(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    planned = re.findall(r"^rule (\w+):$", workspace.run("snakemake", "-n", "--quiet", "host"), re.MULTILINE)
    stages = set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]) - {
        "check",  # which is made while the graph is read
        "unseen",  # which is for what is named, and nothing is
    }
    assert sorted(planned) == sorted({*stages, "all"})


def _without_dvc(folder: Path, workspace: Workspace) -> Workspace:
    """The same with no program of the environment but Snakemake, and a module `dvc` that cannot be imported."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "snakemake").symlink_to(Path(sys.executable).with_name("snakemake"))
    blocked = folder / "blocked/dvc"
    blocked.mkdir(parents=True)
    (blocked / "__init__.py").write_text("raise ImportError('there is no DVC here')\n")
    path = os.pathsep.join([os.fspath(programs), "/usr/bin", "/bin"])
    return Workspace(workspace.folder, {**workspace.environment, "PATH": path, "PYTHONPATH": os.fspath(blocked.parent)})


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_everything_is_built_where_there_is_no_dvc(tmp_path: Path) -> None:
    whole = make_workspace(tmp_path)
    whole.take_tiny_values()
    workspace = _without_dvc(tmp_path, whole)
    assert workspace.result(sys.executable, "-c", "import dvc")[0] != 0
    assert shutil.which("dvc", path=workspace.environment["PATH"]) is None
    workspace.run("snakemake", "--cores", "2")
    assert json.loads((workspace.folder / "results" / DEVICE / "metrics.json").read_text())["prediction.models"] >= 13
    page = (workspace.folder / "results/report.html").read_text()
    assert all(
        f'id="{place}"' in page for place in (f"{DEVICE}-prediction", f"{COLD_DEVICE}-cold-start", f"{COLD_DEVICE}-memory")
    )
    assert "Nothing to be done" in workspace.run("snakemake", "-n")
