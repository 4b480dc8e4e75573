"""The command line from any folder, for any user, into any output."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from depth import by_day
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
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
    folder: Path, *arguments: str, user: bool = False, output: int = subprocess.PIPE, **changes: str | None
) -> subprocess.CompletedProcess[str]:
    """Run a command; `user`: as one who may not write where the mode forbids it, also where the tests are run by root."""
    inherited = {name: value for name, value in os.environ.items() if name != "EDGEPLAN_WORKSPACE"}
    environment: Mapping[str, str | None] = {**inherited, "PYTHONPATH": str(ROOT / "workflow"), **changes}
    drop = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"] if user and os.geteuid() == 0 else []
    return subprocess.run(
        [*drop, sys.executable, "-m", "edgeplan", *arguments],
        cwd=folder,
        env={name: value for name, value in environment.items() if value is not None},
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )


def test_shipped_predictors_answer_anywhere_and_say_whose_machine_they_are_of(folder: Path) -> None:
    done = run(folder, "predict", MODEL, HOME="/nonexistent", XDG_STATE_HOME="/proc/none")  # nothing can be kept there
    assert done.returncode == 0, done.stderr
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


@pytest.mark.parametrize("encoding", by_day(["ascii", "utf-8"]))
def test_names_reach_no_terminal_unescaped(folder: Path, encoding: str) -> None:
    done = run(folder, "predict", MODEL, PYTHONIOENCODING=encoding)
    assert done.returncode == 0, done.stderr
    assert "\\x1b[31mconv\\x1b[2J" in done.stdout
    assert not set(done.stdout + done.stderr) & {"\x1b", "\u202e"}
    (told,) = (
        line for line in run(folder, "predict", "\x1b[2J.onnx", PYTHONIOENCODING=encoding).stderr.splitlines() if "2J" in line
    )
    assert "\x1b" not in told


def test_escapes_are_of_all_that_steers_a_terminal() -> None:
    assert escaped("a\x1b\x9b\n\u202e\u2028\udc80\u5c42\xe9") == "a\\x1b\\x9b\\x0a\\u202e\\u2028\\udc80\u5c42\xe9"
    assert escaped("a\nb\x07", "\n") == "a\nb\\x07"


@pytest.mark.parametrize("arguments", by_day([("export",), ("predict", MODEL), ("--help",)]))
def test_an_output_that_is_full_or_closed(folder: Path, arguments: tuple[str, ...]) -> None:
    with Path("/dev/full").open("w") as full:
        done = run(folder, *arguments, output=full.fileno())
    assert done.returncode == 1
    *warnings, error = done.stderr.splitlines()
    assert error == "error: cannot write to the standard output: No space left on device"
    assert all(line.startswith("warning: ") for line in warnings)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = run(folder, *arguments, output=writer)
    finally:
        os.close(writer)
    # rich, which writes the help, ends the process itself
    assert done.returncode == (1 if arguments == ("--help",) else CLOSED)
    assert all(line.startswith("warning: ") for line in done.stderr.splitlines())


@pytest.mark.parametrize(
    ("option", "target", "what", "following"),
    [
        ("-o", "file/plan", "is a file, not a folder", "name a folder"),
        ("--rows", "file", "is a file, not a folder", "--rows"),
        ("-o", "readonly/plan", "Permission denied", "choose another folder with -o, or ask for write permission"),
        ("XDG_STATE_HOME", "readonly", "Permission denied", "XDG_STATE_HOME"),
    ],
)
def test_folders_are_tried_before_measuring(
    folder: Path,
    edgeplan: Edgeplan,
    monkeypatch: pytest.MonkeyPatch,
    option: str,
    target: str,
    what: str,
    following: str,
) -> None:
    (folder / "file").touch()
    (folder / "readonly").mkdir(mode=0o555)
    given = {"-o": "plan", "--rows": "rows", "XDG_STATE_HOME": "state"} | {option: target}
    state = str(folder / given.pop("XDG_STATE_HOME"))
    arguments = ["plan", "cold-start", MODEL, *(text for pair in given.items() for text in pair)]
    if "readonly" in target:
        refused = run(folder, *arguments, user=True, XDG_STATE_HOME=state)
        code, err = refused.returncode, refused.stderr
    else:
        monkeypatch.setenv("XDG_STATE_HOME", state)
        done = edgeplan(*arguments, folder=folder)
        code, err = done.code, done.err
    assert code == 6, err
    first, _, last = err.splitlines()
    assert first.startswith("error: cannot write: ")
    assert what in first
    assert following in last
    assert sorted(path.name for path in folder.iterdir()) == ["file", MODEL, "readonly"]  # nothing was begun
