"""The root Snakefile alone, without DVC having built anything."""

from __future__ import annotations

import re
from pathlib import Path

import yaml
from workspace import ROOT, make_workspace


def test_one_graph_builds_every_stage_once_for_one_device(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    planned = re.findall(r"^rule (\w+):$", workspace.run("snakemake", "-n", "--quiet", "host"), re.MULTILINE)
    stages = set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]) - {
        "check",  # which is made while the graph is read
        "unseen",  # which is for what is named, and nothing is
    }
    assert sorted(planned) == sorted({*stages, "all"})
