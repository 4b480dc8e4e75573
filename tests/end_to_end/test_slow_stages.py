"""What takes minutes: the tiny profile and what a user does then, a board's worker, cold starts without time, and the wheel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pandas as pd
import pytest
import yaml
from workspace import COLD_DEVICE, DEVICE, ROOT, Workspace, make_workspace

from edgeplan.chapters.cold_start.evaluation.evidence import FRAMES, OPTIMAL, OWN
from edgeplan.chapters.cold_start.evaluation.page import write
from edgeplan.chapters.cold_start.stages.cold_start import measure_cold_start
from edgeplan.chapters.registry import load_params
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.bench import read_rows
from edgeplan.zoo import prior_models

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """The tiny profile, run once and committed."""
    workspace = make_workspace(tmp_path_factory.mktemp("tiny"))
    workspace.run("dvc", "exp", "run", *workspace.values())
    workspace.commit("tiny results")
    return workspace


def test_speed_of_predictions_is_recorded(tiny: Workspace) -> None:
    metrics = json.loads((tiny.folder / "results" / DEVICE / "metrics.json").read_text())
    shown = {key: value for key, value in metrics.items() if key.startswith("speed.")}
    print(json.dumps(shown, indent=2))  # noqa: T201 - the purpose of `make bench`
    assert shown["speed.predict_process_s"] < 10
    assert shown["speed.predict_call_ms"] < 500


def test_nothing_to_do_afterwards_nor_once_files_were_touched(tiny: Workspace) -> None:
    before = tiny.rows()
    start = time.monotonic()
    assert "up to date" in tiny.run("dvc", "repro")
    assert time.monotonic() - start <= 5
    for path in tiny.run("git", "ls-files").splitlines():
        (tiny.folder / path).touch()
    tiny.run("dvc", "repro")
    assert "Nothing to be done" in tiny.run("snakemake", "-n")
    assert tiny.rows() == before


def test_stored_rows_suffice_for_the_tables_and_give_the_same(tiny: Workspace, tmp_path: Path) -> None:
    clone = tiny.clone(tmp_path / "clone")
    stored = Workspace(clone.folder, {**clone.environment, "EDGEPLAN_STORED_ROWS_ONLY": "1"})
    stored.run("dvc", "repro", "--force")
    assert clone.rows() == tiny.rows()
    journal = f"data/rows/{COLD_DEVICE}/cold_start/runs.jsonl"
    assert sorted((clone.folder / journal).open()) == sorted((tiny.folder / journal).open())
    assert not stored.run("git", "status", "--porcelain"), stored.run("git", "diff", "--stat")


def test_cheap_changes_run_what_depends_on_them(tiny: Workspace, tmp_path: Path) -> None:
    """The workspace's own cache is at hand, so that predictors are not trained again."""
    clone = tiny.clone(tmp_path / "clone")
    clone.run("dvc", "config", "--local", "cache.dir", str(tiny.folder / ".dvc/cache"))
    ran = clone.run("dvc", "exp", "run", "--name", "fewer", "-S", "evaluation.batch_models=13")
    assert set(re.findall(r"Running stage '([a-z_]+)@?", ran)) <= {"check", "evaluation", "transfer", "report"}
    assert f"Running stage 'evaluation@{DEVICE}'" in ran
    assert "evaluation.batch_models" in clone.run("dvc", "params", "diff")


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
    if code and "wheels for" in output:
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
    assert 0 <= metrics["prediction.within_10pct"] <= 1
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


def test_a_stage_without_time_ends_with_a_plan_and_a_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    params = load_params(ROOT / "params.yaml")
    changes = {
        "models": ("squeezenet",),
        "settings": ("onnxruntime", "onnxruntime-prepacked"),
        "threads": (1, 2),
        "repeats": 2,
        "further_repeats": 2,
        "profile_blocks": 2,
        "checked_choices": 2,
        "budget_seconds": 1.0,
    }
    params = params.model_copy(update={"cold_start": params.cold_start.model_copy(update=changes)})
    folders = {name: tmp_path / name for name in ("predictors", "rows", "work", "measured")}
    measure_cold_start(params, device=ROOT / "config/devices/cpu-onednn.yaml", **folders)
    read = {name: pd.read_parquet(folders["measured"] / f"{name}.parquet") for name in FRAMES}
    notes = json.loads((folders["measured"] / "notes.json").read_text())

    assert set(read["plans"]["plan"]) == {OPTIMAL}
    assert "squeezenet-nnv12-2" in notes["plans"]
    runs = read["runs"]
    good = runs[runs["reason"] == ""]
    assert {(s, t) for s, t in zip(good["setting"], good["threads"], strict=True)} == {(OWN, 2), ("onnxruntime", 2)}
    assert set(good["repeat"]) == {0}
    over = runs[runs["setting"] == "onnxruntime-prepacked"]["reason"]
    assert over.str.contains("the time for measuring cold starts was over").all()
    assert (read["checks"]["error"] < 1e-3).all()
    assert len(read["checks"]) == 1
    for topic in ("checks.squeezenet", "load", "runs"):
        assert "cold_start.budget_seconds (1) was over" in notes[topic], topic

    write(measured=folders["measured"], metrics=tmp_path / "cold.json", chapter=tmp_path / "cold.page.json")
    assert json.loads((tmp_path / "cold.json").read_text())


_CLEARED = ("PYTHONPATH", "EDGEPLAN_WORKSPACE", "VIRTUAL_ENV")


_PIP = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
#: What pip says where there is no index to install from.
_OFFLINE = ("No matching distribution found", "Could not find a version", "Connection", "Failed to establish")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel that was built of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    tree = make_workspace(folder / "built").folder
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--wheel-dir", os.fspath(folder)]
    subprocess.run([*_PIP, "wheel", *options, os.fspath(tree)], check=True)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, installed from the wheel; what it depends on is that of this environment."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    python = folder / "venv/bin/python"
    subprocess.run([*_PIP, f"--python={python}", "install", "--no-deps", "--no-index", os.fspath(wheel)], check=True)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    # a line of a .pth file is a folder of modules alone: what points from there to the checkout is not followed
    places = dict.fromkeys([sysconfig.get_path("purelib"), sysconfig.get_path("platlib")])
    (packages / "dependencies.pth").write_text("\n".join(places) + "\n")
    return folder / "venv/bin/edgeplan"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command, installed with its extra `runtime` into an empty environment, as README.md says."""
    folder = tmp_path_factory.mktemp("empty")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    command = [*_PIP, f"--python={folder / 'venv/bin/python'}", "install", f"{wheel}[runtime]"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=_cleared())
    if done.returncode and any(text in done.stderr for text in _OFFLINE):
        pytest.skip("no package index to install from")
    assert done.returncode == 0, done.stderr
    return folder / "venv/bin/edgeplan"


def _cleared() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _CLEARED}


def _ended(command: Path, folder: Path, *words: str) -> tuple[int, str]:
    """Exit status and output of a command in a folder."""
    environment = {**_cleared(), "HOME": os.fspath(folder), "XDG_STATE_HOME": os.fspath(folder / "state")}
    done = subprocess.run([command, *words], cwd=folder, env=environment, check=False, capture_output=True, text=True)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout + done.stderr


def test_the_package_is_that_of_the_wheel(program: Path, tmp_path: Path) -> None:
    _, found = _ended(program.with_name("python"), tmp_path, "-c", "import edgeplan; print(edgeplan.__file__)")
    assert Path(found.strip()).is_relative_to(program.parents[1])


@pytest.fixture(params=["program", "installed"])
def command(request: pytest.FixtureRequest) -> Path:
    """The command, with the packages of this environment, and with those of an index."""
    return Path(request.getfixturevalue(request.param))


def test_every_wish_is_served_in_an_empty_folder(command: Path, tmp_path: Path) -> None:
    def said(*words: str) -> str:
        code, told = _ended(command, tmp_path, *words)
        assert code == 0, f"{words}: {told}"
        return told

    assert said("--version").startswith("edgeplan ")
    said("export", "squeezenet", "-o", "models/net.onnx")
    for device in ("cpu-onnxruntime", "cpu-openvino", "cpu-onednn"):
        answer = said("predict", "models/net.onnx", "-d", device)
        assert " ms (90 % interval" in answer
        assert "machine" in answer.splitlines()[0]  # whose it is
    assert {path.name for path in tmp_path.iterdir()} <= {"models", "state", ".cache"}
    planned = said("plan", "cold-start", "models/net.onnx", "--costs", "predicted", "-o", "cold")
    assert "ms predicted (predicted costs" in planned
    assert "largest difference from ONNX Runtime" in said("run", "cold", "--check")
    assert "measured peak" in said("plan", "memory", "models/net.onnx", "-b", "16MiB", "-o", "memory")
    ran = said("run", "memory", "--check", "-o", "out/y.npz")
    assert "largest difference from ONNX Runtime" in ran
    told = r"peak ([\d.]+) MiB, [\d.]+ before the plan was opened: [\d.]+ over the ([\d.]+) of the idle process, budget 16.00"
    peak = re.search(told, ran)
    assert peak
    assert float(peak[1]) <= float(peak[2]) + 16
    assert (tmp_path / "out/y.npz").is_file()


def test_pairs_are_known_as_in_a_checkout(program: Path, tmp_path: Path) -> None:
    """Their devices are found and their cores looked at; a plan by predictors asks for what a checkout measures."""
    model = save_onnx(prior_models()["resnet18"](), tmp_path / "resnet18.onnx")

    for pair in sorted(path.stem for path in (ROOT / "config/pairs").glob("*.yaml")):
        code, said = _ended(program, tmp_path, "device", "check", "--pair", pair)
        assert code == 0, said
        assert re.search(rf"^pair +{pair}\ncpu +oneDNN .*\ngpu ", said), said
        given = ("-o", "plan", "--costs", "predicted")
        code, said = _ended(program, tmp_path, "plan", "partition", model.name, "--pair", pair, *given)
        assert code, said
        assert f"dvc repro partition@{pair}" in said
    assert "known pairs: pair-pocl" in _ended(program, tmp_path, "device", "check", "--pair", "pair-none")[1]
