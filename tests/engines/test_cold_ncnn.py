"""ncnn's converter and what comes of it, held against ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from edgeplan.engines.description import UnsupportedError
from edgeplan.engines.ncnn import convert as ncnn_convert
from edgeplan.engines.ncnn.cold import converted
from edgeplan.engines.program import Program
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.measurement.process.job import PrepareJob, RunJob
from edgeplan.measurement.process.starts import prepare_offline, run_cold
from edgeplan.support.tensors import relative_error

SHAPE = (1, 8, 13, 12)
Block = Callable[[GraphBuilder, str], str]
needs_pnnx = pytest.mark.skipif(
    find_spec("ncnn") is None or find_spec("pnnx") is None, reason="ncnn and its converter are not installed"
)


def _recurrent(b: GraphBuilder, x: str) -> str:
    """Two bidirectional LSTMs, one joined to two axes and one to three."""
    x = b.transpose(b.squeeze(b.conv(x, 8, (13, 1), pad=0, bias=True), (2,)), (2, 0, 1))
    x = b.reshape(b.transpose(b.lstm(x, 6, bidirectional=True), (0, 2, 1, 3)), (12, 1, 12))
    x = b.transpose(b.lstm(x, 5, bidirectional=True), (0, 2, 1, 3))
    return b.fc(b.reshape(x, (12, 10)), 7)


BLOCKS: dict[str, Block] = {
    "residual of depthwise convolutions": lambda b, x: b.relu(b.add(b.conv_bn(x, 8, 3, groups=8, act=""), x)),
    "hswish and a gate": lambda b, x: b.mul(
        b.activation(x, "hswish"), b.activation(b.conv(b.gap(x), 8, 1, bias=True), "hsigmoid")
    ),
    "channel shuffle": lambda b, x: b.channel_shuffle(b.conv(x, 8, 1, groups=2), 2),
    "upsample": lambda b, x: b.upsample(b.conv(x, 4, 1)),
    "lrn and maxpool": lambda b, x: b.maxpool(b.lrn(x), 3, 2, ceil=True),
    "classifier": lambda b, x: b.softmax(b.fc(b.flatten(b.gap(x)), 10)),
    "bidirectional lstms": _recurrent,
}


def _model(block: Block, folder: Path) -> Path:
    b = GraphBuilder("block", SHAPE)
    return save_onnx(b.build(block(b, b.input)), folder / "block.onnx")


def _expected(model: Path, inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    found: list[np.ndarray] = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, dict(inputs))
    return found


@needs_pnnx
@pytest.mark.parametrize("name", BLOCKS)
def test_converted_operators_compute_the_same(name: str, tmp_path: Path) -> None:
    model = _model(BLOCKS[name], tmp_path)
    (tmp_path / "ncnn").mkdir()
    inputs = random_inputs({"input": SHAPE}, 3)
    artefact = converted(model, {"input": SHAPE}, tmp_path / "ncnn", 1)
    with Program("ncnn", artefact, inputs, threads=1) as program:
        program.go()
        assert len(list(program.run(1))) == 1
        assert relative_error(program.outputs(), _expected(model, inputs)) < 1e-4
    assert sorted((tmp_path / "ncnn").iterdir()) == sorted(artefact.files)


def test_joining_directions_as_pytorch_does_keeps_the_results(tmp_path: Path) -> None:
    model = _model(_recurrent, tmp_path)
    (tmp_path / "work").mkdir()
    joined = ncnn_convert._source(model, tmp_path / "work")
    shapes = [i for i in onnx.load(joined).graph.initializer if onnx.numpy_helper.to_array(i).tolist() == [0, 0, -1]]
    assert len(shapes) == 2
    inputs = random_inputs({"input": SHAPE}, 3)
    assert relative_error(_expected(joined, inputs), _expected(model, inputs)) == 0


def test_a_model_without_lstms_is_not_copied(tmp_path: Path) -> None:
    model = _model(BLOCKS["classifier"], tmp_path)
    (tmp_path / "work").mkdir()
    assert ncnn_convert._source(model, tmp_path / "work").resolve() == model.resolve()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'todo Erf'; echo 'todo Erf' >&2; touch model.ncnn.param model.ncnn.bin", "no ncnn layer for Erf$"),
        ("exit 3", "exit code 3"),
        ("exit 0", "could not convert"),
        ("exec sleep 60", r"within 0\.2 s"),
    ],
)
def test_a_converter_that_gives_up_is_a_reason_and_leaves_nothing(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _model(BLOCKS["classifier"], tmp_path)
    (tmp_path / "ncnn").mkdir()
    program = tmp_path / "converter"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(ncnn_convert, "_pnnx", lambda: str(program))
    monkeypatch.setattr(ncnn_convert, "_SECONDS", 0.2 if "sleep" in script else 60)
    with pytest.raises(UnsupportedError, match=reason):
        ncnn_convert.convert(model, {"input": SHAPE}, tmp_path / "ncnn")
    assert not list((tmp_path / "ncnn").iterdir())


def test_a_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="batch"):
        converted(tmp_path / "absent.onnx", {"input": (2, 3, 8, 8)}, tmp_path, 1)


@needs_pnnx
@pytest.mark.parametrize("setting", ["ncnn-vulkan", "ncnn-vulkan-cached"])
def test_vulkan_computes_the_same_in_a_fresh_process_or_says_what_is_missing(setting: str, tmp_path: Path) -> None:
    """On any Vulkan device that is here, Mesa's on the processor among them."""
    model, inputs = _model(BLOCKS["classifier"], tmp_path), random_inputs({"input": SHAPE}, 3)
    np.savez(tmp_path / "expected.npz", *_expected(model, inputs))
    shapes, folder = {"input": SHAPE}, tmp_path / "made"
    folder.mkdir()
    made = prepare_offline(PrepareJob(setting=setting, threads=1, model=model, inputs=shapes, folder=folder))
    if made.artefact is None:
        assert "VK_DRIVER_FILES" in made.reason
        pytest.skip(made.reason)
    job = RunJob(setting=setting, threads=1, artefact=made.artefact, inputs=shapes, seed=3, state="cached",
                 reference=tmp_path / "expected.npz")  # fmt: skip
    found = run_cold(job)
    assert not found.reason
    assert found.output_error is not None
    assert found.output_error < 1e-4
