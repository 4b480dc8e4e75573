"""`edgeplan device init`: the file that it writes loads, and what does not fit is told before anything is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from edgeplan.cli import app
from edgeplan.devices import create
from edgeplan.devices.config import load_device
from edgeplan.devices.pairs import load_pair
from edgeplan.engines.base import EngineSettings
from edgeplan.engines.registry import ENGINES
from edgeplan.errors import DeviceError


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _init(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["device", "init", *arguments])


def _usable() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def test_defaults_are_this_machines(workspace: Path) -> None:
    done = _init("desk")
    assert done.exit_code == 0, done.output
    device = load_device(workspace / "config/devices/desk.yaml")
    assert (device.engine, device.threads, device.cores) == (next(iter(ENGINES)), 1, (_usable()[-1],))
    assert f"on core(s) {_usable()[-1]}" in done.output
    for command in ("device check desk", "measure MODEL.onnx --device desk", "make reproduce DEVICE=desk"):
        assert command in done.output


def test_a_pair_is_the_cpu_beside_a_device(workspace: Path) -> None:
    done = _init("pair-desk", "--pair", "cuda-h200")
    assert done.exit_code == 0, done.output
    made = load_pair(workspace / "config/pairs/pair-desk.yaml")
    assert [side.device for side in made.processors] == ["cpu-onednn", "cuda-h200"]
    assert made.cores == tuple(_usable())
    assert "compare MODEL.onnx --pair pair-desk" in done.output
    assert isinstance(_init("pair-desk", "--pair", "cuda-h200").exception, DeviceError), "it is there already"


def test_only_processors_that_may_be_used_are_taken(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = min(_usable())
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {first})
    assert _init("desk").exit_code == 0
    assert load_device(workspace / "config/devices/desk.yaml").cores == (first,)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_gets_a_file_that_loads(workspace: Path, engine: str) -> None:
    try:
        create.engine_class(engine)(EngineSettings())
    except DeviceError as error:
        pytest.skip(error.what)
    done = _init("desk", "--engine", engine, "--threads", str(len(_usable())))
    assert done.exit_code == 0, done.output
    device = load_device(workspace / "config/devices/desk.yaml")
    assert (device.engine, device.threads, device.cores) == (engine, len(_usable()), tuple(_usable()))
    device.load_engine()
    assert ("plan cold-start" in done.output) == (engine == "onednn")


def test_cores_that_are_named_are_threads(workspace: Path) -> None:
    assert _init("desk", "--cores", ",".join(map(str, _usable()))).exit_code == 0
    assert load_device(workspace / "config/devices/desk.yaml").threads == len(_usable())


def test_the_next_engine_is_taken_where_the_first_is_not_installed(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = ENGINES
    real = create.engine_class

    def without(name: str) -> object:
        if name == first:
            raise DeviceError("not installed")
        return real(name)

    monkeypatch.setattr(create, "engine_class", without)
    assert _init("desk").exit_code == 0
    assert load_device(workspace / "config/devices/desk.yaml").engine == second


def test_a_file_that_is_there_is_kept_unless_forced(workspace: Path) -> None:
    assert _init("desk").exit_code == 0
    path = workspace / "config/devices/desk.yaml"
    path.write_text(path.read_text() + "# mine\n")
    done = _init("desk")
    assert isinstance(done.exception, DeviceError)
    assert "--force" in done.exception.next_step
    assert path.read_text().endswith("# mine\n")
    assert _init("desk", "--force").exit_code == 0
    assert "# mine" not in path.read_text()


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["../desk"], "name"),
        (["a" * 300 + "/b"], "name"),
        (["desk", "--engine", "tensorflux"], "unknown engine 'tensorflux'"),
        (["desk", "--cores", "4096"], "core 4096 does not exist"),
        (["desk", "--cores", "0,x"], "'x' is no number"),
        (["desk", "--cores", "9" * 5000], "is no number"),
        (["desk", "--threads", "1024"], "1024 threads would share"),
        (["desk", "--pair", "cuda-h200"], "name"),
        (["pair-desk", "--pair", "nothing"], "unknown device 'nothing'"),
        (["pair-desk", "--pair", "cuda-h200", "--cores", "4096"], "core 4096 does not exist"),
    ],
)
def test_what_does_not_fit_is_refused(workspace: Path, arguments: list[str], what: str) -> None:
    done = _init(*arguments)
    assert isinstance(done.exception, DeviceError)
    assert what in done.exception.what
    assert done.exception.next_step
    assert list(workspace.iterdir()) == []
