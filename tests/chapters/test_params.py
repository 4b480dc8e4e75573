"""Values of params.yaml, each mistake in which is named; and the command that runs a stage: what it refuses and takes back."""

from __future__ import annotations

import copy
import fcntl
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from shipped_params import PARAMS_FILE

from edgeplan.chapters import running, wiring
from edgeplan.chapters.check import check_params
from edgeplan.chapters.profiles import merged, profile
from edgeplan.chapters.registry import CHAPTERS, STAGES, Params, load_params, params_on
from edgeplan.chapters.running import ERROR, LOCK, held, run_stage
from edgeplan.devices.config import load_device
from edgeplan.errors import BusyError, DeviceError, ParamsError, StoreError
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


def test_a_misspelt_stage_is_told_what_is_near_and_a_folder_that_is_no_workspace() -> None:
    assert "there is no stage 'samplng'" in (said := _refused("samplng", DEVICE))
    assert said.rstrip().endswith("name one: sampling")
    assert "check, " not in said
    assert "zoo" in _refused("", {})
    Path("params.yaml").unlink()
    assert "there is no params.yaml here" in _refused("zoo", {})


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


SHIPPED: dict[str, Any] = yaml.safe_load(PARAMS_FILE.read_text())


def _write(path: Path, dotted: str, value: Any) -> Path:
    """The shipped values but for one; `...` leaves its key out."""
    document = copy.deepcopy(SHIPPED)
    *above, last = dotted.split(".")
    section = reduce(getitem, above, document)
    section |= {last: value}
    if value is ...:
        del section[last]
    path.write_text(yaml.safe_dump(document))
    return path


def test_every_knob_is_in_the_shipped_params() -> None:
    """A default in the package alone would decide results that no experiment shows."""

    def named(model: BaseModel, given: Any, place: str) -> list[str]:
        lacking = []
        for name in type(model).model_fields:
            value = getattr(model, name)
            if name not in given:
                lacking.append(f"{place}{name}")
            elif isinstance(value, BaseModel):
                lacking += named(value, given[name], f"{place}{name}.")
        return lacking

    assert named(load_params(PARAMS_FILE), SHIPPED, "") == []


@pytest.mark.parametrize("path", sorted((ROOT / "config/profiles").glob("*.yaml")), ids=lambda p: p.stem)
def test_profiles_change_known_params_only(path: Path) -> None:
    Params.model_validate(merged(SHIPPED, profile(path)))


@pytest.mark.parametrize(
    "dotted", ["sed", "measurement.reference_exponents.cpu", "fusion.alhpa", "transfer.from", "adaptation"]
)
def test_a_misspelt_key_is_named(tmp_path: Path, dotted: str) -> None:
    path = _write(tmp_path / "params.yaml", dotted, 1)
    with pytest.raises(ParamsError, match=rf"{dotted}: no such field") as caught:
        load_params(path)
    assert caught.value.where == str(path)
    assert f"leave out {dotted}, or see in CHANGELOG.md" in caught.value.next_step


@pytest.mark.parametrize(
    ("dotted", "value", "told"),
    [
        ("training.prior", ["cpu-onednn"], "edgeplan device adapt"),  # what learns from devices
        *((dotted, ..., f"{dotted}: Field required") for dotted in ("seed", "measurement", "sampling.rounds")),
        ("devices", [], "devices"),
        ("calibration.seed", SHIPPED["zoo"]["seed"], r"calibration: .*seed must not be zoo\.seed"),
        ("devices", ["../escape"], "devices"),
        ("measurement.max_noise", 0, r"measurement\.max_noise"),
        ("measurement.block_ms", "soon", r"measurement\.block_ms"),
        ("sampling.modes", {"onnxruntime": "blind"}, r"sampling\.modes"),
        ("evaluation.speed_runs", None, r"evaluation\.speed_runs"),
        ("cold_start.models", ["resnet51"], "cold_start.*models: there is no 'resnet51'"),
        ("cold_start.settings", ["caffe"], "cold_start.*settings: there is no 'caffe'"),
        ("cold_start.threads", [2, 2], "cold_start.*threads: a value stands there twice"),
        ("cold_start.plans", ["best"], "cold_start.*plans"),
        ("cold_start.load_percents", [25, 50], "cold_start.*load_percents: 0 must be among them"),
    ],
)
def test_a_missing_key_and_a_value_out_of_range_are_named(tmp_path: Path, dotted: str, value: Any, told: str) -> None:
    with pytest.raises(ParamsError, match=told):
        load_params(_write(tmp_path / "params.yaml", dotted, value))


def test_every_problem_is_told_at_once(tmp_path: Path) -> None:
    path = _write(tmp_path / "params.yaml", "zoo.variants_per_family", 0)
    path.write_text(path.read_text() + "seed: -1\n")  # the later one counts
    with pytest.raises(ParamsError, match=r"seed: .*; zoo\.variants_per_family: "):
        load_params(path)


@pytest.mark.parametrize("text", ["", "- 1", "seed: [", "seed: \t1", None])
def test_what_is_no_mapping_or_not_there_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "others.yaml"
    if text is not None:
        path.write_text(text)
    what = "params file" if text is not None else "cannot read params file: No such file"
    with pytest.raises(ParamsError, match=what) as caught:
        load_params(path)
    assert caught.value.where == str(path)
    assert caught.value.next_step


def _device(folder: Path, settings: dict[str, Any]) -> Path:
    path = folder / "board.yaml"
    path.write_text(yaml.safe_dump({"format_version": 2, "name": "board", "engine": "onednn", "settings": settings}))
    return path


def test_a_device_has_values_of_its_own(tmp_path: Path) -> None:
    params = load_params(PARAMS_FILE)
    own = params_on(params, _device(tmp_path, {"sampling": {"budget_seconds": 9.0}}))
    assert own.model_dump()["sampling"] == params.model_dump()["sampling"] | {"budget_seconds": 9.0}
    assert own.model_dump(exclude={"sampling"}) == params.model_dump(exclude={"sampling"})
    assert params_on(params, _device(tmp_path, {})) is params


@pytest.mark.parametrize("path", sorted((ROOT / "config/devices").glob("*.yaml")), ids=lambda p: p.stem)
def test_stages_of_a_device_know_the_values_that_it_has_of_its_own(path: Path) -> None:
    """Such a stage has the device file among its inputs: without, it would take the values for all."""
    own = load_device(path).settings.keys()
    all_stages = [stage for chapter in CHAPTERS.values() for stage in chapter.stages]
    stages = [stage for stage in all_stages if stage.targets and stage.targets.wildcards == ("device",)]
    asked = {stage.name: set(stage.params) & own for stage in stages}
    assert {name for name, sections in asked.items() if sections} <= {s.name for s in stages if "device" in s.inputs}
    assert set().union(*asked.values()) == own


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"samplings": {"rounds": 1}}, "samplings: no such field"),
        ({"sampling": {"round": 1}}, r"sampling\.round: no such field"),
        ({"sampling": {"rounds": -1}}, r"sampling\.rounds: "),
        ({"training": {"prior": []}}, "edgeplan device adapt"),
    ],
)
def test_a_devices_values_that_do_not_fit_are_named(tmp_path: Path, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ParamsError, match=problem) as error:
        params_on(load_params(PARAMS_FILE), _device(tmp_path, settings))
    assert "board.yaml" in str(error.value)


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped devices, beside the shipped pairs."""
    monkeypatch.chdir(ROOT)  # config/pairs
    return Path(shutil.copytree(ROOT / "config/devices", tmp_path / "devices"))


def test_the_shipped_params_pass(devices: Path) -> None:
    assert check_params(PARAMS_FILE, devices).devices


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("devices", ["cpu-onnxruntime", "cpu-nope"]),
        ("truth.repeat", ["cpu-nope"]),
        ("transfer.source", "cpu-nope"),
        ("transfer.target", "cpu-nope"),
        ("cold_start.devices", ["cpu-nope"]),
        ("partition.pairs", ["pair-nope"]),
    ],
)
def test_a_device_or_a_pair_without_a_file_is_named_with_its_key(tmp_path: Path, devices: Path, place: str, value: Any) -> None:
    path, name = _write(tmp_path / "params.yaml", place, value), value if isinstance(value, str) else value[-1]
    folder, kind, known = (devices, "device", "cpu-onednn, cpu-onnxruntime, cpu-openvino")
    if name == "pair-nope":
        folder, kind, known = Path("config/pairs"), "pair", "pair-pocl"
    with pytest.raises(DeviceError, match=rf"unknown {kind} '{name}': there is no .*{name}\.yaml") as caught:
        check_params(path, devices)
    assert caught.value.where == f"{path}, {place}"
    assert known in caught.value.next_step
    assert f"git add {folder / name}.yaml" in caught.value.next_step


def test_a_prior_that_is_not_shipped_ends_a_run_before_anything_is_measured(tmp_path: Path, devices: Path) -> None:
    path = _write(tmp_path / "params.yaml", "fusion.prior", ["cpu-onednn", "cpu-nope"])
    with pytest.raises(DeviceError, match="'cpu-nope'") as caught:
        check_params(path, devices)
    assert caught.value.where == "fusion.prior"
    assert "cpu-onednn, cpu-onnxruntime, cpu-openvino" in caught.value.next_step
