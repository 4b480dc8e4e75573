"""A board without a network: a bundle is brought to an empty home folder, once, and its worker measures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from workspace import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
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
