"""Builds DenseNet-BC (Huang et al., 2017)."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import IMAGE, classifier

_LAYERS_PER_BLOCK = {121: (6, 12, 24, 16), 169: (6, 12, 32, 32), 201: (6, 12, 48, 32)}
_GROWTH = 32
_BOTTLENECK = 4 * _GROWTH


def densenet(choices: Choices, name: str, *, depth: int = 121) -> Graph:
    """Build DenseNet of 121, 169 or 201 layers.

    A dense layer joins its output to everything before it by a concatenation of two tensors, as Keras exports it. Free: the
    stem, each layer's bottleneck and growth, each transition.
    """
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(2 * _GROWTH), choices.kernel(7), 2)
    x = b.maxpool(x, 3, 2, 1)
    base_channels = 2 * _GROWTH
    blocks = _LAYERS_PER_BLOCK[depth]
    for block, layers in enumerate(blocks):
        for _ in range(layers):
            x = b.concat([x, _dense_layer(b, choices, x)])
        base_channels += layers * _GROWTH
        if block < len(blocks) - 1:
            base_channels //= 2
            x = b.avgpool(b.conv(b.relu(b.bn(x)), choices.channels(base_channels), 1), 2, 2)
    return b.build(classifier(b, b.relu(b.bn(x))))


def _dense_layer(b: GraphBuilder, choices: Choices, x: str) -> str:
    y = b.conv_bn(b.relu(b.bn(x)), choices.channels(_BOTTLENECK), 1)
    return b.conv(y, choices.channels(_GROWTH), choices.kernel(3))
