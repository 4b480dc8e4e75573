"""The command line as a whole: help everywhere, errors with what, where and next, documents of any encoding, no noise."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
import yaml
from camera_model import save_predictors
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import edgeplan
from edgeplan.cli import app
from edgeplan.devices.config import load_device
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import FormatError, ParamsError
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.planning.partition.document import read_costs

ROOT = Path(__file__).parents[2]
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16-le", "utf-16-be")
Edgeplan = Callable[..., Any]
Refused = Callable[..., None]


def _commands(command: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    command = command or typer.main.get_command(app)
    yield words, command
    for name in getattr(command, "commands", ()):
        yield from _commands(command.get_command(None, name), (*words, name))


def test_the_version_is_the_packages() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.output) == (0, f"edgeplan {edgeplan.__version__}\n")


@pytest.mark.parametrize("words", [words for words, _ in _commands()], ids=" ".join)
def test_every_command_helps_by_the_short_option_too(words: tuple[str, ...]) -> None:
    short, long = (CliRunner().invoke(app, [*words, option]) for option in ("-h", "--help"))
    assert short.exit_code == long.exit_code == 0
    assert "Usage: " in short.output
    assert short.output == long.output


def _write(path: Path, text: str, encoding: str) -> Path:
    mark = "" if encoding in {"utf-8", "utf-8-sig"} else "\ufeff"
    path.write_bytes((mark + text).encode(encoding))
    return path


COSTS = {
    "format_version": 1,
    "model": "netz-ä",
    "cpu_to_gpu_ms": 0.1,
    "gpu_to_cpu_ms": 0.1,
    "operators": [{"name": "größe", "options": [{"on": "cpu", "cpu_ms": 1.0}]}],
}


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_documents_are_read_in_any_unicode_encoding(tmp_path: Path, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows' PowerShell writes a byte order mark before UTF-8, and UTF-16 where it redirects."""
    monkeypatch.chdir(tmp_path)
    device = _write(tmp_path / "dev.yaml", "# größe\nformat_version: 1\nname: dev\nengine: onednn\n", encoding)
    assert load_device(device).engine == "onednn"
    (tmp_path / "config/pairs").mkdir(parents=True)
    (tmp_path / "config/devices").mkdir(parents=True)
    text = (ROOT / "config/pairs/pair-pocl.yaml").read_text(encoding="utf-8")
    for path in (ROOT / "config/devices").glob("*.yaml"):
        _write(tmp_path / "config/devices" / path.name, path.read_text(encoding="utf-8"), encoding)
    _write(tmp_path / "config/pairs/pair-pocl.yaml", text, encoding)
    assert load_pair("pair-pocl").name == "pair-pocl"
    read = read_costs(_write(tmp_path / "c.json", json.dumps(COSTS, ensure_ascii=False), encoding))
    assert read.model == "netz-ä"


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"\x80abc", b"{\x00"])
def test_bytes_that_are_no_text_are_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.json").write_bytes(content)
    with pytest.raises(FormatError):
        read_costs(tmp_path / "c.json")


def _declared_without_axes(path: Path) -> Path:
    """A convolution whose output is declared without axes, of which ONNX Runtime warns."""
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, [])
    weights = numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 8, 8])
    body = helper.make_graph([helper.make_node("Conv", ["x", "w"], ["y"])], "g", [given], [out], [weights])
    onnx.save(helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


#: One process for all: most of each one's time would go into imports.
_COMMANDS = """
import json, sys
from edgeplan.cli import main

for command in json.loads(sys.argv[1]):
    sys.argv = ["edgeplan", *command]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
"""


def test_warnings_of_onnx_runtime_stay_away(tmp_path: Path) -> None:
    model = _declared_without_axes(tmp_path / "m.onnx")
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")}

    commands = (
        ("prepare", str(model), "-o", "p.onnx", "--check"),
        ("plan", "cold-start", str(model), "-o", "plan", "--costs", "predicted"),
        ("run", "plan", "--check"),
    )
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS, json.dumps(commands)],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = done.stdout + done.stderr
    assert "largest difference from the original" in told
    assert "largest difference from ONNX Runtime" in told
    assert "\x1b" not in told
    assert "onnxruntime" not in told


def test_a_removed_command_names_what_takes_its_place() -> None:
    with pytest.raises(ParamsError, match="`plan layout` is removed") as error:
        CliRunner().invoke(app, ["plan", "layout", "buffers.csv", "-o", "out.csv"], catch_exceptions=False)
    module, _, name = error.value.next_step.split()[-1].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))


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
    environment = os.environ | {"PYTHONPATH": os.fspath(ROOT / "workflow")}
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
