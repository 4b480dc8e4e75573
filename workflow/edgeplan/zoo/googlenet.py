"""Builds GoogLeNet (Szegedy et al., 2015) in torchvision's form: batch normalisation, 3 x 3 in place of 5 x 5 convolutions."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import IMAGE, classifier

#: Inception modules by stage: 1x1; 3x3 reduction and output; "5x5" reduction and output; pooling projection.
INCEPTION_STAGES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


def googlenet(choices: Choices, name: str) -> Graph:
    """Build GoogLeNet without its auxiliary classifiers; every convolution is free."""
    b = GraphBuilder(name, IMAGE)
    x = _conv(b, choices, b.input, 64, 7, 2)
    x = b.maxpool(x, 3, 2, ceil=True)
    x = _conv(b, choices, x, 64, 1)
    x = _conv(b, choices, x, 192, 3)
    x = b.maxpool(x, 3, 2, ceil=True)
    for stage, modules in enumerate(INCEPTION_STAGES):
        if stage > 0:
            x = b.maxpool(x, 3 if stage == 1 else 2, 2, ceil=True)
        for module in modules:
            x = _inception(b, choices, x, *module)
    return b.build(classifier(b, x))


def _inception(b: GraphBuilder, choices: Choices, x: str, c1: int, c3_in: int, c3: int, c5_in: int, c5: int, pool: int) -> str:
    pointwise = _conv(b, choices, x, c1, 1)
    three = _conv(b, choices, _conv(b, choices, x, c3_in, 1), c3, 3)
    five = _conv(b, choices, _conv(b, choices, x, c5_in, 1), c5, 3)
    pooled = _conv(b, choices, b.maxpool(x, 3, 1, 1), pool, 1)
    return b.concat([pointwise, three, five, pooled])


def _conv(b: GraphBuilder, choices: Choices, x: str, channels: int, kernel: int, stride: int = 1) -> str:
    return b.conv_bn(x, choices.channels(channels), choices.kernel(kernel), stride)
