"""Predictors that the package ships serve every command that needs some, in and out of a workspace."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import edgeplan
from edgeplan.errors import DeviceError, FormatError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement import lock
from edgeplan.predictors import source
from edgeplan.profiling.predicted import PreparationCosts
from edgeplan.runtime import library
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.workspace import SHIPPED


@pytest.fixture
def model(tmp_path: Path) -> Path:
    b = GraphBuilder("net", (1, 3, 32, 32))
    x = b.relu(b.conv_bn(b.relu(b.conv_bn(b.input, 16, 3)), 32, 3, 2))
    return save_onnx(b.build(b.fc(b.flatten(b.gap(x)), 10)), tmp_path / "net.onnx")


@pytest.fixture(params=["nowhere", "workspace", "trained for another"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in: no workspace at all, one without results, or one with predictors of another device."""
    folder = tmp_path / "place"
    folder.mkdir()
    if request.param != "nowhere":
        (folder / "config/devices").mkdir(parents=True)
    if request.param == "trained for another":
        (folder / "results/other/predictors").mkdir(parents=True)
        (folder / "results/other/predictors/card.json").write_text("{}")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("EDGEPLAN_WORKSPACE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return folder


def test_a_plan_from_predicted_costs(dnnl: Dnnl, place: Path, model: Path) -> None:
    """Kernels that the machine of the shipped rows did not have are predicted as others of their kind (`make test-isa`)."""
    assert dnnl
    made = edgeplan.plan_cold_start(model, "plan", costs="predicted")
    assert read_folder(place / "plan").scheduled(dict)["costs"] == "predicted"
    assert 0 < made.plan.makespan_ms < 1000
    shipped = PreparationCosts.shipped("cpu-onednn")
    assert shipped is not None
    if shipped.about():
        (told,) = [line for line in made.about if line.startswith("preparation")]
        assert told.split(" (")[0] == f"preparation predicted for {shipped.cpu or 'another processor'}"
    done = edgeplan.run(made, check=True)
    done.require_checked()


@pytest.mark.parametrize("device", sorted(path.parent.name for path in SHIPPED.glob("*/card.json")))
def test_a_prediction_names_the_processor_that_it_is_for(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    """A GPU's is for the GPU, named in the version of its engine if it is at all, and for no processor of its host."""
    monkeypatch.setattr(source, "SHIPPED", tmp_path)
    shutil.copytree(SHIPPED / device, tmp_path / device)
    file = tmp_path / device / "environment.json"
    machine = json.loads(file.read_text()) | {"cpu": "Host CPU", "fingerprint": "another"}
    gpu = machine["engine"] == "cuda"
    for version, name in (("13.0+nvrtc.13.0", f"the GPU of {device}"), ("13.0+nvrtc.13.0+NVIDIA_H200", "NVIDIA H200")):
        file.write_text(json.dumps(machine | {"engine_version": version}))
        found = edgeplan.predict(model, device)
        wanted = f"{name}, {machine['device']['options']['multiprocessors']} multiprocessors" if gpu else "Host CPU"
        assert found.predicted_for.cpu == wanted
        assert found.about.startswith(f"predicted for {wanted} (" if gpu else "predicted for this machine: ")
        assert wanted in found.about


def test_a_refusal_names_devices_that_serve(place: Path, model: Path) -> None:
    file = place / "config/devices/mine.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("{format_version: 1, name: mine, engine: onednn}")
    with pytest.raises(FormatError, match="no predictors of device 'mine'") as caught:
        edgeplan.plan_cold_start(model, "plan", device="config/devices/mine.yaml", costs="predicted")
    assert caught.value.next_step.endswith("use one of: cpu-onednn")  # others execute no plans
    assert not Path("plan").exists()


def test_a_library_that_is_missing_is_told_at_once_with_its_command(
    place: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the lock of the machine is waited for, which another process may hold for minutes."""
    monkeypatch.setattr(library, "_places", lambda: iter(()))
    monkeypatch.setattr(lock, "FOLDER", place / "nowhere" / "at all")  # taking it would fail
    calls = (
        lambda: edgeplan.plan_cold_start(model, "plan"),
        lambda: edgeplan.plan_cold_start(model, "plan", costs="predicted"),
        lambda: edgeplan.plan_memory(model, "plan", "12MiB"),
    )
    for call in calls:
        with pytest.raises(DeviceError, match="oneDNN is not installed") as caught:
            call()
        assert caught.value.next_step.startswith("pip install 'edgeplan[runtime]'")
    assert not Path("plan").exists()
