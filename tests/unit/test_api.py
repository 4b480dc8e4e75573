"""The interface for programs: light to import, lazily handed out, and as its documentation says."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import typer.testing

import edgeplan
from edgeplan import api
from edgeplan.cli import measure as cli_measure
from edgeplan.cli import memory as cli_memory
from edgeplan.cli import plan as cli_plan
from edgeplan.cli import run as cli_run
from edgeplan.cli.commands import app, predict
from edgeplan.runtime.dnnl import Dnnl

ROOT = Path(__file__).parents[2]


def _python(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "workflow"), "XDG_STATE_HOME": str(folder / "state")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("imported", ["edgeplan", "edgeplan.api", "edgeplan.cli"])
def test_an_import_waits_for_nothing_heavy(tmp_path: Path, imported: str) -> None:
    done = _python(tmp_path, "-X", "importtime", "-c", f"import {imported}")
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    heavy = {"numpy", "onnx", "onnxruntime", "pandas", "scipy", "numba", "pydantic", "lightgbm", "msgspec", "openvino"}
    assert not loaded & heavy
    assert "typer" in loaded or imported != "edgeplan.cli"


def test_all_that_is_promised_is_there() -> None:
    for name in edgeplan.__all__:
        assert getattr(edgeplan, name) is not None
    for name in api.__all__:
        assert getattr(edgeplan, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="nosuch"):
        edgeplan.nosuch  # noqa: B018  asking for it is the test


#: Options of how to print, of the environment of a command, and a former name.
_COMMANDS_ALONE = {"as_json", "workspace", "accept_noise"}
#: What is one value to programs (`Preparation`).
_PREPARATION = {"shape", "values", "batch"}


@pytest.mark.parametrize(
    ("function", "command", "renamed"),
    [
        (api.predict, predict, {}),
        (api.measure, cli_measure.measure, {}),
        (api.plan_cold_start, cli_plan.plan_cold_start, {}),
        (api.run, cli_run.run, {"plan": "folder", "inputs": "given"}),
        (api.plan_memory, cli_memory.plan_memory, {}),
    ],
)
def test_functions_take_what_commands_take(function: object, command: object, renamed: dict[str, str]) -> None:
    takes, offers = (inspect.signature(f).parameters for f in (function, command))  # type: ignore[arg-type]
    alone = _COMMANDS_ALONE | _PREPARATION | ({"output", "budgets"} if command is cli_run.run else set())
    assert ("preparation" in takes) == (set(offers) >= _PREPARATION)
    assert {renamed.get(name, name) for name in takes} - {"preparation"} == set(offers) - alone
    for name, parameter in takes.items():
        if name == "preparation":
            continue
        told = offers[renamed.get(name, name)].default
        assert parameter.default in (told, str(told)) or (parameter.default, told) == ((), "")


def test_commands_are_made_of_the_interface(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    called: list[str] = []

    class Asked(Exception):  # noqa: N818  it is no error
        pass

    def spy(name: str) -> object:
        def asked(*_: object, **__: object) -> None:
            called.append(name)
            raise Asked

        return asked

    for name in ("predict", "measure", "plan_cold_start", "run"):
        monkeypatch.setattr(api, name, spy(name))
    for line in ("predict m.onnx", "measure m.onnx", "plan cold-start m.onnx -o plan", "run plan"):
        done = typer.testing.CliRunner().invoke(app, line.split())
        assert isinstance(done.exception, Asked)
    assert called == ["predict", "measure", "plan_cold_start", "run"]
    assert list(tmp_path.iterdir()) == []


def test_the_documented_example_runs(
    dnnl: Dnnl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert dnnl
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "api.md").read_text(), re.DOTALL)
    (tmp_path / "example.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = os.sched_getaffinity(0)
    runpy.run_path("example.py")
    assert os.sched_getaffinity(0) == before
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 4
    assert re.fullmatch(r"\d+\.\d ms on this machine, to \+-\d+ %", said[0])
    assert said[1].startswith("no prediction: no predictors of device 'my-onednn'; make reproduce DEVICE=my-onednn")
    assert re.fullmatch(r"first inference in \d+\.\d ms, as planned", said[2])
    assert re.fullmatch(r"cold \d+\.\d ms, then \d+\.\d ms; outputs \[.+\]", said[3])
