"""Builds MobileNetV1 (Howard et al., 2017): depthwise separable convolutions."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import IMAGE, classifier

#: Table 1 of its paper: output channels and stride of each separable convolution.
LAYERS = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))


def mobilenetv1(choices: Choices, name: str, *, width: float = 1.0) -> Graph:
    """Build MobileNetV1 with a width multiplier; the stem and every pointwise convolution's channels are free."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(int(32 * width)), choices.kernel(3), 2)
    for channels, stride in LAYERS:
        x = b.relu(b.bn(b.dwconv(x, choices.kernel(3), stride)))
        x = b.conv_bn(x, choices.channels(int(channels * width)), 1)
    return b.build(classifier(b, x))
