"""Builds MobileNetV2 (Sandler et al., 2018): inverted residuals with linear bottlenecks."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import IMAGE, classifier, make_divisible

#: Table 2 of its paper: expansion, output channels, repeats, stride of the first.
STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def mobilenetv2(choices: Choices, name: str, *, width: float = 1.0) -> Graph:
    """Build MobileNetV2 with a width multiplier; the last convolution does not shrink below 1280 channels.

    Free: the stem, each stage's output (tied over its residual sums), each block's expanded channels, the last convolution.
    """
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(make_divisible(32 * width)), choices.kernel(3), 2, act="relu6")
    base_in = make_divisible(32 * width)
    for expansion, channels, repeats, first_stride in STAGES:
        base_out = make_divisible(channels * width)
        out = choices.channels(base_out)
        for block in range(repeats):
            expanded = 0 if expansion == 1 else choices.channels(base_in * expansion)
            y = inverted_residual(b, x, expanded, choices.kernel(3), out, first_stride if block == 0 else 1)
            x = b.add(x, y) if block > 0 else y
            base_in = base_out
    x = b.conv_bn(x, choices.channels(make_divisible(1280 * max(1.0, width))), 1, act="relu6")
    return b.build(classifier(b, x))


def inverted_residual(b: GraphBuilder, x: str, expanded: int, kernel: int, out: int, stride: int, *, act: str = "relu6") -> str:
    """Expand (unless `expanded` is 0), filter depthwise, project without activation; the caller adds the shortcut."""
    y = b.conv_bn(x, expanded, 1, act=act) if expanded else x
    y = b.activation(b.bn(b.dwconv(y, kernel, stride)), act)
    return b.conv_bn(y, out, 1, act="")
