"""The converter to TFLite, held against ONNX Runtime operator by operator."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from edgeplan.engines.description import UnsupportedError
from edgeplan.engines.program import Program
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Attribute
from edgeplan.graph.onnx.write import save_onnx
from edgeplan.measurement.process.inputs import random_inputs
from edgeplan.support.tensors import relative_error

litert = pytest.importorskip("edgeplan.engines.litert.cold")
pytest.importorskip("ai_edge_litert")

SHAPE = (1, 8, 13, 12)
Block = Callable[[GraphBuilder, str], str]


def _squeeze_excite(b: GraphBuilder, x: str) -> str:
    gate = b.activation(b.conv(b.gap(x), 8, 1, bias=True), "sigmoid")
    return b.mul(x, gate)


def _split_and_join(b: GraphBuilder, x: str) -> str:
    left, right = b.split(x, (3, 5))
    return b.concat([right, b.relu(left)])


def _residual(b: GraphBuilder, x: str) -> str:
    return b.relu(b.add(b.conv_bn(x, 8, 3, act=""), x))


def _resize(b: GraphBuilder, x: str, height: int, width: int, **attributes: Attribute) -> str:
    n, c, _, _ = b.shape(x)
    return b._op("Resize", [x], [(n, c, height, width)], attributes={"sizes": (n, c, height, width), **attributes})[0]


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
    "sigmoid": lambda b, x: b.activation(x, "sigmoid"),
    "lrn": lambda b, x: b.lrn(x),
    "upsample": lambda b, x: b.upsample(b.conv(x, 4, 1)),
    "upsample by three": lambda b, x: b.upsample(x, 3),
    "squeeze and unsqueeze": lambda b, x: b.unsqueeze(b.squeeze(b.relu(b.conv(x, 8, (13, 1), pad=0)), (2,)), (1,)),
    "lstm": lambda b, x: b.lstm(_line(b, x), 6),
    "lstm of a batch": lambda b, x: b.squeeze(b.lstm(b.reshape(x, (13, 3, 32)), 7), (1,)),
    "backward lstm": _backward_lstm,
    "bidirectional lstm": lambda b, x: b.lstm(_line(b, x), 6, bidirectional=True),
    "bidirectional lstm, joined": _crnn,
}


def _outputs(block: Block, folder: Path) -> tuple[list[np.ndarray], list[np.ndarray]]:
    b = GraphBuilder("block", SHAPE)
    model = save_onnx(b.build(block(b, b.input)), folder / "block.onnx")
    inputs = random_inputs({"input": SHAPE}, 3)
    expected = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, inputs)
    artefact = litert.converted(model, {"input": SHAPE}, folder, 1)
    with Program("litert", artefact, inputs, threads=1) as program:
        program.go()
        assert len(list(program.run(1))) == 1  # nothing of a run may reach the next, such as the states of an LSTM
        return program.outputs(), expected


@pytest.mark.parametrize("name", BLOCKS)
def test_converted_operators_compute_the_same(name: str, tmp_path: Path) -> None:
    ours, expected = _outputs(BLOCKS[name], tmp_path)
    assert relative_error(ours, expected) < 1e-4


def test_softmax_over_channels_of_an_image_is_the_innermost_axis_but_over_width_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError, match="softmax"):
        _outputs(lambda b, x: b.softmax(x), tmp_path)


@pytest.mark.parametrize(
    ("mode", "coordinates", "size"),
    [("nearest", "half_pixel", (26, 24)), ("nearest", "asymmetric", (20, 24)), ("linear", "asymmetric", (26, 24))],
)
def test_a_resize_that_does_not_repeat_pixels_is_refused(
    mode: str, coordinates: str, size: tuple[int, int], tmp_path: Path
) -> None:
    attributes: dict[str, Attribute] = {"mode": mode, "coordinate_transformation_mode": coordinates, "nearest_mode": "floor"}
    with pytest.raises(UnsupportedError, match="Resize"):
        _outputs(lambda b, x: _resize(b, x, *size, **attributes), tmp_path)
