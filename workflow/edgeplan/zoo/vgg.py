"""Builds VGG (Simonyan and Zisserman, 2015): no batch normalisation, biases in every layer."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import CLASSES, IMAGE

_CONVS_PER_STAGE = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_WIDTHS = (64, 128, 256, 512, 512)


def vgg(choices: Choices, name: str, *, depth: int = 11) -> Graph:
    """Build VGG of 11, 13, 16 or 19 layers; every convolution and both hidden fully connected layers are free."""
    b = GraphBuilder(name, IMAGE)
    x = b.input
    for width, convs in zip(_WIDTHS, _CONVS_PER_STAGE[depth], strict=True):
        for _ in range(convs):
            x = b.relu(b.conv(x, choices.channels(width), choices.kernel(3), bias=True))
        x = b.maxpool(x, 2, 2)
    x = b.flatten(x)
    for features in (4096, 4096):
        x = b.relu(b.fc(x, choices.channels(features)))
    return b.build(b.fc(x, CLASSES))
