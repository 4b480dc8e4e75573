"""Draws nets of sequences and rows: transformers as torch.onnx, optimum and Paddle write them, recurrent nets, tables."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto

from edgeplan.workloads.exports.net import Net

#: What masked scores are lowered by, as `transformers` does.
_LEAST = float(np.finfo(np.float32).min)
_PATCHES, _IDS = (14, 16, 16, 32), TensorProto.INT64
_BUCKETS = 32  # of distances, of T5


@dataclass(frozen=True, slots=True)
class _Blocks:
    """Blocks of a transformer share their widths and ways to write them.

    Keys and values have heads for groups of those of queries. Norms are `layer`, or `rms`, whose layers are
    gated and have no bias, before layers rather than behind sums where so asked. Scores are scaled by `Div`
    or `Mul`, or `both` operands before their product. Merged layers of queries, keys and values are split.
    """

    net: Net
    heads: int
    each: int
    groups: int
    norm: str
    act: str
    before: bool
    hidden: int
    scale: str
    merged: bool

    @property
    def width(self) -> int:
        return self.heads * self.each

    def cut(self, x: str, heads: int, *order: int) -> str:
        """Return (batch, tokens, width) by heads, in an order of axes."""
        batch, tokens, _ = self.net.shape(x)
        return self.net.transpose(self.net.reshape(x, (batch, tokens, heads, self.each)), *order)

    def turned(self, x: str, angles: tuple[str, ...]) -> str:
        """Add rotary embeddings (Su et al., 2021), whose halves are cut and joined as `transformers` does."""
        b, half = self.net, self.each // 2
        crossed = b.joined([b.node("Neg", [b.cut(x, 3, half, self.each)]), b.cut(x, 3, 0, half)], 3)
        return b.node("Add", [b.node("Mul", [x, angles[0]]), b.node("Mul", [crossed, angles[1]])])

    def repeated(self, x: str) -> str:
        """Return keys or values of grouped heads (batch, groups, tokens, each), once for each head of queries."""
        b, (batch, groups, tokens, each) = self.net, self.net.shape(x)
        shape = (batch, groups, self.heads // groups, tokens, each)
        wide = b.node("Expand", [b.node("Unsqueeze", [x, b.integers((2,))]), b.integers(shape)])
        return b.reshape(wide, (batch, self.heads, tokens, each))

    def attention(
        self, x: str, memory: str = "", mask: str = "", past: tuple[str, ...] = (), angles: tuple[str, ...] = ()
    ) -> tuple[str, tuple[str, str]]:
        """Return attention of x to itself or to a memory, (batch, tokens, width), and keys and values to be kept.

        A mask is added to scores (batch, heads, tokens, others), or says where they are kept. Keys and values of
        the past are (batch, groups, tokens, each), cosines and sines of angles (batch, 1, tokens, each).
        """
        b, bias, few = self.net, self.norm == "layer", self.groups * self.each
        if self.merged and not memory and self.groups == self.heads:
            query, key, value = b.split(b.dense(x, 3 * self.width, bias=bias), 2, 3)
        else:
            query, key, value = (b.dense(one, size, bias=bias) for one, size in ((x, self.width), *[(memory or x, few)] * 2))
        at_once = not past and not angles and self.groups == self.heads and self.scale != "both"
        query, value = self.cut(query, self.heads, 0, 2, 1, 3), self.cut(value, self.groups, 0, 2, 1, 3)
        key = self.cut(key, self.groups, *((0, 2, 3, 1) if at_once else (0, 2, 1, 3)))
        if angles:
            query, key = self.turned(query, angles), self.turned(key, angles)
        if past:
            key, value = b.joined([past[0], key], 2), b.joined([past[1], value], 2)
        kept = (key, value)
        if self.groups < self.heads:
            key, value = self.repeated(key), self.repeated(value)
        key, root = key if at_once else b.transpose(key, 0, 1, 3, 2), math.sqrt(self.each)
        if self.scale == "both":
            query, key = (b.scalar("Mul", one, 1 / math.sqrt(root)) for one in (query, key))
        scores = b.node("MatMul", [query, key])
        if self.scale in ("Div", "Mul"):
            scores = b.scalar(self.scale, scores, root if self.scale == "Div" else 1 / root)
        if mask and b.kind(mask) == TensorProto.BOOL:
            scores = b.node("Where", [mask, scores, b.constant("least", _LEAST)])
        elif mask:
            scores = b.node("Add", [scores, mask])
        found = b.transpose(b.node("MatMul", [b.node("Softmax", [scores], axis=-1), value]), 0, 2, 1, 3)
        return b.dense(b.reshape(found, (*b.shape(found)[:2], self.width)), self.width, bias=bias), kept

    def forward(self, x: str) -> str:
        """Return the two layers behind attention; those of `rms` are gated."""
        b, bias = self.net, self.norm == "layer"
        y = b.dense(x, self.hidden, self.act, bias=bias)
        if not bias:
            y = b.node("Mul", [y, b.dense(x, self.hidden, bias=False)])
        return b.dense(y, self.width, bias=bias)

    def block(
        self, x: str, mask: str = "", memory: str = "", past: tuple[str, ...] = (), angles: tuple[str, ...] = ()
    ) -> tuple[str, tuple[str, str]]:
        """Return a block, with attention to a memory where there is one, and keys and values to be kept."""
        b, kept = self.net, ("", "")
        for part in ("self", "memory", "forward") if memory else ("self", "forward"):
            y = b.norm(x, self.norm) if self.before else x
            if part == "self":
                y, kept = self.attention(y, "", mask, past, angles)
            else:
                y = self.forward(y) if part == "forward" else self.attention(y, memory)[0]
            x = b.node("Add", [y, x])
            x = x if self.before else b.norm(x, self.norm)
        return x, kept

    def ended(self, x: str) -> str:
        """Return the norm behind the last block, where norms lie before layers."""
        return self.net.norm(x, self.norm) if self.before else x


def _blocks(b: Net, norm: str, heads: tuple[int, ...], *, grouped: bool = False) -> _Blocks:
    count, each = b.choose(*heads), b.choose(32, 64, 64)
    groups = b.choose(*(one for one in (1, 2, 4, count) if count % one == 0)) if grouped else count
    act = b.choose("Silu", "Silu", "GeluTanh") if norm == "rms" else b.choose("Gelu", "Gelu", "GeluTanh", "Relu")
    hidden = b.size(2 * count * each, 4 * count * each, 64) if norm == "rms" else count * each * b.choose(2, 4, 4)
    scale, merged = b.choose("Div", "Mul", "both"), b.chance(0.3)
    return _Blocks(b, count, each, groups, norm, act, norm == "rms" or b.chance(0.4), hidden, scale, merged)


def _words(b: Net, ids: str, width: int, vocabulary: int) -> str:
    return b.node("Gather", [b.drawn(vocabulary, width), ids], axis=0)


def _mask(b: Net, batch: int, tokens: int, others: int) -> str:
    """Return a mask of tokens that count: added to scores, as of BERT, or as where they are kept."""
    given = b.input("attention_mask", (batch, others), _IDS)
    mask = b.node("Unsqueeze", [given, b.integers((1, 2))])
    if b.chance(0.3):
        return b.node("Cast", [b.node("Expand", [mask, b.integers((batch, 1, tokens, others))])], to=TensorProto.BOOL)
    return b.scalar("Mul", b.scalar("Sub", b.node("Cast", [mask], to=TensorProto.FLOAT), 1.0, first=True), _LEAST)


def _buckets(b: Net, heads: int, tokens: int, others: int) -> str:
    """Return a bias by distance (Raffel et al., 2020): (1, heads, tokens, others)."""
    distance = np.clip(np.arange(others)[None] - np.arange(tokens)[:, None] + _BUCKETS // 2, 0, _BUCKETS - 1)
    found = _words(b, b.constant(f"distances_{tokens}_{others}", distance, np.int64), heads, _BUCKETS)
    return b.node("Unsqueeze", [b.transpose(found, 2, 0, 1), b.integers((0,))])


def encoder(b: Net) -> dict[str, str]:
    """Draw an encoder of text: BERT and its distilled, narrow and multilingual kin."""
    batch, tokens = b.batch, b.choose(b.size(4, 64), 16, 32, 64, 128, 128, 256, 384)
    blocks = _blocks(b, "layer", (1, 2, 4, 6, 8, 12))
    ids = b.input("input_ids", (batch, tokens), _IDS)
    mask = _mask(b, batch, tokens, tokens)
    x = _words(b, ids, blocks.width, b.size(1000, 30522))
    if b.chance(0.6):
        x = b.node("Add", [x, _words(b, b.input("token_type_ids", (batch, tokens), _IDS), blocks.width, 2)])
    if b.chance(0.3):  # places are counted where there is no padding, as RoBERTa does
        counted = b.node("Mul", [b.node("CumSum", ["attention_mask", b.constant("axis", 1, np.int64)]), "attention_mask"])
        places = b.node("Add", [counted, b.constant("padding", 1, np.int64)])
        x = b.norm(b.node("Add", [x, _words(b, places, blocks.width, tokens + 2)]))
    else:
        x = b.norm(b.node("Add", [x, b.drawn(1, tokens, blocks.width)]))
    for _ in range(b.choose(1, 2, 3, 4, 6)):
        x, _ = blocks.block(x, mask)
    x = blocks.ended(x)
    head = b.choose("class", "mean", "tokens", "states")
    if head == "class":
        x = b.dense(b.dense(b.take(x, 1, 0), blocks.width, "Tanh"), b.size(2, 150))
    elif head == "mean":  # as sentence embeddings are
        counted = b.node("Unsqueeze", [b.node("Cast", ["attention_mask"], to=TensorProto.FLOAT), b.integers((2,))])
        summed = b.reduce("ReduceSum", b.node("Mul", [x, counted]), 1, keep=0)
        count = b.node("Clip", [b.reduce("ReduceSum", counted, 1, keep=0), b.constant("fewest", 1e-9)])
        x = b.node("Div", [summed, count])
        x = b.node("Div", [x, b.clip(b.reduce("ReduceL2", x, -1), 1e-12, 1e12)])
    elif head == "tokens":
        x = b.dense(x, b.size(2, 60))
    return {"output": x}


def decoder(b: Net) -> dict[str, str]:
    """Draw a decoder that reads one new token, or a few, and the keys and values of those before."""
    norm = b.choose("rms", "rms", "layer")
    blocks = _blocks(b, norm, (2, 4, 6, 8, 12, 16), grouped=norm == "rms")
    batch, tokens, past = b.batch, b.choose(1, 1, 1, 1, b.size(2, 64)), b.size(1, 1024)
    ids = b.input("input_ids", (batch, tokens), _IDS)
    mask = _mask(b, batch, tokens, past + tokens) if b.chance(0.7) or tokens > 1 else ""
    places = b.input("position_ids", (batch, tokens), _IDS)
    vocabulary, angles = b.size(512, 32000, 8), tuple[str, ...]()
    x = _words(b, ids, blocks.width, vocabulary)
    if norm == "rms":
        parts = [_words(b, places, blocks.each, past + tokens) for _ in range(2)]
        angles = tuple(b.node("Unsqueeze", [part, b.integers((1,))]) for part in parts)
    else:
        x = b.node("Add", [x, _words(b, places, blocks.width, past + tokens)])
    outputs = {"logits": ""}
    for layer in range(b.choose(1, 2, 3, 4, 6)):
        names, shape = ("key", "value"), (batch, blocks.groups, past, blocks.each)
        before = tuple(b.input(f"past_key_values.{layer}.{name}", shape) for name in names)
        x, kept = blocks.block(x, mask, past=before, angles=angles)
        outputs |= {f"present.{layer}.{name}": one for name, one in zip(names, kept, strict=True)}
    return outputs | {"logits": b.dense(blocks.ended(x), vocabulary, bias=False)}


def encoder_decoder(b: Net) -> dict[str, str]:
    """Draw an encoder and a decoder that attends to it, with biases by distance or with places, of text or of spectra."""
    norm = b.choose("rms", "layer")
    blocks = _blocks(b, norm, (2, 4, 6, 8))
    batch, source, target = b.batch, b.size(8, 256), b.choose(1, 1, b.size(2, 64))
    if b.chance(0.3):  # two convolutions read a spectrum, as of Whisper
        x = b.input("input_features", (batch, 80, 2 * source))
        x = b.conv(b.conv(x, blocks.width, 3, act="Gelu"), blocks.width, 3, 2, "Gelu")
        x, vocabulary = b.transpose(x, 0, 2, 1), b.size(500, 8000)
    else:
        vocabulary = b.size(64, 32000)
        x = _words(b, b.input("input_ids", (batch, source), _IDS), blocks.width, vocabulary)
    y = _words(b, b.input("decoder_input_ids", (batch, target), _IDS), blocks.width, vocabulary)
    own = causal = ""
    if norm == "rms":
        own, causal = (_buckets(b, blocks.heads, count, count) for count in (source, target))
    else:
        x, y = (b.node("Add", [one, b.drawn(1, b.shape(one)[1], blocks.width)]) for one in (x, y))
        causal = b.constant("causal_mask", np.triu(np.full((1, 1, target, target), _LEAST), 1)) if target > 1 else ""
    layers = b.choose(1, 2, 3, 4)
    for _ in range(layers):
        x, _ = blocks.block(x, own)
    x = blocks.ended(x)
    for _ in range(layers):
        y, _ = blocks.block(y, causal, x)
    return {"logits": b.dense(blocks.ended(y), vocabulary, bias=False), "encoder_last_hidden_state": x}


def vision_transformer(b: Net) -> dict[str, str]:
    """Draw a transformer of images: of all patches with a token of the class, or of windows that are cut and joined."""
    batch, blocks, patch, windows = b.batch, _blocks(b, "layer", (3, 4, 6, 8, 12)), b.choose(*_PATCHES), b.chance(0.35)
    window, side = b.choose(7, 8), b.choose(7, 8, 10, 14)
    side = window * b.choose(1, 2, 4) if windows else side
    x = b.conv(b.image("pixel_values", batch, 3, side * patch, side * patch), blocks.width, patch, patch, pads=(0, 0))
    x = b.transpose(b.reshape(x, (batch, blocks.width, side * side)), 0, 2, 1)
    if not windows:
        classed = b.node("Expand", [b.drawn(1, 1, blocks.width), b.integers((batch, 1, blocks.width))])
        x = b.joined([classed, x], 1)
        x = b.node("Add", [x, b.drawn(1, side * side + 1, blocks.width)])
    count = side // window
    for _ in range(b.choose(1, 2, 3, 4, 6)):
        if windows:
            x = b.reshape(x, (batch, count, window, count, window, blocks.width))
            x = b.reshape(b.transpose(x, 0, 1, 3, 2, 4, 5), (batch * count**2, window**2, blocks.width))
        x, _ = blocks.block(x, b.drawn(1, blocks.heads, window**2, window**2) if windows else "")
        if windows:
            x = b.reshape(x, (batch, count, count, window, window, blocks.width))
            x = b.reshape(b.transpose(x, 0, 1, 3, 2, 4, 5), (batch, side * side, blocks.width))
    x = blocks.ended(x)
    return {"logits": b.dense(b.reduce("ReduceMean", x, 1, keep=0) if windows else b.take(x, 1, 0), b.size(2, 1000))}


_GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


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
    time, hidden = b.choose(1, b.size(2, 150), b.size(2, 150)), b.choose(b.size(8, 640, 2), 64, 128, 256)
    layers = b.choose(1, 2, 2, 3)
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


def tabular(b: Net) -> dict[str, str]:
    """Draw a net of tables: numbers that are scaled, kinds that are embedded, and labels as sklearn-onnx writes them."""
    batch, width = b.batch, b.choose(b.size(2, 100), b.size(16, 2048))
    x = b.input("X", (batch, width))
    if b.chance(0.5):
        x = b.node("Div", [b.node("Sub", [x, b.drawn(width)]), b.drawn(width, spread=0.5, centre=1.0)])
    if b.chance(0.35):
        kinds = b.input("kinds", (batch, fields := b.size(2, 12)), _IDS)
        words = [b.drawn(b.size(2, 5000), b.choose(4, 8, 16, 32)) for _ in range(fields)]
        x = b.joined([x, *(b.node("Gather", [one, b.take(kinds, 1, i)], axis=0) for i, one in enumerate(words))], 1)
    act, hidden = b.choose("Relu", "Relu", "Tanh", "Sigmoid", "Gelu", "Elu", "Selu"), b.size(16, 2048)
    shape = b.choose("cone", "even", "summed")
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
