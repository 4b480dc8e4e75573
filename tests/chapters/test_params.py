"""params.yaml and the profiles: every misspelt key, value out of range and unknown device is named before anything is built."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel
from shipped_params import PARAMS_FILE

from edgeplan.chapters.check import check_params
from edgeplan.chapters.profiles import profile
from edgeplan.chapters.registry import CHAPTERS, Params, load_params, params_on
from edgeplan.devices.config import load_device
from edgeplan.errors import DeviceError, ParamsError

ROOT = Path(__file__).parents[2]
SHIPPED: dict[str, Any] = yaml.safe_load(PARAMS_FILE.read_text())


def _write(path: Path, dotted: str, value: Any) -> Path:
    document = copy.deepcopy(SHIPPED)
    *above, last = dotted.split(".")
    section = document
    for key in above:
        section = section[key]
    if value is ...:
        del section[last]
    else:
        section[last] = value
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


def _merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    return {
        k: _merge(base[k], over[k])
        if isinstance(base.get(k), dict) and isinstance(over.get(k), dict)
        else over.get(k, base.get(k))
        for k in {**base, **over}
    }


@pytest.mark.parametrize("path", sorted((ROOT / "config/profiles").glob("*.yaml")), ids=lambda p: p.stem)
def test_profiles_change_known_params_only(path: Path) -> None:
    Params.model_validate(_merge(SHIPPED, profile(path)))


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
    path = _write(tmp_path / "params.yaml", "seed", -1)
    document = yaml.safe_load(path.read_text())
    document["zoo"]["variants_per_family"] = 0
    path.write_text(yaml.safe_dump(document))
    with pytest.raises(ParamsError, match=r"seed: .*; zoo\.variants_per_family: "):
        load_params(path)


@pytest.mark.parametrize("text", ["", "- 1", "seed: [", "seed: \t1", None])
def test_what_is_no_mapping_or_not_there_is_refused(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "params.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(
        ParamsError, match="params file" if text is not None else "cannot read params file: No such file"
    ) as caught:
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
def _beside_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # config/pairs


def _project(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """params.yaml with changes, and the shipped devices."""
    params: dict[str, Any] = copy.deepcopy(SHIPPED)
    for key, value in changes.items():
        params[key] = params[key] | value if isinstance(value, dict) else value
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    shutil.copytree(ROOT / "config/devices", folder / "devices")
    return folder / "params.yaml", folder / "devices"


@pytest.mark.usefixtures("_beside_the_pairs")
def test_the_shipped_params_pass(tmp_path: Path) -> None:
    assert check_params(*_project(tmp_path)).devices


@pytest.mark.parametrize(
    ("place", "changes"),
    [
        ("devices", {"devices": ["cpu-onnxruntime", "cpu-nope"]}),
        ("truth.repeat", {"truth": {"repeat": ["cpu-nope"]}}),
        ("transfer.source", {"transfer": {"source": "cpu-nope"}}),
        ("transfer.target", {"transfer": {"target": "cpu-nope"}}),
        ("cold_start.devices", {"cold_start": {"devices": ["cpu-nope"]}}),
    ],
)
@pytest.mark.usefixtures("_beside_the_pairs")
def test_a_device_without_a_file_is_named_with_its_key(tmp_path: Path, place: str, changes: dict[str, Any]) -> None:
    path, devices = _project(tmp_path, **changes)
    with pytest.raises(DeviceError, match=r"unknown device 'cpu-nope': there is no .*cpu-nope\.yaml") as caught:
        check_params(path, devices)
    assert caught.value.where == f"{path}, {place}"
    assert "cpu-onednn, cpu-onnxruntime, cpu-openvino" in caught.value.next_step
    assert f"git add {devices / 'cpu-nope.yaml'}" in caught.value.next_step


@pytest.mark.usefixtures("_beside_the_pairs")
def test_a_prior_that_is_not_shipped_ends_a_run_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="'cpu-nope'") as caught:
        check_params(*_project(tmp_path, fusion={"prior": ["cpu-onednn", "cpu-nope"]}))
    assert caught.value.where == "fusion.prior"
    assert "cpu-onednn, cpu-onnxruntime, cpu-openvino" in caught.value.next_step
