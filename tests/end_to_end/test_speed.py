"""How long a run with nothing to do and a prediction take (`make bench` shows the figures)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import yaml
from workspace import DEVICE, ROOT, Workspace, make_workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_speed_of_predictions_is_recorded(tiny: Workspace) -> None:
    metrics = json.loads((tiny.folder / "results" / DEVICE / "metrics.json").read_text())
    shown = {key: value for key, value in metrics.items() if key.startswith("speed.")}
    print(json.dumps(shown, indent=2))  # noqa: T201 - the purpose of `make bench`
    assert shown["speed.predict_process_s"] < 10
    assert shown["speed.predict_call_ms"] < 500


def test_one_graph_builds_every_stage_once_for_one_device(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    planned = re.findall(r"^rule (\w+):$", workspace.run("snakemake", "-n", "--quiet", "host"), re.MULTILINE)
    stages = set(yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]) - {
        "check",  # which is made while the graph is read
        "unseen",  # which is for what is named, and nothing is
    }
    assert sorted(planned) == sorted({*stages, "all"})
