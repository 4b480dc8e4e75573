"""The command line as its users run it: each error is one message with where and what next, and an exit code of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from camera_model import save_predictors

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx

SOURCES = Path(__file__).parents[2] / "workflow"
Edgeplan = Callable[..., Any]
Refused = Callable[..., None]


def _device(folder: Path, name: str) -> Path:
    file = folder / f"config/devices/{name}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{{format_version: 1, name: {name}, engine: onnxruntime}}")
    return file


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with predictors: enough to reach every error."""
    folder = tmp_path_factory.mktemp("cli")
    save_predictors(folder / "results/dev")
    _device(folder, "dev")
    b = GraphBuilder("net", (1, 3, 8, 8))
    save_onnx(b.build(b.fc(b.flatten(b.gap(b.conv_bn(b.input, 8, 3))), 5)), folder / "good.onnx")
    return folder


@pytest.fixture
def refused(edgeplan: Edgeplan, workspace: Path) -> Refused:
    """Holds a command to its error: exit code, and patterns of the message, of where it is and of what to do next."""

    def check(*arguments: str, code: int, message: str, where: str, following: str, folder: Path = workspace) -> None:
        done = edgeplan(*arguments, folder=folder)
        check_refusal(done.code, done.out, done.err, code=code, message=message, where=where, following=following)

    return check


def check_refusal(ended: int, out: str, err: str, *, code: int, message: str, where: str, following: str) -> None:
    assert ended == code, err
    assert "Traceback" not in err
    assert out == ""
    what, *rest = err.strip().splitlines()
    assert re.match(rf"error: .*{message}", what), err
    found = {line.strip().split(":")[0]: line.partition(":")[2].strip() for line in rest}
    if where:
        assert where in found["where"], err
    assert re.search(following, found["next"]), err


def test_a_missing_model(refused: Refused) -> None:
    refused("predict", "none.onnx", "-d", "dev", code=2, message="no model file", where="", following="check the path")


def test_a_device_without_predictors(refused: Refused, workspace: Path, tmp_path: Path) -> None:
    file = _device(tmp_path, "phone")
    model = str(workspace / "good.onnx")
    message = "no predictors of device 'phone'"
    following = "make reproduce DEVICE=phone, in a checkout of edgeplan, or use one of: .*cpu-onnxruntime"
    for device in ("phone", str(file)):
        first = f"edgeplan device adapt {re.escape(device)} \\(a minute\\), or {following}"
        refused("predict", model, "-d", device, code=5, message=message, where="phone", following=first, folder=tmp_path)
    file.write_text("{format_version: 2, name: phone, engine: onnxruntime, transport: {kind: ssh, host: phone}}")
    refused("predict", model, "-d", "phone", code=5, message=message, where="phone", following=f"^{following}", folder=tmp_path)


def test_predictors_left_in_the_cache_are_trained_from_what_is_there(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "phone/measurements").mkdir(parents=True)
    _device(tmp_path, "phone")
    arguments = ("predict", "good.onnx", "-d", "phone", "--results", str(tmp_path))
    following = "dvc repro training@phone"
    refused(*arguments, code=5, message="no predictors", where="phone", following=following, folder=tmp_path)


def test_a_device_that_does_not_exist_is_not_to_be_reproduced(refused: Refused, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "config/devices").mkdir(parents=True)
    model = str(workspace / "good.onnx")
    refused(
        "predict",
        model,
        "-d",
        "phone",
        code=3,
        message="unknown device 'phone'",
        where="config",
        following="known",
        folder=tmp_path,
    )


def test_an_unknown_device(refused: Refused) -> None:
    arguments = ("device", "check", "nosuch")
    refused(*arguments, code=3, message="unknown device 'nosuch'", where="ships", following="known devices: cpu-onednn")


def test_an_engine_that_is_not_installed_as_a_process_tells_it(tmp_path: Path) -> None:
    (tmp_path / "onnxruntime.py").write_text("raise ImportError('No module named onnxruntime')\n")  # found before the real one
    device = {"format_version": 1, "name": "dev", "engine": "onnxruntime", "threads": 1, "cores": [0]}
    (tmp_path / "dev.yaml").write_text(yaml.safe_dump(device))
    command = [sys.executable, "-m", "edgeplan", "device", "check", "dev.yaml"]
    environment = os.environ | {"PYTHONPATH": os.fspath(SOURCES)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    message, following = "engine 'onnxruntime' is not installed", "pip install"
    check_refusal(done.returncode, done.stdout, done.stderr, code=3, message=message, where="", following=following)


@pytest.mark.parametrize(
    "arguments", [("predict",), ("predict", "a.onnx", "--nosuch"), ("device", "check", "x", "--seconds", "0")]
)
def test_arguments_that_do_not_fit(edgeplan: Edgeplan, workspace: Path, arguments: tuple[str, ...]) -> None:
    done = edgeplan(*arguments, folder=workspace)
    assert done.code == 2
    assert "Traceback" not in done.err
    assert "Usage" in done.err
