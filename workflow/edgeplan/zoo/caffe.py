"""Builds AlexNet and GoogLeNet as Caffe's and ncnn's model zoos have them: local response normalisation, biases everywhere."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.googlenet import INCEPTION_STAGES
from edgeplan.zoo.layers import CLASSES, IMAGE


def caffe_alexnet(name: str = "caffe_alexnet") -> Graph:
    """Build AlexNet with its two groups (Krizhevsky et al., 2012) for 227 x 227 as in Caffe; its first layer does not pad."""
    b = GraphBuilder(name, (1, 3, 227, 227))
    x = _conv(b, b.input, 96, 11, 4, pad=0)
    x = b.maxpool(b.lrn(x), 3, 2)
    x = _conv(b, x, 256, 5, groups=2)
    x = b.maxpool(b.lrn(x), 3, 2)
    for channels, groups in ((384, 1), (384, 2), (256, 2)):
        x = _conv(b, x, channels, 3, groups=groups)
    x = b.flatten(b.maxpool(x, 3, 2))
    for _ in range(2):
        x = b.relu(b.fc(x, 4096))
    return b.build(b.softmax(b.fc(x, CLASSES)))


def caffe_googlenet(name: str = "caffe_googlenet") -> Graph:
    """Build GoogLeNet (Szegedy et al., 2015) with its 5 x 5 convolutions, without auxiliary classifiers."""
    b = GraphBuilder(name, IMAGE)
    x = _conv(b, b.input, 64, 7, 2)
    x = b.lrn(b.maxpool(x, 3, 2, ceil=True))
    x = _conv(b, _conv(b, x, 64, 1), 192, 3)
    x = b.maxpool(b.lrn(x), 3, 2, ceil=True)
    for stage, modules in enumerate(INCEPTION_STAGES):
        if stage > 0:
            x = b.maxpool(x, 3, 2, ceil=True)
        for c1, c3_in, c3, c5_in, c5, pool in modules:
            pointwise = _conv(b, x, c1, 1)
            three = _conv(b, _conv(b, x, c3_in, 1), c3, 3)
            five = _conv(b, _conv(b, x, c5_in, 1), c5, 5)
            pooled = _conv(b, b.maxpool(x, 3, 1, 1), pool, 1)
            x = b.concat([pointwise, three, five, pooled])
    return b.build(b.softmax(b.fc(b.flatten(b.gap(x)), CLASSES)))


def _conv(
    b: GraphBuilder, x: str, channels: int, kernel: int, stride: int = 1, *, groups: int = 1, pad: int | None = None
) -> str:
    return b.relu(b.conv(x, channels, kernel, stride, groups=groups, pad=pad, bias=True))
