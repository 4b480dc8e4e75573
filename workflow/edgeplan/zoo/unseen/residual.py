"""Builds residual networks with groups, and with squeeze and excitation."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.layers import IMAGE, classifier

_STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))


def resnext50(name: str) -> Graph:
    """Build ResNeXt-50 32x4d (Xie et al., 2017), table 1: bottlenecks twice as wide, in 32 groups."""
    b = GraphBuilder(name, IMAGE)
    x = _stem(b)
    for stage, (width, blocks) in enumerate(_STAGES):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            y = b.conv_bn(b.conv_bn(x, 2 * width, 1), 2 * width, 3, stride, groups=32)
            x = _joined(b, x, b.conv_bn(y, 4 * width, 1, act=""), stride)
    return b.build(classifier(b, x))


def se_resnet50(name: str) -> Graph:
    """Build SE-ResNet-50 (Hu et al., 2018), table 1, with ResNet-50's strides in the first 1 x 1 convolution of a stage."""
    b = GraphBuilder(name, IMAGE)
    x = _stem(b)
    for stage, (width, blocks) in enumerate(_STAGES):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            y = b.conv_bn(b.conv_bn(b.conv_bn(x, width, 1, stride), width, 3), 4 * width, 1, act="")
            gate = b.relu(b.conv(b.gap(y), width // 4, 1, bias=True))
            gate = b.activation(b.conv(gate, 4 * width, 1, bias=True), "sigmoid")
            x = _joined(b, x, b.mul(y, gate), stride)
    return b.build(classifier(b, x))


def _stem(b: GraphBuilder) -> str:
    return b.maxpool(b.conv_bn(b.input, 64, 7, 2), 3, 2, 1)


def _joined(b: GraphBuilder, x: str, y: str, stride: int) -> str:
    if b.channels(x) != b.channels(y):
        x = b.conv_bn(x, b.channels(y), 1, stride, act="")
    return b.relu(b.add(y, x))
