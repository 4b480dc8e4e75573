"""Builds EfficientNet-B0 (Tan and Le, 2019): inverted residuals with squeeze-and-excitation and swish."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.layers import IMAGE, classifier

# Table 1 of its paper: expansion, kernel, output channels, repeats, stride of the first.
_STAGES = (
    (1, 3, 16, 1, 1),
    (6, 3, 24, 2, 2),
    (6, 5, 40, 2, 2),
    (6, 3, 80, 3, 2),
    (6, 5, 112, 3, 1),
    (6, 5, 192, 4, 2),
    (6, 3, 320, 1, 1),
)
_SQUEEZE = 4


def efficientnet_b0(name: str = "efficientnet_b0") -> Graph:
    """Build EfficientNet-B0; swish is a sigmoid and a product, as exporters write it."""
    b = GraphBuilder(name, IMAGE)
    x = _swish(b, b.conv_bn(b.input, 32, 3, 2, act=""))
    for expansion, kernel, out, repeats, first_stride in _STAGES:
        for block in range(repeats):
            y = _block(b, x, expansion, kernel, out, first_stride if block == 0 else 1)
            x = b.add(x, y) if block > 0 else y
    x = _swish(b, b.conv_bn(x, 1280, 1, act=""))
    return b.build(classifier(b, x))


def _block(b: GraphBuilder, x: str, expansion: int, kernel: int, out: int, stride: int) -> str:
    channels = b.channels(x)
    y = _swish(b, b.conv_bn(x, channels * expansion, 1, act="")) if expansion > 1 else x
    y = _swish(b, b.bn(b.dwconv(y, kernel, stride)))
    squeezed = _swish(b, b.conv(b.gap(y), channels // _SQUEEZE, 1, bias=True))  # a quarter of the block's input
    y = b.mul(y, b.activation(b.conv(squeezed, b.channels(y), 1, bias=True), "sigmoid"))
    return b.conv_bn(y, out, 1, act="")


def _swish(b: GraphBuilder, x: str) -> str:
    return b.mul(x, b.activation(x, "sigmoid"))
