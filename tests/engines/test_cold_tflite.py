"""The converter to TFLite, held against ONNX Runtime operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from edgeplan.cold.baselines.base import UnsupportedError
from edgeplan.cold.inputs import random_inputs, relative_error
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.onnx_export import save_onnx

litert = pytest.importorskip("edgeplan.cold.baselines.litert")
pytest.importorskip("ai_edge_litert")

SHAPE = (1, 8, 13, 12)
Block = Callable[[GraphBuilder, str], str]


def _squeeze_excite(b: GraphBuilder, x: str) -> str:
    gate = b.activation(b.conv(b.gap(x), 8, 1, bias=True), "hsigmoid")
    return b.mul(x, gate)


def _split_and_join(b: GraphBuilder, x: str) -> str:
    left, right = b.split(x, (3, 5))
    return b.concat([right, b.relu(left)])


def _residual(b: GraphBuilder, x: str) -> str:
    return b.relu(b.add(b.conv_bn(x, 8, 3, act=""), x))


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
    "gap and fc": lambda b, x: b.softmax(b.fc(b.flatten(b.gap(x)), 10)),
    "flatten of an image": lambda b, x: b.relu(b.fc(b.flatten(x), 10)),
    "channel shuffle": lambda b, x: b.channel_shuffle(x, 4),
    "transpose": lambda b, x: b.transpose(x, (0, 3, 1, 2)),
    "split and concat": _split_and_join,
    "squeeze and excite": _squeeze_excite,
    "hswish": lambda b, x: b.activation(b.conv(x, 8, 1), "hswish"),
    "sigmoid": lambda b, x: b.activation(x, "sigmoid"),
    "lrn": lambda b, x: b.lrn(x),
}


def _outputs(block: Block, folder: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    b = GraphBuilder("block", SHAPE)
    model = save_onnx(b.build(block(b, b.input)), folder / "block.onnx")
    inputs = random_inputs({"input": SHAPE}, 3)
    expected = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, inputs)
    engine = litert.LiteRt()
    engine.load_library(1)
    artefact = engine.prepare(model, {"input": SHAPE}, folder, 1)
    session = engine.open(artefact, engine.prepare_inputs(inputs), 1)
    session.run()
    return list(session.outputs().values()), expected


@pytest.mark.parametrize("name", BLOCKS)
def test_converted_operators_compute_the_same(name: str, tmp_path: Path) -> None:
    ours, expected = _outputs(BLOCKS[name], tmp_path)
    assert relative_error(ours, expected) < 1e-4


def test_padding_that_tflite_cannot_average_over_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="average pooling"):
        _outputs(lambda b, x: b.avgpool(x, 3, 2, 1), tmp_path)


def test_softmax_over_channels_of_an_image_is_the_innermost_axis_but_over_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="softmax"):
        _outputs(lambda b, x: b.softmax(x), tmp_path)
