"""Inception-v3 has factorised convolutions: 1 x 7 behind 7 x 1 in place of 7 x 7."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder, Size
from edgeplan.graph.ir import Graph
from edgeplan.zoo.layers import classifier

_IMAGE = (1, 3, 299, 299)


def inception_v3(name: str) -> Graph:
    """Inception-v3 (Szegedy et al., 2016) in torchvision's form, without the auxiliary classifier."""
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
