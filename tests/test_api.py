"""The interface for programs: light to import, lazily handed out, and as its documentation says."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer.testing
from model_file_runs import made, node, write

import edgeplan
from edgeplan.cli import run as cli_run
from edgeplan.cli.commands import app
from edgeplan.errors import ParamsError
from edgeplan.runtime.dnnl import Dnnl

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("imported", ["edgeplan", "edgeplan.cli", "edgeplan.cli.commands"])
def test_an_import_waits_for_nothing_heavy(imported: str) -> None:
    command = [sys.executable, "-X", "importtime", "-c", f"import {imported}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    heavy = {"numpy", "onnx", "onnxruntime", "pandas", "scipy", "pydantic", "lightgbm", "openvino"}
    assert not loaded & heavy
    assert ("typer" in loaded) == (imported == "edgeplan.cli.commands")


def test_all_that_is_promised_is_there() -> None:
    assert all(getattr(edgeplan, name) is not None for name in edgeplan.__all__)
    promised = {*edgeplan.__all__} - {"__version__"}
    assert {name for names in edgeplan._NAMES.values() for name in names} == promised
    assert {name for name in dir(edgeplan) if not name.startswith("_")} == promised
    assert "__version__" in dir(edgeplan)
    with pytest.raises(AttributeError, match="nosuch"):
        edgeplan.nosuch  # noqa: B018  asking for it is the test


#: Options of how to print, of the environment of a command, and a former name.
_COMMANDS_ALONE = {"as_json", "workspace", "listed", "help"}
_PREPARATION = {"shape", "values", "batch"}
#: What options are given that take not just any word or number.
_GIVEN = {"shape": "x=1,2", "values": "s=1", "costs": "predicted", "on_noise": "refuse", "mode": "isolated", "weights": "bf16"}


class _CalledError(Exception):
    """The function was called, with what it holds."""


def _words(option: Any, given: Mapping[str, str]) -> list[str]:
    """What gives an option or an argument something else than its default."""
    name, value = option.opts[0], given.get(option.name, "4")
    return [value] if not name.startswith("-") else [name] if getattr(option, "is_flag", False) else [f"{name}={value}"]


@pytest.mark.parametrize(
    ("function", "words", "alone", "given"),
    [
        (edgeplan.predict, "predict", set(), {}),
        (edgeplan.measure, "measure", set(), {}),
        (edgeplan.compare, "compare", {"fail_above", "chart"}, {}),
        (edgeplan.plan_cold_start, "plan cold-start", set(), {"device": "cpu-openvino"}),
        (edgeplan.plan_memory, "plan memory", set(), {"max_slowdown": ""}),
        (edgeplan.plan_memory, "plan memory", set(), {"budget": ""}),
        (edgeplan.plan_partition, "plan partition", {"compare"}, {}),
        (edgeplan.plan_front, "plan front", {"output", "goal", "budget"}, {}),
        (edgeplan.prepare, "prepare", set(), {}),
        (edgeplan.export, "export", set(), {}),
    ],
)
def test_functions_take_what_commands_take_and_commands_hand_it_over(
    function: Any, words: str, alone: set[str], given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    command: Any = typer.main.get_command(app)
    for word in words.split():
        command = command.get_command(None, word)
    offers = {option.name: option for option in command.params if option.name not in _COMMANDS_ALONE | alone}
    signature = inspect.signature(function)
    takes = dict(signature.parameters)
    opens = takes.pop("given", None) is not None
    assert {*takes, *(_PREPARATION if opens else ())} == set(offers)
    for name, parameter in takes.items():
        told = offers[name].default
        if parameter.default is not parameter.empty:
            assert parameter.default in (told, str(told)) or (parameter.default, told) == ((), "")

    def call(*values: Any, **named: Any) -> None:
        raise _CalledError(signature.bind(*values, **named).arguments)

    monkeypatch.setattr(f"{function.__module__}.{function.__name__}", call)
    asked = [word for option in offers.values() for word in _words(option, _GIVEN | given)]
    with pytest.raises(_CalledError) as called:
        typer.testing.CliRunner().invoke(app, [*words.split(), *asked], catch_exceptions=False)
    (taken,) = called.value.args
    prepared = {"preparation": edgeplan.Preparation.parsed(["x=1,2"], ["s=1"], 4)}
    assert taken.pop("given", None) == (prepared if opens else None)
    of_their_own = {name: one for name, one in takes.items() if given.get(name) != ""}
    assert [name for name, one in of_their_own.items() if taken[name] in (one.default, one.empty)] == []


def test_run_takes_what_its_command_takes() -> None:
    takes = {"plan": "folder", "inputs": "given"}
    offers = {option.dest: option.default for option in cli_run.parser()._actions}
    named = {takes.get(name, name): parameter.default for name, parameter in inspect.signature(edgeplan.run).parameters.items()}
    assert set(named) == set(offers) - {"help", "output", "workspace", "gate", "budget"}  # which is refused
    assert {name: offers[name] or None for name in named} == {
        name: None if default is inspect.Parameter.empty else default or None for name, default in named.items()
    }


def _model(path: Path, axes: list[int | str]) -> Path:
    nodes, weights = [node("Conv", "x w", "h"), node("Mul", "h scale")], {"w": np.ones((4, 3, 3, 3), np.float32)}
    return write(made(nodes, {"x": axes, "scale": [1]}, weights), path)


@pytest.mark.parametrize("value", [2, 2.0, "2", [2.0], np.float32(2), np.array([2.0])])
def test_what_a_file_leaves_open_is_given_as_on_the_command_line(tmp_path: Path, value: object) -> None:
    model = _model(tmp_path / "m.onnx", ["N", 3, "height", 8])
    made = edgeplan.prepare(model, tmp_path / "p.onnx", shape={"x": (2, 3, 16, 8)}, set={"scale": value}, check=True)
    assert (made.inputs, made.difference) == ({"x": (2, 3, 16, 8)}, pytest.approx(0.0, abs=1e-6))
    whole = edgeplan.Preparation.parsed(["x=2,3,16,8"], ["scale=2"])
    alike = edgeplan.prepare(model, tmp_path / "q.onnx", preparation=whole)
    assert alike.path.read_bytes() == made.path.read_bytes()


def test_a_batch_is_given_as_on_the_command_line(tmp_path: Path) -> None:
    model = _model(tmp_path / "m.onnx", ["N", 3, 16, 16])
    assert edgeplan.prepare(model, tmp_path / "p.onnx", set={"scale": 1}, batch=4).inputs == {"x": (4, 3, 16, 16)}
    one, four = (edgeplan.predict(model, set={"scale": 1}, batch=batch).latency_ms for batch in (None, 4))
    assert four > 1.2 * one


def test_what_a_file_leaves_open_is_given_once(tmp_path: Path) -> None:
    model = _model(tmp_path / "m.onnx", ["N", 3, 16, 16])
    for more in ({"shape": {"x": (1, 3, 16, 16)}}, {"set": {"scale": 1}}, {"batch": 1}):
        with pytest.raises(ParamsError, match="given twice"):
            edgeplan.predict(model, preparation=edgeplan.Preparation(batch=1), **more)


@pytest.mark.parametrize("function", [edgeplan.predict, edgeplan.measure, edgeplan.compare, edgeplan.plan_front])
def test_a_keyword_that_there_is_not_is_told_first(function: Any) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'shapes'"):
        function("none.onnx", device="nosuch", shapes={})


@pytest.mark.parametrize("shape", [{"x": "a"}, {"x": None}, {"x": 3}])
def test_sizes_that_are_none_are_told_as_such(tmp_path: Path, shape: Any) -> None:
    with pytest.raises(ParamsError, match="holds no sizes"):
        edgeplan.predict(tmp_path / "none.onnx", shape=shape)


@pytest.mark.parametrize(("budget", "wrong"), [(-5, "no budget"), (0.5, "no budget"), (1 << 60, "no budget|free|has")])
def test_a_budget_may_be_a_number_of_bytes(tmp_path: Path, budget: Any, wrong: str) -> None:
    with pytest.raises(ParamsError, match=wrong):
        edgeplan.plan_memory(tmp_path / "none.onnx", tmp_path / "plan", budget)


def test_the_page_names_every_function_and_says_which_commands_have_none() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    functions = [name for name in edgeplan.__all__ if inspect.isfunction(getattr(edgeplan, name))]
    assert len(functions) > 8
    wanted = {f"| `{name}(" for name in functions} | {f"`{name}`" for name in {*edgeplan.__all__} - {"__version__", *functions}}
    wanted |= {f"`edgeplan {' '.join(words)}`" for words in _leaves(typer.main.get_command(app), ())}
    assert [text for text in wanted if text not in page] == []


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    if not hasattr(command, "commands"):
        yield words
        return
    for name in command.commands:
        yield from _leaves(command.get_command(None, name), (*words, name))


@pytest.mark.long
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
    assert said[1].startswith("no prediction: no predictors of device 'my-onednn'; edgeplan device adapt ")
    assert re.fullmatch(r"first inference in \d+\.\d ms, as planned", said[2])
    assert re.fullmatch(r"cold \d+\.\d ms, then \d+\.\d ms; outputs \[.+\]", said[3])
