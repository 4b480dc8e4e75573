"""Builds Inception-v3 with its factorised convolutions, and Xception."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder, Size
from edgeplan.graph.ir import Graph
from edgeplan.zoo.layers import classifier

_IMAGE = (1, 3, 299, 299)


def inception_v3(name: str) -> Graph:
    """Build Inception-v3 (Szegedy et al., 2016) in torchvision's form, without the auxiliary classifier."""
    b = GraphBuilder(name, _IMAGE)
    x = _conv(b, b.input, 32, 3, 2, valid=True)
    x = _conv(b, _conv(b, x, 32, 3, valid=True), 64, 3)
    x = _conv(b, b.maxpool(x, 3, 2), 80, 1)
    x = b.maxpool(_conv(b, x, 192, 3, valid=True), 3, 2)
    for pooled in (32, 64, 64):
        five = _conv(b, _conv(b, x, 48, 1), 64, 5)
        three = _conv(b, _conv(b, _conv(b, x, 64, 1), 96, 3), 96, 3)
        x = b.concat([_conv(b, x, 64, 1), five, three, _conv(b, b.avgpool(x, 3, 1, 1), pooled, 1)])
    three = _conv(b, _conv(b, _conv(b, x, 64, 1), 96, 3), 96, 3, 2, valid=True)
    x = b.concat([_conv(b, x, 384, 3, 2, valid=True), three, b.maxpool(x, 3, 2)])
    for inner in (128, 160, 160, 192):
        once = _conv(b, _seven(b, _conv(b, x, inner, 1), inner, (1, 7)), 192, (7, 1))
        twice = _seven(b, _conv(b, x, inner, 1), inner, (7, 1), (1, 7), (7, 1))
        pooled_ = _conv(b, b.avgpool(x, 3, 1, 1), 192, 1)
        x = b.concat([_conv(b, x, 192, 1), once, _conv(b, twice, 192, (1, 7)), pooled_])
    three = _conv(b, _conv(b, x, 192, 1), 320, 3, 2, valid=True)
    seven = _conv(b, _seven(b, _conv(b, x, 192, 1), 192, (1, 7), (7, 1)), 192, 3, 2, valid=True)
    x = b.concat([three, seven, b.maxpool(x, 3, 2)])
    for _ in range(2):
        wide = _conv(b, x, 384, 1)
        deep = _conv(b, _conv(b, x, 448, 1), 384, 3)
        parts = [_conv(b, y, 384, kernel) for y in (wide, deep) for kernel in ((1, 3), (3, 1))]
        x = b.concat([_conv(b, x, 320, 1), *parts, _conv(b, b.avgpool(x, 3, 1, 1), 192, 1)])
    return b.build(classifier(b, x))


def _seven(b: GraphBuilder, x: str, channels: int, *kernels: Size) -> str:
    for kernel in kernels:
        x = _conv(b, x, channels, kernel)
    return x


def _conv(b: GraphBuilder, x: str, channels: int, kernel: Size, stride: int = 1, *, valid: bool = False) -> str:
    return b.relu(b.bn(b.conv(x, channels, kernel, stride, pad=0 if valid else None)))


def xception(name: str) -> Graph:
    """Build Xception (Chollet, 2017), figure 5."""
    b = GraphBuilder(name, _IMAGE)
    x = _conv(b, _conv(b, b.input, 32, 3, 2, valid=True), 64, 3, valid=True)
    for channels in (128, 256, 728):
        y = _separable(b, x if channels == 128 else b.relu(x), channels)  # the first follows a ReLU
        x = _halved(b, x, _separable(b, b.relu(y), channels))
    for _ in range(8):
        y = x
        for _ in range(3):
            y = _separable(b, b.relu(y), 728)
        x = b.add(y, x)
    x = _halved(b, x, _separable(b, b.relu(_separable(b, b.relu(x), 728)), 1024))
    for channels in (1536, 2048):
        x = b.relu(_separable(b, x, channels))
    return b.build(classifier(b, x))


def _separable(b: GraphBuilder, x: str, channels: int) -> str:
    return b.bn(b.conv(b.dwconv(x, 3), channels, 1))


def _halved(b: GraphBuilder, x: str, y: str) -> str:
    return b.add(b.maxpool(y, 3, 2, 1), b.bn(b.conv(x, b.channels(y), 1, 2)))
