"""The stages of prediction through a worker: a device that is reached by a command, from rules to evaluation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from workspace import DEVICE, ROOT, make_workspace

from edgeplan.measurement.rows import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_a_device_behind_a_command_goes_through_all_stages_of_prediction(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path)
    path = workspace.folder / f"config/devices/{DEVICE}.yaml"
    transport = {"kind": "command", "argv": [sys.executable, "-m", "edgeplan", "worker"]}
    device = yaml.safe_load(path.read_text()) | {"format_version": 2, "transport": transport}
    path.write_text(yaml.safe_dump(device))
    workspace.commit("behind a command")
    workspace.run("dvc", "exp", "run", f"evaluation@{DEVICE}", *workspace.values())
    metrics = json.loads((workspace.folder / f"results/chapters/{DEVICE}/prediction.json").read_text())
    assert metrics["prediction.models"] >= 13
    assert len(pd.read_csv(workspace.folder / f"results/{DEVICE}/fusion/verification.csv"))
    shipped = next(iter(sorted((ROOT / "data/rows" / DEVICE / "truth").glob("*.parquet"))))
    (own,) = sorted((workspace.folder / "data/rows" / DEVICE / "truth").glob("*.parquet"))
    assert read_rows(own)[0].keys() == read_rows(shipped)[0].keys()
    journals = sorted((tmp_path / "state/edgeplan/worker" / DEVICE).glob("*.jsonl"))
    lines = [json.loads(line)["row"] for file in journals for line in file.read_text().splitlines()]
    stored = {subject for _, subject, _, _ in workspace.rows()}
    assert stored == {line["name"] for line in lines}, "each stored row was journalled by the worker"
    environment = json.loads((workspace.folder / f"results/{DEVICE}/evaluation/environment.json").read_text())
    assert "clock_offset_s" in environment
