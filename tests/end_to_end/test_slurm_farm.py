"""The farm through a cluster: jobs of two machines run side by side, those of one machine one after the other."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest
import yaml
from slurm_cluster import lacking, slurm_cluster
from workspace import Workspace, make_workspace

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800), pytest.mark.skipif(bool(lacking()), reason=lacking() or "no reason")]
#: Boards, and the machines that they are on: two of them share one.
_BOARDS = {"board-a": "rack", "board-b": "bench", "board-c": "rack"}


def _configure(workspace: Workspace) -> None:
    """Name the boards, and values so small that a stage takes a minute."""
    for name, machine in _BOARDS.items():
        transport = {"kind": "command", "argv": [sys.executable, "-m", "edgeplan", "worker"]}
        device = {"format_version": 2, "name": name, "engine": "onnxruntime", "machine": machine, "transport": transport}
        (workspace.folder / f"config/devices/{name}.yaml").write_text(yaml.safe_dump(device))
    path = workspace.folder / "params.yaml"
    params = yaml.safe_load(path.read_text())
    params |= {"devices": list(_BOARDS), "transfer": {"source": "board-a", "target": "board-b"}}
    params["calibration"]["variants_per_family"] = 1
    params["truth"]["min_gap_seconds"] = 0.0
    params["measurement"] |= {"min_runs": 2, "max_runs": 2, "block_ms": 0.1, "extra_blocks": 0, "retries": 0}
    path.write_text(yaml.safe_dump(params, sort_keys=False))
    workspace.commit("boards")


def _spans(told: str) -> dict[str, tuple[datetime, datetime]]:
    """When each job ran, by the machine and number of the job."""
    found = {}
    for block in told.strip().split("\n\n"):
        fields = dict(re.findall(r"(\w+)=(\S+)", block))
        machine = re.search(r"device:([a-z-]+):1", block)
        if machine and fields["JobState"] == "COMPLETED":
            span = (datetime.fromisoformat(fields["StartTime"]), datetime.fromisoformat(fields["EndTime"]))
            found[f"{machine[1]} {fields['JobId']}"] = span
    return found


def test_a_cluster_measures_machines_side_by_side_and_each_by_one_job(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "w")
    _configure(workspace)
    (tmp_path / "slurm").mkdir()
    with slurm_cluster(tmp_path / "slurm", ["local", *sorted(set(_BOARDS.values()))]) as inside:
        command = [*inside, f"--wd={workspace.folder}", "snakemake", "--profile", "profiles/slurm"]
        targets = [f"results/{name}/calibration/models.parquet" for name in _BOARDS]
        options = ["--slurm-no-account", "--slurm-status-command", "squeue", "--seconds-between-status-checks", "3"]
        code, output = workspace.result(*command, *options, *targets)
        logs = [path.read_text()[-1500:] for path in (workspace.folder / ".snakemake/slurm_logs").rglob("*.log")]
        assert code == 0, f"{output[-3000:]}\n{logs}"
        told = subprocess.run([*inside, "scontrol", "show", "jobs"], capture_output=True, text=True, check=True).stdout
    spans = _spans(told)
    assert sorted(name.split()[0] for name in spans) == sorted(_BOARDS.values()), told
    for (one, (a, b)), (two, (c, d)) in itertools.combinations(spans.items(), 2):
        if one.split()[0] == two.split()[0]:
            assert b <= c or d <= a, f"jobs of one machine overlap: {spans}"
    bench = next(span for name, span in spans.items() if name.startswith("bench"))
    racks = [span for name, span in spans.items() if name.startswith("rack")]
    assert any(a < bench[1] and bench[0] < b for a, b in racks), f"jobs of two machines do not overlap: {spans}"
    assert all((workspace.folder / target).is_file() for target in targets)
