"""Boards behind commands: a bundle is brought to an empty home folder, once; a worker measures for all stages of prediction."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from workspace import DEVICE, ROOT, make_workspace

from edgeplan.measurement.rows import read_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_OFFLINE = "wheels for"


def edgeplan(*words: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow")}
    command = [sys.executable, "-m", "edgeplan", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_a_worker_is_brought_once_and_measures_there(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    there = ["env", "-u", "PYTHONPATH", f"HOME={home}"]
    python = home / ".local/share/edgeplan/environment/bin/python"
    document = {
        "format_version": 2,
        "name": "dev",
        "engine": "onnxruntime",
        "transport": {"kind": "command", "argv": [*there, str(python), "-m", "edgeplan", "worker"], "deploy": there},
    }
    device = tmp_path / "dev.yaml"
    device.write_text(yaml.safe_dump(document))
    code, output = edgeplan("device", "check", str(device), "--seconds", "1")
    assert (code, "edgeplan device deploy dev" in output) == (3, True), output
    code, output = edgeplan("device", "deploy", str(device))
    if code and _OFFLINE in output:
        pytest.skip("no package index can be reached")
    assert code == 0, output
    assert "MiB brought to dev" in output
    before = python.stat().st_ino
    code, output = edgeplan("device", "deploy", str(device))
    assert (code, "has it already" in output) == (0, True), output
    assert python.stat().st_ino == before
    code, output = edgeplan("device", "check", str(device), "--seconds", "1")
    assert code in {0, 7}, output  # it may be noisy
    assert "fingerprint" in output
    installed = {path.name for path in (home / ".local/share/edgeplan/environment/lib").glob("python*/site-packages/*")}
    assert not {"pandas", "pyarrow", "lightgbm", "snakemake", "dvc"} & installed


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
