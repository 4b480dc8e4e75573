"""A run that fails ends with its own error, and leaves no figures of another run under its name."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from shipped_params import PARAMS_FILE

LANE = "processes"  # see tests/conftest.py

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "workflow/scripts/reproduce.py"
OUTCOME = ("report.html", "cpu-openvino/metrics.json", "cpu-onednn/metrics.json")


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """The results of an earlier run: of the device, of one whose cold starts are measured too, and of a third."""
    folder = tmp_path / "results"
    for name in (*OUTCOME, "cpu-openvino/tables/table_01.csv", "cpu-onnxruntime/metrics.json"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("earlier")
    params = yaml.safe_load(PARAMS_FILE.read_text())
    params["partition"] |= {"pairs": [], "checked_pairs": []}
    params["cold_gpu"]["devices"], params["unseen"]["devices"] = [], []
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    return folder


def run(folder: Path, code: str, *words: str) -> subprocess.CompletedProcess[str]:
    """The script around a command that does what `code` says."""
    environment = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    command = [sys.executable, str(SCRIPT), "cpu-openvino", sys.executable, "-c", code, *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


#: Tells the words that it is given, and fails.
GIVEN = "import pathlib, sys; pathlib.Path('given').write_text(' '.join(sys.argv[1:])); sys.exit(4)"

FAILS = """
import pathlib, sys
pathlib.Path('work').mkdir(exist_ok=True)
pathlib.Path('work/error.txt').write_text('7\\nerror: too noisy\\n  where: device dev\\n  next:  stop other work\\n')
print('buried under much else', file=sys.stderr)
sys.exit(1)
"""


def test_the_last_lines_are_the_error_of_the_stage(results: Path, tmp_path: Path) -> None:
    done = run(tmp_path, FAILS)
    assert done.returncode == 7
    assert done.stderr.endswith("error: too noisy\n  where: device dev\n  next:  stop other work\n")
    assert not any((results / name).exists() for name in OUTCOME)
    assert "git checkout -- results/cpu-openvino/metrics.json results/cpu-onednn/metrics.json`" in done.stderr
    for kept in ("cpu-openvino/tables/table_01.csv", "cpu-onnxruntime/metrics.json"):
        assert (results / kept).read_text() == "earlier"


def test_an_error_of_an_earlier_run_is_not_told_again(results: Path, tmp_path: Path) -> None:
    assert results.is_dir()
    run(tmp_path, FAILS)
    done = run(tmp_path, "import sys; sys.exit(4)")
    assert done.returncode == 4
    assert "too noisy" not in done.stderr
    assert "ended with exit code 4\n  next:  " in done.stderr


def test_pairs_whose_processors_are_not_here_are_left_out_and_the_run_goes_on(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert results.is_dir()
    (tmp_path / "nothing").touch()
    monkeypatch.setenv("OCL_ICD_VENDORS", str(tmp_path / "nothing"))  # no OpenCL
    shutil.copytree(ROOT / "config/devices", tmp_path / "config/devices")
    pair = yaml.safe_load((ROOT / "config/pairs/pair-pocl.yaml").read_text())
    (tmp_path / "config/pairs").mkdir()
    for name, core in (("pair-absent", 99_999), ("pair-wrong", -1), ("pair-here", 1)):
        host, other = pair["processors"]
        document = pair | {"name": name, "processors": [host, other | {"cores": [core]}]}
        (tmp_path / f"config/pairs/{name}.yaml").write_text(yaml.safe_dump(document))
    params = tmp_path / "params.yaml"
    params.write_text(params.read_text().replace("  pairs: []", "  pairs: [pair-absent, pair-wrong, pair-here]"))
    done = run(tmp_path, GIVEN)
    assert done.returncode == 4
    assert (tmp_path / "given").read_text() == "-S partition.pairs=[pair-wrong]", "a faulty file is for the run to tell"
    absent, here = [line for line in done.stderr.splitlines() if "left out" in line]
    assert absent.startswith("pair-absent is left out: core 99999 does not exist on this machine (it has ")
    assert "; name cores among " in absent
    alone = "core 1 does not exist" if os.cpu_count() == 1 else "no OpenCL platform: "
    assert here.startswith(f"pair-here is left out: {alone}")
    assert "error: no" not in done.stderr


def test_gpus_that_are_not_here_and_devices_that_are_not_trained_are_left_out(results: Path, tmp_path: Path) -> None:
    assert results.is_dir()
    shutil.copytree(ROOT / "config/devices", tmp_path / "config/devices")
    params = yaml.safe_load((tmp_path / "params.yaml").read_text())
    params["cold_gpu"]["devices"], params["unseen"]["devices"] = ["cuda-h200"], ["cpu-openvino", "cuda-h200-8sm"]
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    done = run(tmp_path, GIVEN)
    assert done.returncode == 4
    gone = "-S cold_gpu.devices=[] " if "cuda-h200 is left out: " in done.stderr else ""
    assert (tmp_path / "given").read_text() == f"{gone}-S unseen.devices=[cpu-openvino]"
    words = ["-S", "cold_gpu.devices=[]", "-S", "unseen.devices=[cuda-h200-8sm]"]  # in place of what params name
    assert "left out" not in run(tmp_path, GIVEN, *words).stderr
    assert (tmp_path / "given").read_text() == " ".join([*words, "-S unseen.devices=[]"])


@pytest.mark.committed
def test_a_run_that_ends_well_says_what_came_out_and_where_it_stands(results: Path, tmp_path: Path) -> None:
    """The chapters hand over what the committed results hold."""
    params = tmp_path / "params.yaml"
    params.write_text(params.read_text().replace("  pairs: []", "  pairs: [pair-pocl]"))
    shutil.copytree(ROOT / "results", results, ignore=shutil.ignore_patterns("predictors", "report.html"), dirs_exist_ok=True)
    done = run(tmp_path, "import pathlib; pathlib.Path('results/cpu-openvino/metrics.json').write_text('new')")
    assert (done.returncode, done.stderr) == (0, "")
    *told, last = done.stdout.splitlines()
    assert last.startswith("done: results/report.html")
    systems = (
        "Latency prediction on cpu-openvino",
        "Cold start on cpu-onednn",
        "Memory on cpu-onednn",
        "Partition on pair-pocl",
        "EOP on pair-pocl",
    )
    assert all(sum(line.startswith(f"{system}: ") for line in told) == 1 for system in systems)
    assert all(len(line) <= 100 for line in told)
    assert (results / "cpu-openvino/metrics.json").read_text() == "new"
    assert not (results / "report.html").exists()
