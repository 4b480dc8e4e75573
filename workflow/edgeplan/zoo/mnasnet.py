"""Builds MnasNet-B1 (Tan et al., 2019), in torchvision's form."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import IMAGE, classifier, make_divisible
from edgeplan.zoo.mobilenetv2 import inverted_residual

# Kernel, stride of the first, expansion, repeats, output channels.
_STAGES = ((3, 2, 3, 3, 24), (5, 2, 3, 3, 40), (5, 2, 6, 3, 80), (3, 1, 6, 2, 96), (5, 2, 6, 4, 192), (3, 1, 6, 1, 320))
_LAST = 1280


def mnasnet(choices: Choices, name: str, *, width: float = 1.0) -> Graph:
    """Build MnasNet with a width multiplier (the last convolution always has 1280 channels); free as in MobileNetV2."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(make_divisible(32 * width)), choices.kernel(3), 2)
    base_in = make_divisible(16 * width)
    x = inverted_residual(b, x, 0, choices.kernel(3), choices.channels(base_in), 1, act="relu")
    for kernel, first_stride, expansion, repeats, channels in _STAGES:
        base_out = make_divisible(channels * width)
        out = choices.channels(base_out)
        for block in range(repeats):
            expanded = choices.channels(base_in * expansion)
            y = inverted_residual(b, x, expanded, choices.kernel(kernel), out, 1 if block else first_stride, act="relu")
            x = b.add(x, y) if block > 0 else y
            base_in = base_out
    x = b.conv_bn(x, choices.channels(_LAST), 1)
    return b.build(classifier(b, x))
