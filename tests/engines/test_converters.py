"""Converters to TFLite and to ncnn, and what comes of them, held against ONNX Runtime operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import onnx
import pytest
from model_file_runs import onnxruntime_outputs

from edgeplan.engines.description import UnsupportedError, named_object
from edgeplan.engines.ncnn import cold as ncnn_cold
from edgeplan.engines.program import Program
from edgeplan.engines.registry import setting
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Attribute
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.support.tensors import relative_error

SHAPE = (1, 8, 13, 12)
Block = Callable[[GraphBuilder, str], str]
needs_litert = pytest.mark.skipif(find_spec("ai_edge_litert") is None, reason="LiteRT is not installed")
needs_pnnx = pytest.mark.skipif(
    find_spec("ncnn") is None or find_spec("pnnx") is None, reason="ncnn and its converter are not installed"
)


def _unsqueeze(b: GraphBuilder, x: str) -> str:
    n, *rest = b.shape(x)
    return b._op("Unsqueeze", [x], [(n, 1, *rest)], attributes={"axes": (1,)})[0]


def _squeeze_excite(b: GraphBuilder, x: str) -> str:
    gate = b.activation(b.conv(b.gap(x), 8, 1, bias=True), "sigmoid")
    return b.mul(x, gate)


def _split_and_join(b: GraphBuilder, x: str) -> str:
    left, right = b.split(x, (3, 5))
    return b.concat([right, b.relu(left)])


def _residual(b: GraphBuilder, x: str) -> str:
    return b.relu(b.add(b.conv_bn(x, 8, 3, act=""), x))


def _counting_avgpool(b: GraphBuilder, x: str) -> str:
    attributes: dict[str, Attribute] = {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1}
    return b._op("AveragePool", [x], [b.shape(x)], attributes=attributes)[0]


def _line(b: GraphBuilder, x: str) -> str:
    """An image of one line as a sequence (steps, batch, features)."""
    return b.transpose(b.squeeze(b.conv(x, 8, (13, 1), pad=0), (2,)), (2, 0, 1))


def _crnn(b: GraphBuilder, x: str) -> str:
    y = b.transpose(b.lstm(_line(b, x), 6, bidirectional=True), (0, 2, 1, 3))
    return b.fc(b.reshape(y, (12, 12)), 5)


def _backward_lstm(b: GraphBuilder, x: str) -> str:
    x = _line(b, x)
    weights = {"input_weight": (1, 24, 8), "recurrence_weight": (1, 24, 6), "bias": (1, 48)}
    return b._op("LSTM", [x], [(12, 1, 1, 6)], weights=weights, attributes={"hidden_size": 6, "direction": "reverse"})[0]


def _recurrent(b: GraphBuilder, x: str) -> str:
    """Two bidirectional LSTMs, one joined to two axes and one to three."""
    x = b.transpose(b.squeeze(b.conv(x, 8, (13, 1), pad=0, bias=True), (2,)), (2, 0, 1))
    x = b.reshape(b.transpose(b.lstm(x, 6, bidirectional=True), (0, 2, 1, 3)), (12, 1, 12))
    x = b.transpose(b.lstm(x, 5, bidirectional=True), (0, 2, 1, 3))
    return b.fc(b.reshape(x, (12, 10)), 7)


BLOCKS: dict[str, Block] = {
    "conv": lambda b, x: b.conv(x, 5, 3, bias=True),
    "conv, bn, relu": lambda b, x: b.conv_bn(x, 5, 3),
    "conv, bn, relu6, stride 2": lambda b, x: b.conv_bn(x, 5, 3, 2, act="relu6"),
    "conv 1x1 stride 2": lambda b, x: b.conv(x, 6, 1, 2),
    "conv 7x7 stride 2": lambda b, x: b.conv(x, 6, 7, 2),
    "conv 1x3": lambda b, x: b.conv(x, 6, (1, 3)),
    "dilated conv": lambda b, x: b.conv(x, 6, 3, dilation=2),
    "unpadded conv": lambda b, x: b.conv(x, 6, 3, pad=0),
    "grouped conv": lambda b, x: b.conv(x, 12, 3, groups=4),
    "depthwise conv stride 2": lambda b, x: b.dwconv(x, 5, 2),
    "depthwise conv with multiplier": lambda b, x: b.conv(x, 16, 3, groups=8),
    "bn alone": lambda b, x: b.relu(b.bn(x)),
    "residual": _residual,
    "maxpool of negative values": lambda b, x: b.maxpool(b.conv(x, 8, 1), 3, 2, 1),
    "maxpool of clipped values": lambda b, x: b.maxpool(b.relu(x), 3, 2, 1),
    "maxpool, ceil mode": lambda b, x: b.maxpool(x, 3, 2, ceil=True),
    "avgpool": lambda b, x: b.avgpool(x, 2, 2),
    "avgpool, same": lambda b, x: b.avgpool(x, 3, 1, 1),
    "avgpool, padding that is not TFLite's": lambda b, x: b.avgpool(x, 3, 2, 1),
    "avgpool, ceil mode": lambda b, x: b.avgpool(x, 3, 2, (0, 1), ceil=True),
    "avgpool that counts its padding": _counting_avgpool,
    "gap and fc": lambda b, x: b.softmax(b.fc(b.flatten(b.gap(x)), 10)),
    "flatten of an image": lambda b, x: b.relu(b.fc(b.flatten(x), 10)),
    "channel shuffle": lambda b, x: b.channel_shuffle(x, 4),
    "transpose": lambda b, x: b.transpose(x, (0, 3, 1, 2)),
    "split and concat": _split_and_join,
    "squeeze and excite": _squeeze_excite,
    "hswish": lambda b, x: b.activation(b.conv(x, 8, 1), "hswish"),
    "lrn": lambda b, x: b.lrn(x),
    "upsample": lambda b, x: b.upsample(b.conv(x, 4, 1)),
    "upsample by three": lambda b, x: b.upsample(x, 3),
    "squeeze and unsqueeze": lambda b, x: _unsqueeze(b, b.squeeze(b.relu(b.conv(x, 8, (13, 1), pad=0)), (2,))),
    "lstm": lambda b, x: b.lstm(_line(b, x), 6),
    "lstm of a batch": lambda b, x: b.squeeze(b.lstm(b.reshape(x, (13, 3, 32)), 7), (1,)),
    "backward lstm": _backward_lstm,
    "bidirectional lstm": lambda b, x: b.lstm(_line(b, x), 6, bidirectional=True),
    "bidirectional lstm, joined": _crnn,
}
#: What ncnn has layers for.
NCNN_BLOCKS: dict[str, Block] = {
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


def _model(folder: Path, *blocks: Block) -> Path:
    b = GraphBuilder("block", SHAPE)
    return save_onnx(b.build(*(block(b, b.input) for block in blocks)), folder / "block.onnx")


def _computed(engine: str, folder: Path, *blocks: Block) -> list[float]:
    """How far outputs of blocks side by side are, computed by an engine, from ONNX Runtime's."""
    model, inputs = _model(folder, *blocks), random_inputs({"input": SHAPE}, 3)
    made = folder / "made"
    made.mkdir()
    artefact = named_object(setting(engine).prepare)(model, {"input": SHAPE}, made, 1)
    with Program(engine, artefact, inputs, threads=1) as program:
        program.go()
        assert len(list(program.run(1))) == 1  # nothing of a run may reach the next, such as the states of an LSTM
        assert sorted(made.iterdir()) == sorted(artefact.files)
        pairs = zip(program.outputs(), onnxruntime_outputs(model, inputs), strict=True)
        return [relative_error([found], [wanted]) for found, wanted in pairs]


@pytest.mark.parametrize(
    ("engine", "blocks"),
    [
        *(pytest.param("litert", names, marks=needs_litert) for names in ([*BLOCKS][first::5] for first in range(5))),
        *(pytest.param("ncnn", names, marks=needs_pnnx) for names in ([*NCNN_BLOCKS][first::2] for first in range(2))),
    ],
)
def test_converted_operators_compute_the_same(engine: str, blocks: list[str], tmp_path: Path) -> None:
    known = {"litert": BLOCKS, "ncnn": NCNN_BLOCKS}[engine]
    errors = _computed(engine, tmp_path, *(known[name] for name in blocks))
    assert {name: error for name, error in zip(blocks, errors, strict=True) if not error < 1e-4} == {}


def _resized(mode: str, coordinates: str, *size: int) -> Block:
    attributes: dict[str, Attribute] = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
    sizes = (SHAPE[0], SHAPE[1], *size)
    return lambda b, x: b._op("Resize", [x], [sizes], attributes={"sizes": sizes, **attributes})[0]


@needs_litert
@pytest.mark.parametrize(
    ("block", "why"),
    [
        (lambda b, x: b.softmax(x), "softmax"),  # over width; over the channels of an image it is the innermost axis
        (_resized("nearest", "half_pixel", 26, 24), "Resize"),
        (_resized("nearest", "asymmetric", 20, 24), "Resize"),
        (_resized("linear", "asymmetric", 26, 24), "Resize"),
    ],
)
def test_what_has_no_counterpart_is_refused(block: Block, why: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match=why):
        _computed("litert", tmp_path, block)


def test_joining_directions_as_pytorch_does_keeps_the_results(tmp_path: Path) -> None:
    model = _model(tmp_path, _recurrent)
    (tmp_path / "work").mkdir()
    joined = ncnn_cold._source(model, tmp_path / "work")
    shapes = [i for i in onnx.load(joined).graph.initializer if onnx.numpy_helper.to_array(i).tolist() == [0, 0, -1]]
    assert len(shapes) == 2
    inputs = random_inputs({"input": SHAPE}, 3)
    assert relative_error(onnxruntime_outputs(joined, inputs), onnxruntime_outputs(model, inputs)) == 0
    (tmp_path / "again").mkdir()
    plain = _model(tmp_path, NCNN_BLOCKS["classifier"])
    assert ncnn_cold._source(plain, tmp_path / "again").resolve() == plain.resolve(), "without LSTMs it is not copied"


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
    model, folder = _model(tmp_path, NCNN_BLOCKS["classifier"]), tmp_path / "ncnn"
    folder.mkdir()
    program = tmp_path / "converter"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setattr(ncnn_cold, "_pnnx", lambda: str(program))
    monkeypatch.setattr(ncnn_cold, "_SECONDS", 0.2 if "sleep" in script else 60)
    with pytest.raises(UnsupportedError, match=reason):
        ncnn_cold.convert(model, {"input": SHAPE}, folder)
    assert not list(folder.iterdir())


def test_a_batch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="batch"):
        ncnn_cold.converted(tmp_path / "absent.onnx", {"input": (2, 3, 8, 8)}, tmp_path, 1)
