"""The check of params.yaml before anything is built."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from shipped_params import PARAMS_FILE

from edgeplan.chapters.check import check_params, refuse_overlay
from edgeplan.errors import DeviceError, ParamsError

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _beside_the_pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # config/pairs


def _project(folder: Path, **changes: Any) -> tuple[Path, Path]:
    """params.yaml with changes, and the shipped devices."""
    params: dict[str, Any] = yaml.safe_load(PARAMS_FILE.read_text())
    for key, value in changes.items():
        params[key] = params[key] | value if isinstance(value, dict) else value
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    shutil.copytree(ROOT / "config/devices", folder / "devices")
    return folder / "params.yaml", folder / "devices"


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
def test_a_device_without_a_file_is_named_with_its_key(tmp_path: Path, place: str, changes: dict[str, Any]) -> None:
    path, devices = _project(tmp_path, **changes)
    with pytest.raises(DeviceError, match=r"unknown device 'cpu-nope': there is no .*cpu-nope\.yaml") as caught:
        check_params(path, devices)
    assert caught.value.where == f"{path}, {place}"
    assert "cpu-onednn, cpu-onnxruntime, cpu-openvino" in caught.value.next_step
    assert f"git add {devices / 'cpu-nope.yaml'}" in caught.value.next_step


def test_a_prior_that_is_not_shipped_ends_a_run_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="'cpu-nope'") as caught:
        check_params(*_project(tmp_path, fusion={"prior": ["cpu-onednn", "cpu-nope"]}))
    assert caught.value.where == "fusion.prior"
    assert "cpu-onednn, cpu-onnxruntime, cpu-openvino" in caught.value.next_step


def test_a_device_file_that_does_not_fit_is_named(tmp_path: Path) -> None:
    path, devices = _project(tmp_path)
    (devices / "cpu-onnxruntime.yaml").write_text("name: cpu-onnxruntime\n")
    with pytest.raises(DeviceError, match="format_version: Field required"):
        check_params(path, devices)


def test_values_out_of_range_come_first(tmp_path: Path) -> None:
    path, devices = _project(tmp_path, fusion={"alpha": -1}, devices=["cpu-nope"])
    with pytest.raises(ParamsError, match=r"fusion\.alpha"):
        check_params(path, devices)


def test_an_overlay_is_refused_by_its_section(tmp_path: Path) -> None:
    path, _ = _project(tmp_path)
    config: dict[str, Any] = yaml.safe_load(path.read_text())
    refuse_overlay(config, path)
    config["zoo"]["variants_per_family"] = 1
    config["more"] = {}
    with pytest.raises(ParamsError, match="other values than") as caught:
        refuse_overlay(config, path)
    assert caught.value.where == "more, zoo"
