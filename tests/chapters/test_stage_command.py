"""The command that runs a stage: what it refuses, what it holds, and what it takes back."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from shipped_params import PARAMS_FILE

from edgeplan.chapters import running, wiring
from edgeplan.chapters.registry import STAGES
from edgeplan.chapters.running import ERROR, LOCK, held, run_stage
from edgeplan.errors import BusyError, StoreError
from edgeplan.support.termination import DVC_STAGE

ROOT = Path(__file__).parents[2]
DEVICE = {"device": "cpu-x"}
TABLES = next(stage for stage in STAGES if stage.name == "memory_tables")


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with params.yaml and nothing else."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(DVC_STAGE, raising=False)
    (tmp_path / "params.yaml").write_text(PARAMS_FILE.read_text())
    return tmp_path


def _refused(name: str, target: Mapping[str, str]) -> str:
    with pytest.raises(SystemExit) as ended:
        run_stage(name, target)
    code, said = ERROR.read_text().split("\n", 1)
    assert int(code) == ended.value.code
    return said


def test_a_misspelt_stage_is_told_what_is_near() -> None:
    assert "there is no stage 'samplng'" in (said := _refused("samplng", DEVICE))
    assert said.rstrip().endswith("name one: sampling")
    assert "check, " not in said
    assert "zoo" in _refused("", {})


@pytest.mark.parametrize(
    ("name", "target", "said", "following"),
    [
        ("sampling", {}, "stage sampling runs for a device", "edgeplan stage sampling --device DEVICE"),
        ("partition", DEVICE, "stage partition runs for a pair, not for a device", "edgeplan stage partition --pair PAIR"),
        ("transfer", DEVICE, "stage transfer runs once, not for a device", "edgeplan stage transfer"),
        ("memory_tables", DEVICE, "where: results/cpu-x/memory/runs.parquet\n", "edgeplan stage memory --device cpu-x"),
        ("memory", DEVICE, "where: config/devices/cpu-x.yaml\n", "write this file; no stage does"),
        ("partition_eop_tables", {"pair": "p"}, "/eop/sampled.parquet\n", "edgeplan stage partition_eop --pair p"),
        ("transfer", {}, "cpu-onnxruntime/evaluation/models", "edgeplan stage evaluation --device cpu-onnxruntime"),
    ],
)
def test_a_target_that_does_not_fit_and_a_missing_input_are_told_with_the_command(
    name: str, target: Mapping[str, str], said: str, following: str
) -> None:
    found = _refused(name, target)
    assert said in found
    assert found.rstrip().endswith(f"next:  {following}")


def test_a_folder_that_is_no_workspace_is_told(workspace: Path) -> None:
    (workspace / "params.yaml").unlink()
    assert "there is no params.yaml here" in _refused("zoo", {})


@pytest.fixture
def inputs(workspace: Path) -> None:
    for path in TABLES.inputs.values():
        made = workspace / path.format(**DEVICE)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text("{}" if made.suffix == ".json" else "")


def writes_half(metrics: Path, measured: Path) -> None:
    """Stand for the function of a stage that fails when it has written half of its files."""
    metrics.write_text("new")
    (measured / "tables").mkdir(exist_ok=True)
    (measured / "tables/a.csv").write_text("new")
    raise StoreError("no more")


@pytest.mark.usefixtures("inputs")
def test_what_a_stage_that_fails_had_written_is_taken_back(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "STAGES", (replace(TABLES, function=f"{__name__}:writes_half"),))
    monkeypatch.setitem(sys.modules, __name__, sys.modules[writes_half.__module__])
    metrics, folder = workspace / "results/chapters/cpu-x/memory.json", workspace / "results/cpu-x/memory/tables"
    assert "no more" in _refused("memory_tables", DEVICE)
    assert not metrics.exists()
    assert not folder.exists()
    metrics.write_text("old")
    folder.mkdir()
    (folder / "a.csv").write_text("old")
    assert "no more" in _refused("memory_tables", DEVICE)
    assert metrics.read_text() == (folder / "a.csv").read_text() == "old"
    assert "error: no more" in (workspace / "work/logs/memory_tables-cpu-x.log").read_text()


@pytest.mark.usefixtures("inputs")
def test_dvc_notes_nothing_of_code_that_make_wire_has_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DVC_STAGE, "memory_tables@cpu-x")
    wiring.CODE.parent.mkdir()
    wiring.CODE.write_text(json.dumps({TABLES.name: "another"}))
    assert "make wire" in _refused("memory_tables", DEVICE)
    wiring.CODE.write_text(json.dumps({TABLES.name: wiring.code_digest(TABLES.module)}))
    assert "cannot read the table runs" in _refused("memory_tables", DEVICE), "it goes on, and meets an empty file"


_HOLD = """
import subprocess, sys
from edgeplan.chapters.running import held
with held(wait=False):
    if sys.argv[1:]:
        subprocess.run([sys.executable, *sys.argv[1:]], check=True)
    else:
        print("held", flush=True)
        sys.stdin.read()
"""


def test_one_run_holds_a_workspace_and_what_it_starts_holds_it_too(workspace: Path) -> None:
    inner = "from edgeplan.chapters.running import held\nwith held(wait=False): print('inside')"
    started = subprocess.run([sys.executable, "-c", _HOLD, "-c", inner], capture_output=True, text=True, check=True)
    assert started.stdout == "inside\n"
    with subprocess.Popen([sys.executable, "-c", _HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match="another run is building in this folder") as refused, held(wait=False):
            pass
        assert f"process {other.pid}" in str(refused.value)
        other.kill()
    with held(wait=False):
        assert LOCK.read_text() == str(os.getpid())
        with (workspace / LOCK).open("a") as again, pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
