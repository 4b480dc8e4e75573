"""Builds AlexNet in torchvision's one-tower form (Krizhevsky, 2014): no local response normalisation, biases in every layer."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import CLASSES, IMAGE, kept_padding


def alexnet(choices: Choices, name: str) -> Graph:
    """Build AlexNet; every convolution and both hidden fully connected layers are free."""
    b = GraphBuilder(name, IMAGE)
    kernel = choices.kernel(11)
    x = b.relu(b.conv(b.input, choices.channels(64), kernel, 4, pad=kept_padding(kernel, 11, 2), bias=True))
    x = b.maxpool(x, 3, 2)
    x = _conv(b, choices, x, 192, 5)
    x = b.maxpool(x, 3, 2)
    for channels in (384, 256, 256):
        x = _conv(b, choices, x, channels, 3)
    x = b.flatten(b.maxpool(x, 3, 2))
    for features in (4096, 4096):
        x = b.relu(b.fc(x, choices.channels(features)))
    return b.build(b.fc(x, CLASSES))


def _conv(b: GraphBuilder, choices: Choices, x: str, channels: int, kernel: int) -> str:
    return b.relu(b.conv(x, choices.channels(channels), choices.kernel(kernel), bias=True))
