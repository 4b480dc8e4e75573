"""`edgeplan predict` with trained predictors, on a file that no builder of this package wrote."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from law_of_latency import ABOUT, conv, law, relu, trained_once, without_samples
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from edgeplan.chapters.prediction.model_prediction import PredictedFor, Prediction
from edgeplan.cli import app
from edgeplan.cli.predict import warnings
from edgeplan.errors import PredictionError
from edgeplan.graph.fusion_rules import FusionRules

Answers = Callable[..., tuple[int, str, str]]
FIRST, SECOND = "backbone/block_a/Conv2D", "conv_4"
#: Name, type and engine's implementation of each line, as the law dispatches them; the second convolution has no name.
LINES = [
    ("stem act", "relu", "Relu"),
    (FIRST, "conv++bn++relu", "Conv.plain"),
    (SECOND, "conv++relu", "Conv.blocked"),
    (f"{FIRST} (output)", "reorder", "nchw>nchwc"),
    (f"{SECOND} (output)", "reorder", "nchwc>nchw"),
]


def write_model(path: Path, *, pooled: bool = False, groups: int = 1) -> Path:
    """A ReLU, then convolutions of 16 to 64 and 64 to 48 channels, fused with what follows; dropout left in by the exporter."""
    rng = np.random.default_rng(5)

    def weights(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]}
    nodes = [
        helper.make_node("Relu", ["camera:0"], ["t/1"], name="stem act"),
        helper.make_node("Conv", ["t/1", "W.a"], ["t/2"], name=FIRST, group=groups, **same),
        helper.make_node("BatchNormalization", ["t/2", "gamma", "beta", "mu", "var"], ["t/3"], name="backbone/block_a/norm"),
        helper.make_node("Relu", ["t/3"], ["t/4"]),
        helper.make_node("Conv", ["t/4", "W.b", "b.b"], ["t/5"], **same),
        helper.make_node("Dropout", ["t/5"], ["t/6"]),
        helper.make_node("Relu", ["t/6"], ["t/7" if pooled else "scores:0"], name="block_b/act"),
    ]
    side = 28
    if pooled:
        side = 14
        pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
        nodes.append(helper.make_node("MaxPool", ["t/7"], ["scores:0"], name="neck/shrink", **pool))
    initializers = [weights("W.a", 64, 16 // groups, 3, 3), weights("W.b", 48, 64, 3, 3), weights("b.b", 48)]
    initializers += [numpy_helper.from_array(np.ones(64, np.float32), name) for name in ("gamma", "beta", "mu", "var")]
    body = helper.make_graph(
        nodes,
        "exported elsewhere",
        [helper.make_tensor_value_info("camera:0", TensorProto.FLOAT, [1, 16, 28, 28])],
        [helper.make_tensor_value_info("scores:0", TensorProto.FLOAT, [1, 48, side, side])],
        initializers,
    )
    model = helper.make_model(body, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Results of a device whose kernels follow the law, and the model."""
    folder = tmp_path_factory.mktemp("predict")
    without_samples(trained_once()[0]).save(folder / "results/bench/predictors")
    FusionRules(pairs={"conv_bn": True, "bn_relu": True, "conv_relu": True}).write(folder / "results/bench/fusion/rules.json")
    write_model(folder / "camera.onnx")
    return folder


def predicted(workspace: Path, *more: str) -> str:
    arguments = ["predict", str(workspace / "camera.onnx"), "--device", "bench", "--results", str(workspace / "results"), *more]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_json_has_the_latency_its_interval_and_every_kernel(workspace: Path) -> None:
    found = json.loads(predicted(workspace, "--json"))
    assert (found["model"], found["device"], found["interval"]) == ("camera.onnx", "bench", 0.9)
    assert (found["coverage"], found["missing"]) == (1.0, [])
    assert 0 < found["low_ms"] < found["latency_ms"] < found["high_ms"]
    kernels = found["kernels"]
    assert [(k["name"], k["type"], k["implementation"]) for k in kernels] == LINES
    assert found["call_ms"] == pytest.approx(ABOUT["call_us"] / 1e3)
    assert sum(k["latency_ms"] for k in kernels) + found["call_ms"] == pytest.approx(found["latency_ms"])
    assert sum(k["share"] for k in kernels) + found["call_ms"] / found["latency_ms"] == pytest.approx(1)
    assert all(k["low_ms"] <= k["latency_ms"] <= k["high_ms"] for k in kernels)
    true_us = [law(relu(16, 28), "Relu"), law(conv(16, 64, 28), "Conv.plain"), law(conv(64, 48, 28), "Conv.blocked")]
    for kernel, us in zip(kernels, true_us, strict=False):
        assert kernel["latency_ms"] == pytest.approx(us / 1e3, rel=0.15), kernel["name"]


def test_the_table_has_the_same_numbers_and_adds_up(workspace: Path) -> None:
    found = json.loads(predicted(workspace, "--json"))
    headline, header, *lines = predicted(workspace).rstrip().splitlines()
    told = re.fullmatch(r"camera\.onnx on bench: (\S+) ms \(90 % interval (\S+) to (\S+) ms\)", headline)
    assert told is not None, headline
    assert [float(text) for text in told.groups()] == pytest.approx(
        [found["latency_ms"], found["low_ms"], found["high_ms"]], abs=5e-4
    )
    assert header.split() == ["kernel", "type", "implementation", "ms", "share"]
    cells = [re.split(r"\s{2,}", line.strip()) for line in lines]
    assert [tuple(row[:3]) for row in cells[:-1]] == LINES
    assert cells[-1][0] == "(call)"
    wanted = [k["latency_ms"] for k in found["kernels"]] + [found["call_ms"]]
    assert [float(row[-2]) for row in cells] == pytest.approx(wanted, abs=5e-5)
    assert sum(float(row[-1].removesuffix(" %")) for row in cells) == pytest.approx(100, abs=0.05 * len(cells))


@pytest.fixture
def answer(workspace: Path, edgeplan: Callable[..., Any]) -> Callable[..., tuple[int, str, str]]:
    """What `predict` says of a file: exit code, output, errors."""

    def ask(path: Path, *more: str) -> tuple[int, str, str]:
        done = edgeplan("predict", str(path), "--device", "bench", "--results", str(workspace / "results"), *more)
        return done.code, done.out, done.err

    return ask


def test_a_kernel_without_a_predictor_ends_the_command_with_its_node(tmp_path: Path, answer: Answers) -> None:
    model = write_model(tmp_path / "pooled.onnx", pooled=True)
    code, said, error = answer(model)
    assert (code, said) == (PredictionError.exit_code, "")
    assert error.startswith("error: device bench has no predictor for kernels of kind maxpool\n")
    assert "node neck/shrink" in error
    code, said, _ = answer(model, "--partial", "--json")
    assert code == 0
    found = json.loads(said)
    assert found["missing"] == ["neck/shrink"]
    assert found["coverage"] == pytest.approx(1 - 1 / (len(found["kernels"]) + 1))
    assert sum(k["latency_ms"] for k in found["kernels"]) + found["call_ms"] == pytest.approx(found["latency_ms"])


def test_a_kernel_unlike_those_measured_is_predicted_with_a_warning(workspace: Path, tmp_path: Path, answer: Answers) -> None:
    code, said, warned = answer(write_model(tmp_path / "grouped.onnx", groups=4), "--json")
    why, found = "groups 4, measured 1", json.loads(said)
    assert (code, found["unfamiliar"]) == (0, [{"name": FIRST, "why": why}])
    assert warned == f"warning: unlike anything measured on this device, so guesses without an interval: {FIRST} ({why})\n"
    _, said, warned = answer(workspace / "camera.onnx", "--json")
    assert (json.loads(said)["unfamiliar"], warned) == ([], "")


def test_a_guess_has_no_interval_nor_has_a_model_that_holds_one(workspace: Path, tmp_path: Path, answer: Answers) -> None:
    path = write_model(tmp_path / "grouped.onnx", groups=4)
    found, known = (json.loads(answer(one, "--json")[1]) for one in (path, workspace / "camera.onnx"))
    assert (found["interval"], known["interval"]) == (None, 0.9)
    assert found["low_ms"] < found["latency_ms"] < found["high_ms"]
    for kernel in found["kernels"]:
        bounds = kernel["low_ms"], kernel["high_ms"]
        assert bounds == (None, None) if kernel["name"] == FIRST else bounds[0] <= kernel["latency_ms"] <= bounds[1]
    (guess,) = (kernel for kernel in found["kernels"] if kernel["name"] == FIRST)
    assert (found["guess_share"], known["guess_share"]) == (pytest.approx(guess["share"]), 0)
    headline = answer(path)[1].splitlines()[0]
    assert re.search(r"\(no interval: 1 kernel is a guess, \d+\.\d % of it; at least \S+ to \S+ ms\)$", headline)
    assert "90 %" not in headline


def test_all_guesses_stand_in_one_line_and_all_kinds_that_were_not_measured_in_another() -> None:
    prediction = Prediction(
        *("net", "dev", PredictedFor("", shipped=False, this_machine=True), ""),
        *(1.0, 0.5, 2.0, None, 1.0, ()),
        unfamiliar=(*((f"c{k}", "groups 4") for k in range(5)), ("d", "batch 8"), ("e", "dilation 2"), ("f", "stride 9")),
        guess_share=0.5,
        stand_ins=(("t", "tanh", "bytes"), ("u", "deconv", "conv")),
        stand_in_share=0.1,
        call_ms=0.0,
        kernels=(),
    )
    guesses, kinds = warnings(prediction)
    assert guesses.endswith(": c0, c1, c2 and 2 more (groups 4); d (batch 8); e (dilation 2); f (stride 9)")
    assert ": t (tanh: by the bytes moved, " in kinds
    assert kinds.endswith("; u (deconv: as conv of the same sizes)")


def test_a_kernel_of_a_kind_that_was_not_measured_is_predicted_with_a_warning(
    workspace: Path, tmp_path: Path, answer: Answers
) -> None:
    model = onnx.load(workspace / "camera.onnx")
    plain = json.loads(predicted(workspace, "--json"))
    for op_type in ("LeakyRelu", "Tanh", "Clip", "Sigmoid", "HardSigmoid"):
        model.graph.node[0].op_type = op_type
        onnx.save(model, tmp_path / "camera.onnx")
        code, said, warned = answer(tmp_path / "camera.onnx", "--json")
        found = json.loads(said)
        kind = found["kernels"][0]["type"]
        assert (code, found["coverage"]) == (0, 1.0)
        assert found["latency_ms"] == pytest.approx(plain["latency_ms"], rel=0.02)
        assert found["low_ms"] < plain["low_ms"] < plain["high_ms"] < found["high_ms"]
        assert found["stand_ins"] == [{"name": "stem act", "kind": kind, "predicted_as": "bytes"}]
        assert found["stand_in_share"] == pytest.approx(found["kernels"][0]["share"])
        told = f": stem act ({kind}: by the bytes moved, at the pace of kinds that were measured)\n"
        assert warned.startswith("warning: of kinds not measured on this device")
        assert warned.endswith(told)
    _, said, _ = answer(tmp_path / "camera.onnx")
    assert f"{100 * found['stand_in_share']:.1f} % of it is of kinds that were not measured" in said


def test_names_in_a_model_are_not_taken_for_markup(tmp_path: Path, answer: Answers) -> None:
    model = onnx.load(write_model(tmp_path / "a[bold].onnx", pooled=True))
    model.graph.node[0].name, model.graph.node[-1].name = "[/red]", "[/bold]"
    onnx.save(model, tmp_path / "a[bold].onnx")
    code, said, _ = answer(tmp_path / "a[bold].onnx", "--partial")
    assert code == 0
    assert said.startswith("a[bold].onnx on bench")
    assert "without: [/bold]" in said
    assert "\n[/red] " in said
