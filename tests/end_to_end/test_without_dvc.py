"""Snakemake alone: the whole graph in an environment that has no DVC."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from workspace import COLD_DEVICE, DEVICE, Workspace, make_workspace

from edgeplan.chapters.profiles import profile

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


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


def test_everything_is_built_where_there_is_no_dvc(tmp_path: Path) -> None:
    whole = make_workspace(tmp_path)
    params = yaml.safe_load((whole.folder / "params.yaml").read_text())
    tiny = profile(whole.folder / "config/profiles/tiny.yaml")
    for name, values in tiny.items():
        params[name] |= values
    (whole.folder / "params.yaml").write_text(yaml.safe_dump(params))
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
