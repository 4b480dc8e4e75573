"""Draws nets of sequences and rows: taggers, recurrent nets, text by convolutions, tables, products of one row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import TensorProto

from edgeplan.workloads.exports.net import Net

_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
_IDS = TensorProto.INT64


def _recurrent(
    b: Net, x: str, cell: str, hidden: int, *, both: bool = False, given: list[str] | None = None
) -> tuple[str, ...]:
    """Return a recurrent layer (time, batch, width) and its last states; both directions are joined."""
    directions, inputs = 1 + both, b.shape(x)[2]
    gates, spread = _GATES[cell] * hidden, 1 / math.sqrt(hidden)
    shapes = ((directions, gates, inputs), (directions, gates, hidden), (directions, 2 * gates))
    weights = [b.drawn(*shape, spread=spread) for shape in shapes]
    how: dict[str, Any] = (
        {"linear_before_reset": 0 if b.exporter == "tensorflow" and b.chance(0.3) else 1} if cell == "GRU" else {}
    )
    direction = "bidirectional" if both else "forward"
    states = ["", *given] if given else []
    y, *last = b.nodes(cell, [x, *weights, *states], 3 if cell == "LSTM" else 2, hidden_size=hidden, direction=direction, **how)
    if not both:
        return (b.node("Squeeze", [y, b.integers((1,))]), *last)
    time, _, batch, _ = b.shape(y)
    return (b.reshape(b.transpose(y, 0, 2, 1, 3), (time, batch, 2 * hidden)), *last)


def tagger(b: Net) -> dict[str, str]:
    """Draw a tagger: an embedding, or features, recurrent layers of both directions, and scores of each token."""
    batch, tokens, cell = b.batch, b.size(1, 200), b.choose("LSTM", "LSTM", "GRU")
    if b.chance(0.7):
        words = b.drawn(b.size(50, 20000), b.choose(b.size(16, 300, 4), 64, 100, 128, 300))
        x = b.node("Gather", [words, b.input("ids", (batch, tokens), _IDS)], axis=0)
    else:
        x = b.input("features", (batch, tokens, b.size(16, 768)))
    if b.chance(0.25):
        x = b.transpose(b.conv(b.transpose(x, 0, 2, 1), b.size(32, 256, 8), b.choose(3, 5), act="Relu"), 0, 2, 1)
    x = b.transpose(x, 1, 0, 2)
    hidden = b.choose(b.size(16, 512, 2), 64, 100, 128, 200, 256)
    for _ in range(b.choose(1, 1, 2, 3)):
        x = _recurrent(b, x, cell, hidden, both=b.chance(0.85))[0]
    x = b.transpose(x, 1, 0, 2)
    if b.chance(0.25):
        x = b.dense(x, b.size(32, 256), "Relu")
    x = b.dense(x, b.size(2, 200))
    end = b.choose("", "Softmax", "LogSoftmax", "ArgMax")
    return {"tags": b.node(end, [x], axis=-1) if end else x}


def recurrent(b: Net) -> dict[str, str]:
    """Draw a recurrent net of signals or series, whose states come in and go out, or which hands out its last step."""
    batch, cell, features = b.batch, b.choose("LSTM", "LSTM", "GRU", "GRU", "RNN"), b.size(1, 257)
    time, hidden, layers = (
        b.choose(1, b.size(2, 150), b.size(2, 150)),
        b.choose(b.size(8, 640, 2), 64, 128, 256),
        b.choose(1, 2, 2, 3),
    )
    kept = b.chance(0.6)
    x = b.transpose(b.input("input", (batch, time, features)), 1, 0, 2)
    if b.chance(0.3):
        x = b.dense(x, hidden, b.choose("Relu", "Tanh"))
    kinds = ("h", "c") if cell == "LSTM" else ("h",)
    states = [b.input(kind, (layers, batch, hidden)) for kind in kinds] if kept else []
    left: list[list[str]] = [[] for _ in kinds]
    for layer in range(layers):
        given = [b.cut(state, 0, layer, layer + 1) for state in states] if layers > 1 else states
        x, *last = _recurrent(b, x, cell, hidden, given=given)
        for one, found in zip(last, left, strict=True):
            found.append(one)
    outputs = {f"{kind}_out": b.joined(found, 0) for kind, found in zip(kinds, left, strict=True)} if kept else {}
    x = b.transpose(x, 1, 0, 2) if kept or b.chance(0.4) else b.take(x, 0, time - 1)
    if b.chance(0.4):
        x = b.dense(x, b.size(16, 256), "Relu")
    return {"output": b.dense(x, b.size(1, 257), b.choose("", "Sigmoid", "Softmax", "Tanh"))} | outputs


def text_cnn(b: Net) -> dict[str, str]:
    """Draw a classifier of text or characters by convolutions of several widths (Kim, 2014), or of several layers."""
    batch, tokens, width = b.batch, b.size(20, 512), b.choose(16, 32, 50, 64, 100, 128, 300)
    x = b.node("Gather", [b.drawn(b.size(64, 20000), width), b.input("ids", (batch, tokens), _IDS)], axis=0)
    outputs, act = b.choose(32, 64, 100, 128, 256), b.choose("Relu", "Relu", "Gelu", "Tanh")
    x = b.transpose(x, 0, 2, 1)
    if b.chance(0.6):
        found = [b.conv(x, outputs, kernel, act=act, pads=(0, 0)) for kernel in b.choose((3, 4, 5), (2, 3, 4, 5), (3, 5, 7))]
        most = b.choose("MaxPool", "GlobalMaxPool")
        last = b.integers((2,))
        whole: list[dict[str, Any]] = [{"kernel_shape": [b.shape(one)[2]]} if most == "MaxPool" else {} for one in found]
        rows = [b.node("Squeeze", [b.node(most, [one], **how), last]) for one, how in zip(found, whole, strict=True)]
        x = b.joined(rows, 1)
    else:
        for _ in range(b.choose(2, 3, 4)):
            x = b.conv(x, outputs, b.choose(3, 5), act=act, normed=b.chance(0.5))
            x = b.node("MaxPool", [x], kernel_shape=[2], strides=[2])
        x = b.node("Flatten", [x], axis=1)
    x = b.dense(x, b.size(32, 256), "Relu") if b.chance(0.5) else x
    return {"scores": b.dense(x, b.size(2, 100), b.choose("", "Softmax", "Sigmoid"))}


def table(b: Net) -> dict[str, str]:
    """Draw a net of tables: numbers that are scaled, kinds that are embedded, and labels as sklearn-onnx writes them."""
    batch, width = b.batch, b.choose(b.size(2, 100), b.size(16, 2048))
    x = b.input("X", (batch, width))
    if b.chance(0.5):
        x = b.node("Div", [b.node("Sub", [x, b.drawn(width)]), b.drawn(width, spread=0.5, centre=1.0)])
    if b.chance(0.35):
        kinds = b.input("kinds", (batch, fields := b.size(2, 12)), _IDS)
        words = [b.drawn(b.size(2, 5000), b.choose(4, 8, 16, 32)) for _ in range(fields)]
        x = b.joined([x, *(b.node("Gather", [one, b.take(kinds, 1, i)], axis=0) for i, one in enumerate(words))], 1)
    act, hidden, shape = (
        b.choose("Relu", "Relu", "Tanh", "Sigmoid", "Gelu", "Elu", "Selu"),
        b.size(16, 2048),
        b.choose("cone", "even", "summed"),
    )
    for layer in range(b.choose(1, 2, 2, 3, 4, 6)):
        y = b.dense(x, max(4, hidden >> layer) if shape == "cone" else hidden, act)
        y = b.norm(y) if b.chance(0.2) else y
        x = b.node("Add", [x, y]) if shape == "summed" and layer else y
    x = b.dense(x, classes := b.choose(1, 2, b.size(2, 100)))
    if classes == 1:
        return {"output": b.node("Sigmoid", [x]) if b.chance(0.5) else x}
    shares = b.node("Softmax", [x], axis=1)
    if b.chance(0.5):
        return {"output": shares}
    best = b.node("ArgMax", [shares], axis=1, keepdims=0)
    labels = b.node("Gather", [b.constant("classes", np.arange(classes), np.int64), best], axis=0)
    return {"label": labels, "probabilities": shares}


def wide_product(b: Net) -> dict[str, str]:
    """Draw a net whose time is that of products of one row, or a few, with 30 to 100 MB of weights."""
    rows, megabytes = b.choose(1, 1, 1, 1, 2, 4), b.size(30, 100)
    inputs = b.choose(b.size(256, 4096, 32), 512, 768, 1024, 2048, 4096)
    hidden = round(megabytes * 1e6 / 4 / inputs)
    x = b.input("states", (rows, inputs) if b.chance(0.5) else (1, rows, inputs))
    x = b.norm(x, b.choose("layer", "rms")) if b.chance(0.4) else x
    if b.chance(0.5):
        return {"logits": b.dense(x, hidden, bias=b.chance(0.5))}
    y = b.dense(x, hidden // 2, b.choose("Relu", "Gelu", "Silu"), bias=b.chance(0.7))
    return {"output": b.dense(y, inputs)}
