"""Draws nets of convolutions: of images (classifiers, detectors, segmentation, coders) and of sound."""

from __future__ import annotations

import math
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from edgeplan.workloads.exports.net import Net

_IMAGES = (64, 96, 128, 160, 192, 224, 224, 256, 320)
_HALVED: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}


def _block(b: Net, x: str, outputs: int, stride: int, kind: str, act: str, gate: str = "") -> str:
    """Return a block of a kind; a gate scales channels by what a small net makes of their means (Hu et al., 2018)."""
    inputs, conv = b.shape(x)[1], partial(b.conv, normed=True)
    if kind == "plain":
        return conv(x, outputs, 3, stride, act)
    if kind == "apart":
        return conv(conv(x, inputs, b.choose(3, 3, 5), stride, act, groups=inputs), outputs, 1, act=act)
    if kind == "dense":
        x = b.node("AveragePool", [x], **_HALVED) if stride > 1 else x
        return b.joined([x, conv(conv(x, outputs, 1, act=act), outputs // 2, 3, act=act)], 1)
    if kind == "split":  # half of the channels goes by (Wang et al., 2020)
        y, beside = b.split(conv(x, outputs, 3, stride, act), 1, 2)
        y = b.node("Add", [y, conv(conv(y, outputs // 2, 1, act=act), outputs // 2, 3, act=act)])
        return conv(b.joined([y, beside], 1), outputs, 1, act=act)
    if kind == "inverted":
        inner = inputs * b.choose(2, 4, 6)
        y = conv(conv(x, inner, 1, act=act), inner, b.choose(3, 3, 5), stride, act, groups=inner)
    elif kind == "shuffled":
        y = conv(x, outputs, 1, 1, act, groups=2)
        batch, _, *extents = b.shape(y)
        y = b.transpose(b.reshape(y, (batch, 2, outputs // 2, *extents)), 0, 2, 1, 3, 4)
        y = conv(b.reshape(y, (batch, outputs, *extents)), outputs, 3, stride, groups=outputs)
    else:
        y = conv(x, outputs, 3, stride, act)
    if gate:
        mean = b.node("GlobalAveragePool", [y]) if b.exporter != "tensorflow" else b.reduce("ReduceMean", y, 2, 3)
        channels = b.shape(y)[1]
        y = b.node("Mul", [y, b.conv(b.conv(mean, max(8, channels // 16 * 4), 1, act="Relu"), channels, 1, act=gate)])
    y = conv(y, outputs, 3 if kind == "residual" else 1)
    if b.shape(x) != b.shape(y):
        return y if kind == "inverted" else b.act(b.node("Add", [y, conv(x, outputs, 1, stride)]), act)
    return b.act(b.node("Add", [y, x]), "" if kind == "inverted" else act)


def _stages(b: Net, x: str, stages: int, kind: str, act: str, gate: str = "") -> list[str]:
    """Return the maps of a backbone, each of half the extents of the one before."""
    maps, pooled = list[str](), kind == "plain" and b.chance(0.6)
    for _ in range(stages):
        outputs = b.size(3 * b.shape(x)[1] // 2, 5 * b.shape(x)[1] // 2, 8)
        x = b.node(b.choose("MaxPool", "MaxPool", "AveragePool"), [x], **_HALVED) if pooled else x
        for block in range(b.choose(1, 2, 3)):
            x = _block(b, x, outputs, 1 if block or pooled else 2, kind, act, gate)
        maps.append(x)
    return maps


def _classified(b: Net, x: str) -> dict[str, str]:
    x = b.dense(b.pooled(x), b.size(2, 1000))
    return {"scores": b.node("Softmax", [x], axis=1) if b.exporter == "tensorflow" or b.chance(0.3) else x}


def classifier(b: Net, kinds: tuple[str, ...], acts: tuple[str, ...]) -> dict[str, str]:
    """Draw a classifier of blocks of a kind; plain ones of small images end in layers of all that is left."""
    kind, act, gate, plain = b.choose(*kinds), b.choose(*acts), b.choose("", "HardSigmoid", "Sigmoid"), "plain" in kinds
    side = b.choose(28, 32, 48, *_IMAGES) if plain else b.choose(*_IMAGES)
    x = b.image("image", b.batch, b.choose(1, 3, 3), side, side)
    x = b.conv(x, b.size(16, 64, 8), b.choose(3, 5, 7) if plain else 3, 2 if side > 64 else 1, act, normed=True)
    x = _stages(b, x, 2 if side < 64 else b.choose(3, 4), kind, act, "" if plain else gate)[-1]
    if side > 64 or not plain:
        return _classified(b, x if plain else b.conv(x, 4 * b.shape(x)[1], 1, act=act, normed=True))
    x = b.transpose(x, 0, 2, 3, 1) if b.exporter == "tensorflow" else x
    x = b.dense(b.node("Flatten", [x], axis=1), b.choose(64, 128, 256, 512), act)
    return {"scores": b.node("Softmax", [b.dense(x, b.size(2, 200))], axis=1)}


def detector(b: Net) -> dict[str, str]:
    """Draw a detector: a backbone, maps that are resized and joined, heads, and boxes that are decoded from these."""
    most = 640 if b.batch < 4 else 256
    height, width, classes = b.size(128, most, 32), b.size(128, most, 32), b.choose(1, 2, 20, 80)
    act, kind = b.choose("Silu", "Silu", "LeakyRelu", "Relu", "Relu6", "Mish"), b.choose("split", "split", "residual", "apart")
    x = b.conv(b.image("images", b.batch, 3, height, width), b.size(12, 32, 4), 3, 2, act, normed=True)
    maps, tops = _stages(b, x, 4, kind, act)[-3:], list[str]()
    out = b.size(32, 128, 16)
    for one in reversed(maps):  # from coarse to fine
        y = b.conv(one, out, 1, act=act, normed=True)
        if tops:
            above = b.resized(tops[-1])
            y = b.node("Add", [above, y]) if kind != "split" else b.conv(b.joined([above, y], 1), out, 1, act=act, normed=True)
        elif b.chance(0.3):  # pools of several sizes
            pools = [b.node("MaxPool", [y], kernel_shape=[k, k], pads=[k // 2] * 4, strides=[1, 1]) for k in (5, 9, 13)]
            y = b.conv(b.joined([y, *pools], 1), out, 1, act=act, normed=True)
        tops.append(_block(b, y, out, 1, "apart" if kind == "apart" else "plain", act))
    decode = b.choose(_by_anchors, _by_bins)
    found = [decode(b, top, classes, stride) for top, stride in zip(tops, (32, 16, 8), strict=True)]
    parts = [b.joined(list(part), 1) for part in zip(*found, strict=True)]
    if len(parts) == 1:
        return {"output": parts[0]}
    boxes, scores = parts
    if b.chance(0.4):  # the best ones, as of what needs no suppression
        best = b.nodes("TopK", [b.reduce("ReduceMax", scores, 2, keep=0), b.integers((50,))], 2, axis=1)[1]
        places = b.node("Expand", [b.node("Unsqueeze", [best, b.integers((2,))]), b.integers((b.batch, 50, 4))])
        boxes = b.node("GatherElements", [boxes, places], axis=1)
    return {"boxes": boxes, "scores": scores}


def _grid(b: Net, height: int, width: int, shape: tuple[int, ...]) -> str:
    places = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1)
    return b.constant(f"grid_{height}_{width}_{len(shape)}", places.reshape(shape))


def _by_anchors(b: Net, x: str, classes: int, stride: int) -> tuple[str, ...]:
    """Return (batch, boxes, 5 + classes) of three anchors a place, decoded by sigmoids, powers and a grid."""
    batch, _, height, width = b.shape(x)
    y = b.reshape(b.conv(x, 3 * (5 + classes), 1), (batch, 3, 5 + classes, height, width))
    y = b.node("Sigmoid", [b.transpose(y, 0, 1, 3, 4, 2)])
    middle, extent, rest = (b.cut(y, 4, *ends) for ends in ((0, 2), (2, 4), (4, 5 + classes)))
    middle = b.node("Add", [b.scalar("Mul", middle, 2.0), _grid(b, height, width, (1, 1, height, width, 2))])
    extent = b.node("Mul", [b.scalar("Pow", b.scalar("Mul", extent, 2.0), 2.0), b.drawn(1, 3, 1, 1, 2, centre=2.0)])
    y = b.joined([b.scalar("Mul", middle, float(stride)), extent, rest], 4)
    return (b.reshape(y, (batch, 3 * height * width, 5 + classes)),)


def _by_bins(b: Net, x: str, classes: int, stride: int) -> tuple[str, ...]:
    """Return boxes and scores, (batch, places, ...); each side is the mean of 16 bins by their shares (Li et al., 2020)."""
    batch, _, height, width = b.shape(x)
    y = b.transpose(b.reshape(b.conv(x, 64, 1), (batch, 4, 16, height * width)), 0, 2, 1, 3)
    y = b.reshape(b.conv(b.node("Softmax", [y], axis=1), 1, 1), (batch, 4, height * width))
    start, end = b.split(b.transpose(y, 0, 2, 1), 2, 2)
    middles = _grid(b, height, width, (1, height * width, 2))
    boxes = b.joined([b.node("Sub", [middles, start]), b.node("Exp", [end])], 2)
    scores = b.node("Sigmoid", [b.reshape(b.conv(x, classes, 3), (batch, classes, height * width))])
    return b.scalar("Mul", boxes, float(stride)), b.transpose(scores, 0, 2, 1)


def segmentation(b: Net) -> dict[str, str]:
    """Draw a net that labels places: halves of a U that are joined (Ronneberger et al., 2015)."""
    side, channels, depth, classes = b.choose(*_IMAGES), b.size(8, 48, 8), b.choose(3, 4), b.choose(1, 2, 21)
    act, kind, learnt = b.choose("Relu", "Relu", "LeakyRelu", "Relu6"), b.choose("plain", "plain", "apart"), b.chance(0.6)
    x, maps = b.image("image", b.batch, b.choose(1, 3, 3), side, side), list[str]()

    def twice(x: str, outputs: int) -> str:
        return _block(b, _block(b, x, outputs, 1, kind, act), outputs, 1, kind, act)

    for level in range(depth):
        maps.append(twice(x, channels << level))
        x = b.node("MaxPool", [maps[-1]], **_HALVED)
    x = twice(x, channels << depth)
    if b.chance(0.3):  # dilated convolutions beside each other
        x = b.joined([b.conv(x, channels, 3, act=act, dilation=dilation, normed=True) for dilation in (1, 2, 4)], 1)
    for level, one in reversed(list(enumerate(maps))):
        width = channels << level
        x = b.upwards(x, width, b.choose(2, 2, 4), 2, "") if learnt else b.resized(x, b.choose("linear", "nearest"))
        x = twice(b.joined([x, one], 1), width)
    x, axis = b.conv(x, classes, 1), 1
    if b.exporter == "tensorflow":
        x, axis = b.transpose(x, 0, 2, 3, 1), 3
    return {"mask": b.node("Sigmoid", [x]) if classes == 1 else b.node(b.choose("Softmax", "ArgMax"), [x], axis=axis)}


def autoencoder(b: Net) -> dict[str, str]:
    """Draw a net that codes and restores images, series or rows; some hand out how far these are apart."""
    kind, act, depth = b.choose("image", "image", "series", "rows"), b.choose("Relu", "LeakyRelu", "Elu"), b.choose(2, 3, 4)
    if kind == "rows":
        x = given = b.input("x", (b.batch, b.size(16, 2048)))
        widths = [max(4, b.shape(x)[1] >> level) for level in range(1, depth + 1)]
        for width in (*widths, *widths[-2::-1]):
            x = b.dense(x, width, act)
        x = b.dense(x, b.shape(given)[1], b.choose("", "Sigmoid"))
    else:
        side, channels = b.size(32, 256, 16), b.size(8, 64, 8)
        series = (b.batch, b.choose(1, 8, 64), side * 8)
        x = given = b.input("x", series) if kind == "series" else b.image("x", b.batch, b.choose(1, 3), side, side)
        for level in range(depth):
            x = b.conv(x, channels << level, 3, 2, act, normed=True)
        if b.chance(0.4):
            flat = b.dense(b.node("Flatten", [x], axis=1), b.size(16, 256))
            x = b.reshape(b.dense(flat, math.prod(b.shape(x)[1:]), act), b.shape(x))
        for level in reversed(range(depth)):
            outputs = channels << max(level - 1, 0)
            x = b.upwards(x, outputs, b.choose(2, 4), 2, act) if b.chance(0.7) else b.conv(b.resized(x), outputs, 3, act=act)
        x = b.conv(x, b.shape(given)[1], 3, act=b.choose("Sigmoid", "Tanh"))
    if b.chance(0.4) and b.shape(x) == b.shape(given):
        apart = b.scalar("Pow", b.node("Sub", [given, x]), 2.0)
        return {"restored": x, "error": b.reduce("ReduceMean", apart, *range(1, len(b.shape(x))), keep=0)}
    return {"restored": x}


def _heard(b: Net, channels: int, act: str) -> str:
    """Return frames (batch, channels, time) of features, a wave, or the spectrum that a convolution makes of a wave."""
    source, valid = b.choose("wave", "spectrum", "features", "features"), (0, 0)
    if source == "features":
        x = b.input("features", (b.batch, b.choose(40, 64, 80, 128), b.size(32, 1000)))
        return b.conv(x, channels, b.choose(3, 5), b.choose(1, 2), act)
    x = b.input("wave", (b.batch, 1, b.choose(4000, 8000, 16000, 32000)))
    if source == "wave":
        x = b.conv(x, channels, 10, 5, act, pads=valid)
        for kernel in b.choose((3, 3, 3), (3, 3, 3, 3, 2)):
            x = b.conv(x, channels, kernel, 2, act, pads=valid)
        return x
    window = b.choose(256, 400, 512)
    x = b.conv(b.pad(x, [(window // 2, window // 2)], "reflect"), window + 2, window, b.choose(80, 160, 256), pads=valid)
    power = b.node("Add", [b.scalar("Pow", part, 2.0) for part in b.split(x, 1, 2)])
    bands = b.drawn(window // 2 + 1, b.choose(40, 64, 80), centre=0.1)
    power = b.node("MatMul", [b.transpose(power, 0, 2, 1), bands])
    return b.conv(b.transpose(b.node("Log", [b.clip(power, 1e-6, 1e6)]), 0, 2, 1), channels, 3, act=act)


def audio(b: Net) -> dict[str, str]:
    """Draw what hears: convolutions of frames, gated, causal or of each channel, with scores of all or of each frame."""
    channels, act = b.choose(32, 64, 128, 256, 512), b.choose("Relu", "Gelu", "Silu", "Elu")
    kind, x = b.choose("causal", "gated", "apart", "plain"), _heard(b, channels, act)
    if b.chance(0.4):
        x = b.transpose(b.norm(b.transpose(x, 0, 2, 1)), 0, 2, 1)
    elif b.chance(0.3):
        x = b.node("InstanceNormalization", [x, b.drawn(channels, centre=1.0), b.drawn(channels)])
    for block in range(b.choose(2, 3, 4, 6)):
        kernel, dilation = b.choose(3, 3, 5), 1 << block
        if kind == "causal":
            padded = b.pad(x, [((kernel - 1) * dilation, 0)])
            y = b.conv(padded, channels, kernel, act=act, dilation=dilation, pads=(0, 0))
        elif kind == "gated":  # as of conformers: gated linear units before a convolution of each channel
            y, gate = b.split(b.conv(x, 2 * channels, 1), 1, 2)
            y = b.node("Mul", [y, b.node("Sigmoid", [gate])])
            y = b.conv(b.conv(y, channels, b.choose(9, 15, 31), act="Silu", groups=channels, normed=True), channels, 1)
        else:
            y = _block(b, x, channels, 1, kind, act)
        x = b.node("Add", [x, y])
    if b.chance(0.5):
        return _classified(b, x)
    return {"frames": b.node("LogSoftmax", [b.dense(b.transpose(x, 0, 2, 1), b.size(20, 500))], axis=-1)}


def enhancer(b: Net) -> dict[str, str]:
    """Draw what cleans sound: a U of strided and transposed convolutions with gates (Defossez et al., 2020)."""
    channels, rates, maps = b.size(16, 64, 8), b.choose((4, 4, 2), (4, 4, 4), (2, 2, 2, 2)), list[str]()
    x = b.input("noisy", (b.batch, 1, b.size(1024, 32768, 1024)))
    for level, rate in enumerate(rates):
        x = b.conv(x, channels << level, 8, rate, "Relu", pads=(4 - rate // 2,) * 2)
        y, gate = b.split(b.conv(x, 2 * b.shape(x)[1], 1), 1, 2)
        x = b.node("Mul", [y, b.node("Sigmoid", [gate])])
        maps.append(x)
    for level, rate in reversed(list(enumerate(rates))):
        x = b.node("Add", [x, maps[level]]) if level + 1 < len(rates) else x
        x = b.upwards(x, channels << (level - 1) if level else 1, 8, rate, "Relu" if level else "")
    return {"clean": x}


def vocoder(b: Net) -> dict[str, str]:
    """Draw a vocoder: transposed convolutions with dilated residuals beside each other (Kong et al., 2020)."""
    channels, kernels, dilations = b.choose(64, 128, 256), b.choose((3,), (3, 7), (3, 7, 11)), b.choose((1, 3), (1, 3, 5))
    x = b.conv(b.input("mel", (b.batch, 80, b.size(8, 200))), channels, 7)
    for rate in b.choose((8, 8, 2, 2), (8, 8, 4), (5, 4, 4), (4, 4)):
        channels, parts = max(8, channels // 2), list[str]()
        x = b.upwards(b.act(x, "LeakyRelu"), channels, 2 * rate, rate)
        for kernel in kernels:
            y = x
            for dilation in dilations:
                z = b.conv(b.act(y, "LeakyRelu"), channels, kernel, dilation=dilation)
                y = b.node("Add", [b.conv(b.act(z, "LeakyRelu"), channels, kernel), y])
            parts.append(y)
        *_, x = accumulate(parts, lambda one, other: b.node("Add", [one, other]))
        x = b.scalar("Div", x, float(len(parts))) if len(parts) > 1 else x
    x = b.act(x, "LeakyRelu")
    x = b.conv(b.pad(x, [(3, 3)], "reflect"), 1, 7, pads=(0, 0)) if b.chance(0.4) else b.conv(x, 1, 7)
    return {"wave": b.node("Tanh", [x])}
