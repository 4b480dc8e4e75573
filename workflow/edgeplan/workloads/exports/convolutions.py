"""Draws nets of convolutions: of images (classifiers, detectors, segmentation, coders) and of sound."""

from __future__ import annotations

import math

import numpy as np

from edgeplan.workloads.exports.net import Net

_IMAGES = (64, 96, 128, 160, 192, 224, 224, 256, 320)


def _channels(b: Net, least: int, most: int) -> int:
    return b.size(least, most, b.choose(4, 8, 8, 16))


def _scaled(b: Net, x: str, act: str, gate: str) -> str:
    """Scale channels by what a small net makes of their means (Hu et al., 2018)."""
    channels = b.shape(x)[1]
    mean = b.node("GlobalAveragePool", [x]) if b.exporter != "tensorflow" else b.reduce("ReduceMean", x, 2, 3)
    return b.node("Mul", [x, b.conv(b.conv(mean, max(8, channels // 16 * 4), 1, act=act), channels, 1, act=gate)])


def _classified(b: Net, x: str) -> dict[str, str]:
    x = b.dense(b.pooled(x), b.size(2, 1000))
    return {"scores": b.node("Softmax", [x], axis=1) if b.exporter == "tensorflow" or b.chance(0.3) else x}


def mobile_cnn(b: Net) -> dict[str, str]:
    """Draw a classifier of inverted residuals, with scaled channels, by hard or smooth activations."""
    side, act = b.choose(*_IMAGES), b.choose("HardSwish", "HardSwish", "Relu6", "Relu", "Silu", "PRelu")
    gate, kernels = b.choose("HardSigmoid", "Sigmoid"), b.choose((3,), (3, 5), (3, 5))
    width = _channels(b, 8, 32)
    x = b.conv(b.image("image", b.batch, 3, side, side), width, 3, 2, act, normed=True)
    scaled, ratio = b.chance(0.6), b.choose(2, 4, 6)
    for stage in range(b.choose(3, 4)):
        outputs = _channels(b, width, 2 * width)
        for block in range(b.choose(1, 2, 3)):
            inner = width * ratio
            y = b.conv(x, inner, 1, act=act, normed=True)
            y = b.conv(y, inner, b.choose(*kernels), 2 if block == 0 else 1, act, groups=inner, normed=True)
            y = _scaled(b, y, "Relu" if gate == "HardSigmoid" else act, gate) if scaled and stage else y
            y = b.conv(y, outputs, 1, normed=True)
            x, width = b.node("Add", [x, y]) if block else y, outputs
    return _classified(b, b.conv(x, width * 4, 1, act=act, normed=True))


def cnn(b: Net) -> dict[str, str]:
    """Draw a classifier of plain, residual, dense or shuffled blocks; small ones end in layers of all that is left."""
    side, width = b.choose(28, 32, 48, *_IMAGES), b.choose(8, 16, 24, 32, 32, 64)
    act, kind = b.choose("Relu", "Relu", "LeakyRelu", "Elu"), b.choose("plain", "plain", "residual", "dense", "shuffled")
    small = side <= 64
    x = b.image("image", b.batch, b.choose(1, 3, 3), side, side)
    x = b.conv(x, width, 3 if small else b.choose(3, 5, 7), 1 if small else 2, act, normed=True)
    for stage in range(b.choose(2, 3) if small else 4):
        if kind in ("plain", "dense"):
            x = b.node(b.choose("MaxPool", "MaxPool", "AveragePool"), [x], kernel_shape=[2, 2], strides=[2, 2])
        stride = 1 if kind in ("plain", "dense") or not stage else 2
        for block in range(b.choose(1, 2, 3)):
            if kind == "dense":
                x = b.joined([x, b.conv(b.conv(x, 2 * width, 1, act=act, normed=True), width, 3, act=act)], 1)
                continue
            outputs, step = width << stage, 1 if block else stride
            if kind == "plain":
                x = b.conv(x, outputs, 3, step, act, normed=b.chance(0.7))
                continue
            y = b.conv(
                x, outputs, 1 if kind == "shuffled" else 3, step, act, normed=True, groups=2 if kind == "shuffled" else 1
            )
            if kind == "shuffled":
                batch, _, height, breadth = b.shape(y)
                y = b.transpose(b.reshape(y, (batch, 2, outputs // 2, height, breadth)), 0, 2, 1, 3, 4)
                y = b.conv(b.reshape(y, (batch, outputs, height, breadth)), outputs, 3, groups=outputs, normed=True)
            y = b.conv(y, outputs, 3 if kind == "residual" else 1, normed=True)
            x = x if b.shape(x) == b.shape(y) else b.conv(x, outputs, 1, step, normed=True)
            x = b.act(b.node("Add", [y, x]), act)
    if not small or b.chance(0.4):
        return _classified(b, x)
    x = b.transpose(x, 0, 2, 3, 1) if b.exporter == "tensorflow" else x
    x = b.dense(b.node("Flatten", [x], axis=1), b.choose(64, 128, 256, 512), act)
    return {"scores": b.node("Softmax", [b.dense(x, b.size(2, 200))], axis=1)}


def _pyramid(b: Net, x: str, width: int, act: str, stages: int, *, apart: bool = False) -> list[str]:
    """Return the maps of a backbone of residual or depthwise blocks, each of half the extents of the one before."""
    maps, partial = list[str](), b.chance(0.5)
    for stage in range(stages):
        outputs = width << stage
        if apart:
            for step in (2, 1):
                x = b.conv(x, b.shape(x)[1], 3, step, act, groups=b.shape(x)[1], normed=True)
                x = b.conv(x, outputs, 1, act=act, normed=True)
        else:
            x = b.conv(x, outputs, 3, 2, act, normed=True)
            if partial:  # half of the channels goes by the blocks (Wang et al., 2020)
                y, beside = b.split(b.conv(x, outputs, 1, act=act, normed=True), 1, 2)
            else:
                y, beside = x, ""
            for _ in range(b.choose(1, 2)):
                inner = b.conv(b.conv(y, b.shape(y)[1] // 2, 1, act=act, normed=True), b.shape(y)[1], 3, act=act, normed=True)
                y = b.node("Add", [y, inner])
            x = b.conv(b.joined([y, beside], 1), outputs, 1, act=act, normed=True) if beside else y
        maps.append(x)
    return maps


def detector(b: Net) -> dict[str, str]:
    """Draw a detector: a backbone, maps that are resized and joined, heads, and boxes that are decoded from these."""
    batch, height, width = b.batch, b.size(128, 640, 32), b.size(128, 640, 32)
    act, channels, classes = (
        b.choose("Silu", "Silu", "LeakyRelu", "Relu", "Relu6", "Mish"),
        _channels(b, 8, 32),
        b.choose(1, 2, 20, 80),
    )
    apart = b.chance(0.35)
    maps = _pyramid(b, b.image("images", batch, 3, height, width), channels, act, 5, apart=apart)[-3:]
    out, tops = _channels(b, 2 * channels, 4 * channels), list[str]()
    for one in reversed(maps):  # from coarse to fine
        y = b.conv(one, out, 1, act=act, normed=True)
        if tops and apart:
            y = b.node("Add", [b.resized(tops[-1], 2), y])
        elif tops:
            y = b.conv(b.joined([b.resized(tops[-1], 2), y], 1), out, 1, act=act, normed=True)
        tops.append(b.conv(y, out, 3, act=act, normed=True, groups=out if apart else 1))
    if b.chance(0.3):  # pools of several sizes, joined
        pools = [b.node("MaxPool", [tops[0]], kernel_shape=[k, k], pads=[k // 2] * 4, strides=[1, 1]) for k in (5, 9, 13)]
        tops[0] = b.conv(b.joined([tops[0], *pools], 1), out, 1, act=act, normed=True)
    decode = b.choose(_by_anchors, _by_bins, _by_priors)
    found = [decode(b, top, classes, stride) for top, stride in zip(tops, (32, 16, 8), strict=True)]
    parts = [b.joined(list(part), 1) for part in zip(*found, strict=True)]
    if len(parts) == 1:
        return {"output": parts[0]}
    boxes, scores = parts
    if b.chance(0.3):  # the best ones, as of what needs no suppression
        top = b.nodes("TopK", [b.reduce("ReduceMax", scores, 2, keep=0), b.integers((100,))], 2, axis=1)[1]
        places = b.node("Expand", [b.node("Unsqueeze", [top, b.integers((2,))]), b.integers((batch, 100, 4))])
        boxes = b.node("GatherElements", [boxes, places], axis=1)
    return {"boxes": boxes, "scores": scores}


def _grid(b: Net, height: int, width: int, shape: tuple[int, ...]) -> str:
    places = np.stack(np.meshgrid(np.arange(width), np.arange(height)), -1)
    return b.constant(f"grid_{height}_{width}_{len(shape)}", places.reshape(shape))


def _by_anchors(b: Net, x: str, classes: int, stride: int) -> tuple[str, ...]:
    """Return (batch, boxes, 5 + classes) of three anchors a place, decoded by sigmoids, powers and a grid."""
    y = b.conv(x, 3 * (5 + classes), 1)
    batch, _, height, width = b.shape(y)
    y = b.transpose(b.reshape(y, (batch, 3, 5 + classes, height, width)), 0, 1, 3, 4, 2)
    y = b.node("Sigmoid", [y])
    if b.chance(0.5):
        sizes = b.integers((2, 2, 1 + classes))
        middle, extent, rest = b.nodes("Split", [y, sizes], 3, axis=4)
    else:
        middle, extent, rest = (b.cut(y, 4, *ends) for ends in ((0, 2), (2, 4), (4, 5 + classes)))
    middle = b.node("Add", [b.scalar("Mul", middle, 2.0), _grid(b, height, width, (1, 1, height, width, 2))])
    extent = b.node("Mul", [b.scalar("Pow", b.scalar("Mul", extent, 2.0), 2.0), b.drawn(1, 3, 1, 1, 2, centre=2.0)])
    y = b.joined([b.scalar("Mul", middle, float(stride)), extent, rest], 4)
    return (b.reshape(y, (batch, 3 * height * width, 5 + classes)),)


def _by_bins(b: Net, x: str, classes: int, stride: int) -> tuple[str, ...]:
    """Return boxes and scores; each side is the mean of 16 bins by their shares (Li et al., 2020)."""
    batch, _, height, width = b.shape(x)
    count, middles = height * width, _grid(b, height, width, (1, 1, height * width, 2))
    y = b.reshape(b.conv(x, 64, 1), (batch, 4, 16, count))
    y = b.node("Softmax", [b.transpose(y, 0, 2, 1, 3)], axis=1)
    y = b.reshape(b.conv(y, 1, 1), (batch, 4, count))
    y = b.transpose(y, 0, 2, 1)
    start, end = b.split(y, 2, 2)
    middles = b.reshape(middles, (1, count, 2))
    boxes = b.joined([b.node("Sub", [middles, start]), b.node("Add", [middles, end])], 2)
    scores = b.node("Sigmoid", [b.reshape(b.conv(x, classes, 1), (batch, classes, count))])
    return b.scalar("Mul", boxes, float(stride)), b.transpose(scores, 0, 2, 1)


def _by_priors(b: Net, x: str, classes: int, stride: int) -> tuple[str, ...]:
    """Return boxes and scores of two priors a place, channels last, as of single-shot detectors."""
    batch, _, height, width = b.shape(x)
    parts = [b.conv(x, 2 * size, 3 if b.chance(0.5) else 1) for size in (4, classes + 1)]
    boxes, scores = (
        b.reshape(b.transpose(part, 0, 2, 3, 1), (batch, 2 * height * width, b.shape(part)[1] // 2)) for part in parts
    )
    middle, extent = b.cut(boxes, 2, 0, 2), b.cut(boxes, 2, 2, 4)
    middle = b.node("Add", [b.scalar("Mul", middle, 0.1 * stride), b.drawn(1, 2 * height * width, 2)])
    boxes = b.joined([middle, b.node("Exp", [b.scalar("Mul", extent, 0.2)])], 2)
    return boxes, b.node("Softmax", [scores], axis=2)


def segmentation(b: Net) -> dict[str, str]:
    """Draw a net that labels places: halves of a U that are joined (Ronneberger et al., 2015), or a backbone with a decoder."""
    batch, side, channels = b.batch, b.choose(*_IMAGES), _channels(b, 8, 48)
    act, apart, learnt = b.choose("Relu", "Relu", "LeakyRelu", "Relu6"), b.chance(0.35), b.chance(0.6)
    depth, classes, maps = b.choose(3, 4), b.choose(1, 2, 21), list[str]()

    def twice(x: str, outputs: int) -> str:
        for _ in range(2):
            if apart:
                x = b.conv(x, b.shape(x)[1], 3, act=act, groups=b.shape(x)[1], normed=True)
            x = b.conv(x, outputs, 1 if apart else 3, act=act, normed=True)
        return x

    x = b.image("image", batch, b.choose(1, 3, 3), side, side)
    for level in range(depth):
        maps.append(twice(x, channels << level))
        x = b.node("MaxPool", [maps[-1]], kernel_shape=[2, 2], strides=[2, 2])
    x = twice(x, channels << depth)
    if b.chance(0.3):  # dilated convolutions beside each other
        x = b.joined([b.conv(x, channels, 3, act=act, dilation=dilation, normed=True) for dilation in (1, 2, 4)], 1)
    for level in reversed(range(depth)):
        width = channels << level
        if learnt:
            x = b.upwards(x, width, b.choose(2, 2, 4), 2)
        else:
            x = b.resized(x, 2, b.choose("linear", "linear", "nearest"))
        x = twice(b.joined([x, maps[level]], 1), width)
    x = b.conv(x, classes, 1)
    x = b.transpose(x, 0, 2, 3, 1) if b.exporter == "tensorflow" else x
    axis = 3 if b.exporter == "tensorflow" else 1
    if classes == 1:
        return {"mask": b.node("Sigmoid", [x])}
    return {"mask": b.node(b.choose("Softmax", "ArgMax"), [x], axis=axis)}


def autoencoder(b: Net) -> dict[str, str]:
    """Draw a net that codes and restores images, series or rows; some hand out how far these are apart."""
    kind, batch, act = b.choose("image", "image", "series", "rows"), b.batch, b.choose("Relu", "LeakyRelu", "Elu")
    depth = b.choose(2, 3, 4)
    if kind == "rows":
        x = given = b.input("x", (batch, b.size(16, 2048)))
        widths = [max(4, b.shape(x)[1] >> level) for level in range(1, depth + 1)]
        for width in (*widths, *widths[-2::-1]):
            x = b.dense(x, width, act)
        x = b.dense(x, b.shape(given)[1], b.choose("", "Sigmoid"))
    else:
        side, channels = b.size(32, 256, 16), _channels(b, 8, 64)
        x = given = (
            b.image("x", batch, b.choose(1, 3), side, side)
            if kind == "image"
            else b.input("x", (batch, b.choose(1, 8, 64), side * 8))
        )
        for level in range(depth):
            x = b.conv(x, channels << level, 3, 2, act, normed=True)
        if b.chance(0.4):
            flat = b.dense(b.node("Flatten", [x], axis=1), b.size(16, 256))
            x = b.reshape(b.dense(flat, math.prod(b.shape(x)[1:]), act), b.shape(x))
        for level in reversed(range(depth)):
            outputs = channels << max(level - 1, 0)
            x = b.upwards(x, outputs, b.choose(2, 4), 2, act) if b.chance(0.7) else b.conv(b.resized(x, 2), outputs, 3, act=act)
        x = b.conv(x, b.shape(given)[1], 3, act=b.choose("Sigmoid", "Tanh"))
    if b.chance(0.4) and b.shape(x) == b.shape(given):
        apart = b.scalar("Pow", b.node("Sub", [given, x]), 2.0)
        return {"restored": x, "error": b.reduce("ReduceMean", apart, *range(1, len(b.shape(x))), keep=0)}
    return {"restored": x}


def audio(b: Net) -> dict[str, str]:
    """Draw what hears: convolutions of a wave or a spectrum, gated, dilated or causal, with means or scores of each frame."""
    batch, source = b.batch, b.choose("wave", "spectrum", "features", "features")
    channels, act = b.choose(32, 64, 128, 256, 512), b.choose("Relu", "Gelu", "Silu", "Elu")
    kind = b.choose("causal", "gated", "apart", "plain")
    wave = b.input("wave", (batch, 1, b.choose(4000, 8000, 16000, 32000))) if source != "features" else ""
    if source == "spectrum":  # its parts by a convolution, then bands
        window, bands = b.choose(256, 400, 512), b.choose(40, 64, 80)
        padded = b.pad(wave, [(window // 2, window // 2)], "reflect")
        x = b.conv(padded, window + 2, window, b.choose(80, 160, 256), pads=(0, 0))
        real, imaginary = (b.scalar("Pow", part, 2.0) for part in b.split(x, 1, 2))
        power = b.transpose(b.node("Add", [real, imaginary]), 0, 2, 1)
        power = b.node("MatMul", [power, b.drawn(window // 2 + 1, bands, centre=0.1)])
        x = b.transpose(b.node("Log", [b.clip(power, 1e-6, 1e6)]), 0, 2, 1)
        x = b.conv(x, channels, 3, act=act)
    elif source == "wave":
        x = b.conv(wave, channels, 10, 5, act, pads=(0, 0))
        for kernel in b.choose((3, 3, 3), (3, 3, 3, 3, 2)):
            x = b.conv(x, channels, kernel, 2, act, pads=(0, 0))
    else:
        x = b.input("features", (batch, b.choose(40, 64, 80, 128), b.size(32, 1000)))
        x = b.conv(x, channels, b.choose(3, 5), b.choose(1, 2), act)
    if b.chance(0.4):
        ones = [b.drawn(channels, spread=0.25, centre=1.0), b.drawn(channels)]
        x = (
            b.node("InstanceNormalization", [x, *ones])
            if b.chance(0.4)
            else b.transpose(b.norm(b.transpose(x, 0, 2, 1)), 0, 2, 1)
        )
    for block in range(b.choose(2, 3, 4, 6)):
        kernel, dilation = b.choose(3, 3, 5), 1 << block if kind == "causal" else 1
        if kind == "causal":
            padded = b.pad(x, [((kernel - 1) * dilation, 0)])
            y = b.conv(padded, channels, kernel, act=act, dilation=dilation, pads=(0, 0))
        elif kind == "gated":  # as of conformers: gated linear units around a convolution of each channel
            y, gate = b.split(b.conv(x, 2 * channels, 1), 1, 2)
            y = b.node("Mul", [y, b.node("Sigmoid", [gate])])
            y = b.conv(y, channels, b.choose(9, 15, 31), act="Silu", groups=channels, normed=True)
            y = b.conv(y, channels, 1)
        elif kind == "apart":
            y = b.conv(b.conv(x, channels, b.choose(5, 9, 13), groups=channels), channels, 1, act=act, normed=True)
        else:
            y = b.conv(x, channels, kernel, act=act, normed=True)
        x = b.node("Add", [x, y])
    if b.chance(0.5):
        return _classified(b, x)
    x = b.dense(b.transpose(x, 0, 2, 1), b.size(20, 500))
    return {"frames": b.node("LogSoftmax", [x], axis=-1)}


def vocoder(b: Net) -> dict[str, str]:
    """Draw a vocoder or a net that cleans sound: transposed convolutions with dilated residuals (Kong et al., 2020), or a U."""
    batch = min(b.batch, 4)
    if b.chance(0.35):
        channels, maps = _channels(b, 16, 64), list[str]()
        x = b.input("noisy", (batch, 1, b.size(1024, 32768, 1024)))
        for level in range(b.choose(3, 4)):
            x = b.conv(x, channels << level, 8, 4 if level < 2 else 2, "Relu", pads=(2, 2) if level < 2 else (3, 3))
            y, gate = b.split(b.conv(x, 2 * b.shape(x)[1], 1), 1, 2)
            x = b.node("Mul", [y, b.node("Sigmoid", [gate])])
            maps.append(x)
        for level, one in reversed(list(enumerate(maps))):
            x = b.node("Add", [x, one]) if one != x else x
            x = b.upwards(x, channels << (level - 1) if level else 1, 8, 4 if level < 2 else 2, "Relu" if level else "")
        return {"clean": x}
    channels, frames = b.choose(64, 128, 256), b.size(8, 200)
    x = b.conv(b.input("mel", (batch, 80, frames)), channels, 7)
    for rate in b.choose((8, 8, 2, 2), (8, 8, 4), (5, 4, 4), (4, 4)):
        channels = max(8, channels // 2)
        x = b.upwards(b.act(x, "LeakyRelu"), channels, 2 * rate, rate)
        parts = list[str]()
        for kernel in b.choose((3,), (3, 7), (3, 7, 11)):
            y = x
            for dilation in b.choose((1, 3), (1, 3, 5)):
                z = b.conv(b.act(y, "LeakyRelu"), channels, kernel, dilation=dilation)
                y = b.node("Add", [b.conv(b.act(z, "LeakyRelu"), channels, kernel), y])
            parts.append(y)
        x = parts[0]
        for part in parts[1:]:
            x = b.node("Add", [x, part])
        x = b.scalar("Div", x, float(len(parts))) if len(parts) > 1 else x
    x = b.act(x, "LeakyRelu")
    x = b.conv(b.pad(x, [(3, 3)], "reflect"), 1, 7, pads=(0, 0)) if b.chance(0.4) else b.conv(x, 1, 7)
    return {"wave": b.node("Tanh", [x])}
