"""Builds carriers: small networks in which sampled kernels are measured where they will run, between other kernels.

A carrier is a random walk over segments in the style of the families (plain, residual, squeeze-and-excitation, fire, dense,
shuffle, cell, classifier). Its convolutions come from a `ConvSource`; everything else follows from the shapes it meets.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from edgeplan.chapters.prediction.sampling.sources import ConvSource
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.simplify import simplify

_ACTIVATIONS = ("relu", "relu", "relu", "relu6", "relu6", "hswish", "")
_MAX_ELEMENTS = 16_000_000
_MAX_MACS = 6_000_000_000


class _Walk:
    """Holds a carrier being built: the builder, the random stream, the source, and the current tensor."""

    def __init__(self, name: str, rng: Random, source: ConvSource) -> None:
        self.rng, self.source = rng, source
        channels, size = source.start(rng)
        self.b = GraphBuilder(name, (1, channels, size, size))
        self.x = self.b.input
        self.macs = 0

    @property
    def channels(self) -> int:
        return self.b.channels(self.x)

    @property
    def size(self) -> int:
        return self.b.shape(self.x)[2]

    def act(self) -> str:
        return self.rng.choice(_ACTIVATIONS)

    def conv(self, x: str, *, depthwise: bool = False, same_size: bool = False, keep: int = 0) -> str:
        """Add the source's next convolution on `x`, without what follows it; `keep` fixes its output channels."""
        b = self.b
        shape = self.source.next(self.rng, b.channels(x), b.shape(x)[2], depthwise=depthwise)
        if shape.in_channels != b.channels(x):  # a pointwise convolution leads to the channels asked for
            x = b.activation(b.bn(b.conv(x, shape.in_channels, 1)), self.act())
        stride = 1 if same_size else shape.stride
        out = shape.in_channels if depthwise else (keep or shape.out_channels)
        self.macs += shape.macs * out // max(1, shape.out_channels)
        return b.conv(x, out, shape.kernel, stride, groups=shape.in_channels if depthwise else 1)

    def conv_bn(
        self, x: str, *, depthwise: bool = False, same_size: bool = False, keep: int = 0, act: str | None = None
    ) -> str:
        y = self.b.bn(self.conv(x, depthwise=depthwise, same_size=same_size, keep=keep))
        return self.b.activation(y, self.act() if act is None else act)


def _plain(w: _Walk) -> None:
    w.x = w.conv_bn(w.x)


def _biased(w: _Walk) -> None:
    """Add a convolution with a bias and no batch normalisation, as AlexNet, VGG and SqueezeNet have them."""
    shape = w.source.next(w.rng, w.channels, w.size, depthwise=False)
    x = w.x
    if shape.in_channels != w.channels:
        x = w.b.relu(w.b.conv(x, shape.in_channels, 1, bias=True))
    w.macs += shape.macs
    w.x = w.b.relu(w.b.conv(x, shape.out_channels, shape.kernel, shape.stride, bias=True))


def _depthwise(w: _Walk) -> None:
    w.x = w.conv_bn(w.x, depthwise=True)


def _residual(w: _Walk) -> None:
    y = w.x if w.rng.random() < 0.5 else w.conv_bn(w.x, same_size=True)  # either as often
    y = w.conv_bn(y, same_size=True, keep=w.channels, act="")
    w.x = w.b.activation(w.b.add(*((w.x, y) if w.rng.random() < 0.5 else (y, w.x))), w.rng.choice(("relu", "")))


def _bottleneck(w: _Walk) -> None:
    """Add an inverted residual: expand, depthwise (maybe with squeeze-and-excitation), project, add."""
    act = w.rng.choice(("relu", "relu6", "hswish"))
    hidden = max(8, round(w.channels * w.rng.choice((1, 3, 4, 6)) * w.rng.uniform(0.6, 1.4)))
    if hidden * w.size**2 > _MAX_ELEMENTS // 8:
        return
    y = w.b.conv_bn(w.x, hidden, 1, act=act)
    y = w.conv_bn(y, depthwise=True, same_size=True, act="" if act == "relu" and w.rng.random() < 0.3 else act)
    if w.rng.random() < 0.35:
        y = _squeeze_excite(w, y)
    keep = w.channels if w.rng.random() < 0.7 else max(8, round(w.channels * w.rng.uniform(0.5, 2)))
    z = w.b.bn(w.b.conv(y, keep, 1))
    w.macs += w.size**2 * hidden * (keep + w.channels)
    w.x = w.b.add(w.x, z) if keep == w.channels else z


def _squeeze_excite(w: _Walk, x: str) -> str:
    b, c = w.b, w.b.channels(x)
    y = b.relu(b.conv(b.gap(x), max(4, c // 4), 1, bias=True))
    return b.mul(x, b.activation(b.conv(y, c, 1, bias=True), w.rng.choice(("hsigmoid", "hsigmoid", "sigmoid"))))


def _branches(w: _Walk) -> None:
    """Add a segment of fire and inception modules: two to four branches side by side, joined."""
    b, rng = w.b, w.rng
    biased = rng.random() < 0.4
    ends = []
    for index in range(rng.choice((2, 2, 4))):
        y = w.x
        if index == 3 and w.size > 2:
            y = b.maxpool(y, 3, 1, 1)
        out = max(8, round(w.channels * rng.uniform(0.1, 0.6)))
        if index in (1, 2):
            y = w.conv_bn(y, same_size=True, keep=out, act="relu")
        elif biased:
            y = b.relu(b.conv(y, out, 1, bias=True))
        else:
            y = b.conv_bn(y, out, 1)
        ends.append(y)
    w.x = b.concat(ends)


def _dense(w: _Walk) -> None:
    """Add a segment of DenseNet: normalised before each convolution, its output joined to its input; and its transition."""
    b, rng = w.b, w.rng
    for _ in range(rng.randint(1, 3)):
        y = b.conv(b.relu(b.bn(w.x)), max(8, round(128 * rng.uniform(0.2, 1.8))), 1)
        y = w.conv(b.relu(b.bn(y)), same_size=True, keep=max(4, round(32 * rng.uniform(0.2, 1.8))))
        w.x = b.concat([w.x, y])
    if rng.random() < 0.4 and w.size > 2:
        w.x = b.avgpool(b.conv(b.relu(b.bn(w.x)), max(8, w.channels // 2), 1), 2, 2)


def _shuffle(w: _Walk) -> None:
    """Add a segment of ShuffleNetV2: one half through a bottleneck, joined, shuffled."""
    b = w.b
    half = w.channels // 2
    if half < 4:  # too few channels to split
        return _plain(w)
    if w.channels % 2:
        w.x = b.conv_bn(w.x, 2 * half, 1)
    left, right = b.split(w.x, (half, half))
    right = b.conv_bn(right, half, 1)
    right = w.conv_bn(right, depthwise=True, same_size=True, act="")
    w.x = b.channel_shuffle(b.concat([left, b.conv_bn(right, half, 1)]), 2)
    return None


def _cell(w: _Walk) -> None:
    """Add a segment of NASBench201: activation before convolution, sums over edges, average pooling at stride 1."""
    b, rng = w.b, w.rng
    nodes = [w.x]
    for _ in range(3):
        terms = []
        for node in nodes:
            which = rng.choice(("skip", "pool", "conv", "none"))
            if which == "skip":
                terms.append(node)
            elif which == "pool" and w.size > 2:
                terms.append(b.avgpool(node, 3, 1, 1))
            elif which == "conv":
                kernel = rng.choice((1, 3))
                terms.append(b.bn(b.conv(b.relu(node), w.channels, kernel)))
                w.macs += w.size**2 * w.channels**2 * kernel**2
        if not terms:
            terms.append(b.bn(b.conv(b.relu(nodes[-1]), w.channels, 1)))
        total = terms[0]
        for term in terms[1:]:
            total = b.add(total, term)
        nodes.append(total)
    w.x = nodes[-1]
    if rng.random() < 0.3:
        w.x = b.relu(b.bn(w.x))


def _pool(w: _Walk) -> None:
    if w.size < 4:  # nothing left to pool
        return
    kernel, stride = w.rng.choice(((2, 2), (3, 2), (3, 2), (3, 1)))
    pool = w.b.maxpool if w.rng.random() < 0.75 else w.b.avgpool
    w.x = pool(w.x, kernel, stride, w.rng.choice((0, 1)) if kernel == 3 else 0, ceil=w.rng.random() < 0.2)


def _lrn(w: _Walk) -> None:
    w.x = w.b.lrn(w.b.relu(w.b.conv(w.x, w.channels, 1, bias=True)))


def _classifier(w: _Walk) -> None:
    """Add the end of a network: global pooling or plain flattening, and one to three fully connected layers."""
    b, rng = w.b, w.rng
    wide = w.channels * w.size**2 <= 30_000 and rng.random() < 0.5
    x = w.x if wide else b.gap(w.x)
    if not wide and rng.random() < 0.25:  # MobileNetV3
        x = b.activation(b.conv(x, max(16, round(1280 * rng.uniform(0.2, 1.8))), 1, bias=True), "hswish")
    x = b.flatten(x)
    for _ in range(rng.randint(0, 2) if wide else 0):
        x = b.relu(b.fc(x, max(16, round(rng.choice((512, 1024, 4096)) * rng.uniform(0.2, 1.8)))))
    w.x = b.fc(x, rng.choice((1000, 1000, 10, max(10, round(1000 * rng.uniform(0.2, 1.8))))))
    if rng.random() < 0.25:
        w.x = b.softmax(w.x)


def _lonely(w: _Walk) -> None:
    """Add an operator behind one that does not absorb it: alone, it costs a kernel of its own."""
    b, x = w.b, w.x
    x = b.maxpool(x, 3, 1, 1) if w.size > 2 else b.concat([x, x])
    which = w.rng.choice(("relu", "relu6", "relu6", "hswish", "hsigmoid", "hsigmoid", "sigmoid", "bn", "mul"))
    if which == "bn":
        w.x = b.bn(x)
    elif which == "mul":
        w.x = b.mul(x, b.maxpool(x, 3, 1, 1) if w.size > 2 else x)
    else:
        w.x = b.activation(x, which)


_SEGMENTS: tuple[tuple[Callable[[_Walk], None], float], ...] = (
    (_plain, 4.0),
    (_biased, 1.2),
    (_depthwise, 2.0),
    (_residual, 1.5),
    (_bottleneck, 2.5),
    (_branches, 1.2),
    (_dense, 1.0),
    (_shuffle, 1.0),
    (_cell, 0.8),
    (_pool, 1.0),
    (_lonely, 0.6),
    (_lrn, 0.2),
)
_CLASSIFIER_SHARE = 0.45


def build_carrier(name: str, seed: str, source: ConvSource, kernels: int) -> Graph:
    """Build a carrier of about so many kernels.

    Args:
        name: name of the graph.
        seed: seed of this carrier alone.
        source: source of its convolutions.
        kernels: number of working operators at about which it stops growing.
    """
    rng = Random(seed)  # noqa: S311  not cryptography; seeded by text, the same on every platform
    w = _Walk(name, rng, source)
    segments, weights = zip(*_SEGMENTS, strict=True)
    _plain(w)
    while _work(w) < kernels and w.macs < _MAX_MACS and w.channels * w.size**2 < _MAX_ELEMENTS:
        rng.choices(segments, weights)[0](w)
    if rng.random() < _CLASSIFIER_SHARE:
        _classifier(w)
    return simplify(w.b.build(w.x))


def _work(w: _Walk) -> int:
    return w.b.count("Conv", "MaxPool", "AveragePool", "Concat", "Add", "Gemm", "LRN")
