"""`edgeplan predict` with trained predictors, on a file that no builder of this package wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml
from camera_model import CALL_US, FIRST, executed, law, save_predictors, write_model
from quick_bench import measuring_alone  # noqa: F401  a fixture

Answers = Callable[..., tuple[int, str, str]]
#: Type and operators of each line, as ONNX Runtime executes the file; the second convolution has no name.
LINES = [
    ("Relu", ["stem act 0"]),
    ("ReorderInput.nchwc", []),
    ("Conv.nchwc+Relu", [FIRST, "backbone/block_a/norm", "relu_3"]),
    ("Conv.nchwc+Relu", ["conv_4", "dropout_5", "block_b/act"]),
    ("ReorderOutput.nchwc", []),
]


@pytest.fixture
def answer(tmp_path: Path, edgeplan: Callable[..., Any]) -> Answers:
    """What `predict` says of a file of a device with predictors: exit code, output, errors."""
    (tmp_path / "config/devices").mkdir(parents=True)
    device = {"format_version": 1, "name": "bench", "engine": "onnxruntime"}
    (tmp_path / "config/devices/bench.yaml").write_text(yaml.safe_dump(device))
    save_predictors(tmp_path / "results/bench")

    def ask(path: Path, *more: str) -> tuple[int, str, str]:
        done = edgeplan("predict", str(path), "--device", "bench", *more, folder=tmp_path)
        return done.code, done.out, done.err

    return ask


def told(answer: Answers, path: Path, *more: str) -> Mapping[str, Any]:
    code, said, error = answer(path, "--json", *more)
    assert code == 0, error
    found: Mapping[str, Any] = json.loads(said)
    return found


def test_json_has_the_latency_its_interval_and_every_kernel(tmp_path: Path, answer: Answers) -> None:
    path = write_model(tmp_path / "camera.onnx")
    found = told(answer, path)
    assert (found["model"], found["device"], found["interval"]) == ("camera.onnx", "bench", 0.9)
    assert 0 < found["low_ms"] < found["latency_ms"] < found["high_ms"]
    kernels = found["kernels"]
    assert [(k["type"], k["operators"]) for k in kernels] == LINES
    assert {k["source"] for k in kernels} == {"learnt"}
    assert found["call_ms"] == pytest.approx(CALL_US / 1e3)
    assert sum(k["latency_ms"] for k in kernels) + found["call_ms"] == pytest.approx(found["latency_ms"])
    assert found["shares"] == {"measured": 0, "learnt": pytest.approx(sum(k["share"] for k in kernels)), "guessed": 0}
    assert all(k["low_ms"] <= k["latency_ms"] <= k["high_ms"] for k in kernels)
    for kernel, config in zip(kernels, executed(path), strict=True):
        assert kernel["latency_ms"] == pytest.approx(law(config) / 1e3, rel=0.15), kernel["name"]


def test_the_table_has_the_same_numbers_adds_up_and_says_where_they_are_from(tmp_path: Path, answer: Answers) -> None:
    path = write_model(tmp_path / "camera.onnx", acts=["Erf"])
    found = told(answer, path)
    headline, header, *lines, shares = answer(path)[1].rstrip().splitlines()
    numbers = re.fullmatch(r"camera\.onnx on bench: (\S+) ms \(90 % interval (\S+) to (\S+) ms\)", headline)
    assert numbers is not None, headline
    assert [float(text) for text in numbers.groups()] == pytest.approx(
        [found["latency_ms"], found["low_ms"], found["high_ms"]], abs=5e-4
    )
    assert header.split() == ["kernel", "type", "operators", "ms", "share", "from"]
    rows = [re.search(r"(\S+) +(\S+) % *(\w*) *$", line) for line in lines]
    cells = [row.groups() for row in rows if row]
    assert [cell[2] for cell in cells] == ["guessed", *["learnt"] * 4, ""]
    wanted = [k["latency_ms"] for k in found["kernels"]] + [found["call_ms"]]
    assert [float(cell[0]) for cell in cells] == pytest.approx(wanted, abs=5e-5)
    assert sum(float(cell[1]) for cell in cells) == pytest.approx(100, abs=0.05 * len(cells))
    assert shares == ", ".join(f"{100 * share:.0f} % {source}" for source, share in found["shares"].items())


def test_guesses_have_no_interval_and_stand_in_one_warning(tmp_path: Path, answer: Answers) -> None:
    path = write_model(tmp_path / "camera.onnx", acts=["Erf"] * 5)
    found = told(answer, path)
    bounds = {(k["low_ms"], k["high_ms"]) for k in found["kernels"] if k["source"] == "guessed"}
    assert (found["low_ms"], found["high_ms"], bounds) == (None, None, {(None, None)})
    _, said, warned = answer(path)
    share = f"{100 * found['shares']['guessed']:.0f} % of"
    assert f"(no interval: {share} it is guessed)" in said.splitlines()[0]
    assert re.fullmatch(
        rf"warning: {share} the time is guessed \((stem act \d, ){{2}}stem act \d and 2 more\); --measure 5 .*\n", warned
    )
    assert answer(write_model(tmp_path / "camera.onnx"))[2] == ""


def test_what_is_measured_is_known_from_then_on(tmp_path: Path, answer: Answers) -> None:
    path = write_model(tmp_path / "camera.onnx", acts=["Erf"])
    before = told(answer, path)
    found = told(answer, path, "--measure", "5")
    stem = found["kernels"][0]
    assert [before["kernels"][0]["source"], stem["source"]] == ["guessed", "measured"]
    assert stem["low_ms"] < stem["latency_ms"] < stem["high_ms"]
    assert found["shares"]["measured"] == pytest.approx(stem["share"])
    again = told(answer, path)
    assert (again["latency_ms"], again["kernels"][0]["source"]) == (pytest.approx(found["latency_ms"]), "measured")
    assert answer(path)[2] == ""


def test_names_in_a_model_are_not_taken_for_markup(tmp_path: Path, answer: Answers) -> None:
    model = onnx.load(write_model(tmp_path / "a[bold].onnx", acts=["Erf"]))
    model.graph.node[0].name = "[/red]"
    onnx.save(model, tmp_path / "a[bold].onnx")
    code, said, warned = answer(tmp_path / "a[bold].onnx")
    assert code == 0
    assert said.startswith("a[bold].onnx on bench")
    assert "\n[/red] " in said
    assert "guessed ([/red])" in warned
