"""The farm in one command: `snakemake rows` measures what every chapter asks for, and `dvc repro` nothing afterwards."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from workspace import COLD_DEVICE, DEVICE, Workspace, make_workspace

from edgeplan.chapters.profiles import profile
from edgeplan.chapters.registry import STAGES
from edgeplan.support.lazy import sha256


def _tiny(folder: Path, **more: object) -> Workspace:
    """A workspace whose params.yaml has the values of the tiny profile."""
    workspace = make_workspace(folder)
    path = workspace.folder / "params.yaml"
    params = yaml.safe_load(path.read_text())
    for name, values in profile(workspace.folder / "config/profiles/tiny.yaml").items():
        params[name] |= values
    params["cold_start"]["budget_seconds"] = 0  # what a budget leaves out is measured by the next run
    path.write_text(yaml.safe_dump(params | more, sort_keys=False))
    workspace.commit("tiny")
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
