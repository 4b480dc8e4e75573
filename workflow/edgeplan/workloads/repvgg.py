"""RepVGG is a plain network once its branches are merged, as it runs."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.layers import IMAGE, classifier


def repvgg_a0(name: str) -> Graph:
    """RepVGG-A0 (Ding et al., 2021), table 3, with its branches merged: 3 x 3 convolutions, biases and ReLUs alone."""
    b = GraphBuilder(name, IMAGE)
    x = b.relu(b.conv(b.input, 48, 3, 2, bias=True))
    for channels, blocks in ((48, 2), (96, 4), (192, 14), (1280, 1)):
        for block in range(blocks):
            x = b.relu(b.conv(x, channels, 3, 2 if block == 0 else 1, bias=True))
    return b.build(classifier(b, x))
