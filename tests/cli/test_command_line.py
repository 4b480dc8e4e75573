"""The command line as a whole: version and help everywhere, documents of any Unicode encoding, no noise of libraries."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import edgeplan
from edgeplan.cli import app
from edgeplan.cli.commands import COMMANDS
from edgeplan.devices.config import load_device
from edgeplan.devices.pairs import load_pair
from edgeplan.errors import FormatError, ParamsError
from edgeplan.planning.partition.document import read_costs
from edgeplan.workspace import SHIPPED

ROOT = Path(__file__).parents[2]
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16-le", "utf-16-be")
Edgeplan = Callable[..., Any]


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


@pytest.mark.parametrize("words", [words for words, _ in _commands()], ids=" ".join)
def test_help_is_sentences(words: tuple[str, ...]) -> None:
    """A command's help begins with a verb, an option's with a noun or a verb; both end with a full stop."""
    command = dict(_commands())[words]
    about = (command.help or "").strip()
    assert len(about.split()) >= 5, words
    assert about[0].isupper()
    assert about.endswith(".")
    assert about.split()[0] not in {"What", "Whether", "How", "Of", "Those", "It", "All"}
    for option in command.params:
        told = getattr(option, "help", None)
        if told is None or getattr(option, "hidden", False):
            continue
        assert told[0].isupper() or told.split()[0].rstrip(",") in {"optimal", "nnv12"}, (words, option.name)
        assert told.rstrip().endswith((".", "Repeatable")), (words, option.name)
        assert told.split()[0] not in {"What", "Whether", "How", "Of", "Those", "It", "All"}, (words, option.name)
        assert "likewise" not in told, (words, option.name)


@pytest.mark.parametrize("group", COMMANDS)
def test_the_lines_of_a_list_of_commands_are_what_the_commands_say(group: str) -> None:
    found = {words: command for words, command in _commands() if words[:-1] == tuple(filter(None, [group]))}
    assert {name: found[*filter(None, [group]), name].help for name in COMMANDS[group]} == {
        name: about for name, (_, about) in COMMANDS[group].items()
    }


def test_the_help_speaks_of_all_chapters() -> None:
    said = " ".join(CliRunner().invoke(app, ["--help"]).output.split())
    for word in ("Predict", "measure", "first inference", "memory", "two processors"):
        assert word in said


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


@pytest.mark.texts
def test_no_session_is_opened_without_options() -> None:
    """Each place where the package opens a session of ONNX Runtime gives it options, which set the level of its log."""
    found = 0
    for path in (ROOT / "workflow").rglob("*.py"):
        if path.parent.name == "testing":  # suites, which tests run
            continue
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "InferenceSession":
                found += 1
                assert len(node.args) > 1, f"{path}:{node.lineno}"
        if "InferenceSession(" in source:
            assert "log_severity_level" in source or "set_default_logger_severity" in source, path
    assert found > 5


def test_shipped_device_files_are_plain_utf_8() -> None:
    assert all(not path.read_bytes().startswith(b"\xef\xbb\xbf") for path in SHIPPED.glob("*/*.yaml"))


def test_a_removed_command_names_what_takes_its_place() -> None:
    with pytest.raises(ParamsError, match="`plan layout` is removed") as error:
        CliRunner().invoke(app, ["plan", "layout", "buffers.csv", "-o", "out.csv"], catch_exceptions=False)
    module, _, name = error.value.next_step.split()[-1].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
