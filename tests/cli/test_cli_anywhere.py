"""The command line from any folder, for any user, into any output; and predictors that the package ships, which serve there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest

import edgeplan
from depth import by_day
from edgeplan.chapters.prediction import api
from edgeplan.errors import DeviceError, FormatError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement import lock
from edgeplan.predictors import source
from edgeplan.profiling.predicted import PreparationCosts
from edgeplan.runtime import library
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.folder import read_folder
from edgeplan.support.machine import fingerprint
from edgeplan.terminal import CLOSED, escaped
from edgeplan.workspace import SHIPPED

LANE = "processes"  # see tests/conftest.py

ROOT = Path(__file__).parents[2]
MODEL = "m.onnx"
Edgeplan = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in no workspace, with a model whose nodes have names that a terminal should not see."""
    b = GraphBuilder("net", (1, 3, 16, 16))
    save_onnx(b.build(b.conv_bn(b.input, 4, 3)), tmp_path / MODEL)
    model = onnx.load(tmp_path / MODEL)
    for node, name in zip(model.graph.node, ("\x1b[31mconv\x1b[2J\u5c42", "\u202e\nerror: no", "c"), strict=False):
        node.name = name
    onnx.save(model, tmp_path / MODEL)
    return tmp_path


def run(
    folder: Path, *arguments: str, before: Sequence[str] = (), output: int = subprocess.PIPE, **changes: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "EDGEPLAN_WORKSPACE": "", "PYTHONPATH": str(ROOT / "workflow"), **changes},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_shipped_predictors_answer_anywhere_in_any_encoding_and_say_whose_machine_they_are_of(folder: Path) -> None:
    nowhere = {"HOME": "/nonexistent", "XDG_STATE_HOME": "/proc/none"}  # nothing can be kept there
    done = run(folder, "-m", "edgeplan", "predict", MODEL, **nowhere, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "\\x1b[31mconv\\x1b[2J\\u5c42" in done.stdout
    lines = done.stdout.splitlines()
    if json.loads((SHIPPED / "cpu-onnxruntime/environment.json").read_text())["fingerprint"] != fingerprint():
        first, offer, *lines = lines
        assert re.fullmatch(r"predicted for this machine: \d+\.\d\d times that of AMD EPYC.*, by references", first)
        assert offer.endswith("edgeplan device adapt NAME --from cpu-onnxruntime")
    assert lines[0].startswith("m.onnx on cpu-onnxruntime: ")


@pytest.mark.parametrize("way", ["upwards", "option", "environment"])
def test_a_workspace_is_found(folder: Path, edgeplan: Edgeplan, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    device = folder / "space s/config/devices/phone.yaml"
    device.parent.mkdir(parents=True)
    device.write_text("{format_version: 1, name: phone, engine: onnxruntime}")
    inner, root = folder / "space s/a/b", str(folder / "space s")
    inner.mkdir(parents=True)
    if way == "environment":
        monkeypatch.setenv("EDGEPLAN_WORKSPACE", root)
    options = ("--workspace", root) if way == "option" else ()
    done = edgeplan("predict", str(folder / MODEL), "-d", "phone", *options, folder=inner if way == "upwards" else folder)
    assert done.code == 5, done.err
    assert f"where: {folder / 'space s/results/phone/predictors'}" in done.err


def test_a_workspace_that_is_none_is_told(folder: Path, edgeplan: Edgeplan, monkeypatch: pytest.MonkeyPatch) -> None:
    by_option = edgeplan("predict", MODEL, "--workspace", "none", folder=folder)
    monkeypatch.setenv("EDGEPLAN_WORKSPACE", MODEL)
    for done in (by_option, edgeplan("predict", MODEL, folder=folder)):
        assert done.code == 4, done.err
        assert "folder" in done.err.splitlines()[0]


def test_names_reach_no_terminal_unescaped(folder: Path, edgeplan: Edgeplan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api, "_REFERENCES_S", 0.0)
    for model, code in ((MODEL, 0), ("\x1b[2J.onnx", 2)):
        done = edgeplan("predict", model, folder=folder)
        assert done.code == code, done.err
        assert "\\x1b[2J" in done.out + done.err
        assert not set(done.out + done.err) & {"\x1b", "\u202e"}


def test_escapes_are_of_all_that_steers_a_terminal() -> None:
    assert escaped("a\x1b\x9b\n\u202e\u2028\udc80\u5c42\xe9") == "a\\x1b\\x9b\\x0a\\u202e\\u2028\\udc80\u5c42\xe9"
    assert escaped("a\nb\x07", "\n") == "a\nb\\x07"


@pytest.mark.parametrize("arguments", by_day([("export",), ("predict", MODEL), ("--help",)]))
def test_an_output_that_is_full_or_closed(folder: Path, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(folder, "-m", "edgeplan", *arguments, output=full.fileno())
    assert done.returncode == 1
    *warnings, error = done.stderr.splitlines()
    assert error == "error: cannot write to the standard output: No space left on device"
    assert all(line.startswith("warning: ") for line in warnings)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(folder, "-m", "edgeplan", *arguments, output=writer)
    finally:
        os.close(writer)
    # rich, which writes the help, ends the process itself
    assert done.returncode == (1 if arguments == ("--help",) else CLOSED)
    assert all(line.startswith("warning: ") for line in done.stderr.splitlines())


#: Of the folders of a plan, of rows and of state: what it is named, why it is refused, and what to do.
_REFUSED = (
    ("file/plan", "rows", "state", "is a file, not a folder", "name a folder"),
    ("plan", "file", "state", "is a file, not a folder", "--rows"),
    ("readonly/plan", "rows", "state", "Permission denied", "choose another folder with -o, or ask for write permission"),
    ("plan", "rows", "readonly", "Permission denied", "XDG_STATE_HOME"),
)
_PLANNING = """
import json, os, sys
from pathlib import Path
from typer.testing import CliRunner
from edgeplan.cli.commands import app
for output, rows, state, *_ in json.loads(sys.argv[1]):
    os.environ["XDG_STATE_HOME"] = str(Path(state).absolute())
    error = CliRunner().invoke(app, ["plan", "cold-start", "m.onnx", "-o", output, "--rows", rows]).exception
    print(error.exit_code, error.what, error.next_step, sep="; ")
"""


def test_folders_are_tried_before_measuring(folder: Path) -> None:
    (folder / "file").touch()
    (folder / "readonly").mkdir(mode=0o555)
    drop = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]  # root may write whatever the mode
    refused = run(folder, "-c", _PLANNING, json.dumps(_REFUSED), before=drop if os.geteuid() == 0 else ())
    for line, (*_, what, following) in zip(refused.stdout.splitlines(), _REFUSED, strict=True):
        assert re.fullmatch(rf"6; cannot write: .*{what}; .*{following}.*", line)
    assert sorted(path.name for path in folder.iterdir()) == ["file", MODEL, "readonly"]  # nothing was begun


@pytest.fixture
def model(folder: Path) -> Path:
    return folder / MODEL


@pytest.fixture(params=by_day(["trained for another", "nowhere", "workspace"]))
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
    monkeypatch.setattr(api, "_REFERENCES_S", 0.0)
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
