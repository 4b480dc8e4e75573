"""Builds ResNet (He et al., 2016) in torchvision's form (bottlenecks stride in their 3 x 3 convolution) unless told."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import IMAGE, classifier

_BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
_WIDTHS = (64, 128, 256, 512)
_BOTTLENECK_FROM = 50
_EXPANSION = 4


def resnet(choices: Choices, name: str, *, depth: int = 18, reduction_strides: bool = False) -> Graph:
    """Build ResNet of 18, 34, 50, 101 or 152 layers.

    The channels of a stage's output are free once, and tied over its residual sums; where the first shortcut of a stage is the
    identity (ResNet-18 and 34, stage 1), they are tied to the stem's too. The inner convolutions of each block are free.
    With `reduction_strides` a bottleneck strides in its first 1 x 1 convolution, as first published.
    """
    bottleneck = depth >= _BOTTLENECK_FROM
    b = GraphBuilder(name, IMAGE)
    stem = choices.channels(_WIDTHS[0])
    x = b.conv_bn(b.input, stem, choices.kernel(7), 2)
    x = b.maxpool(x, 3, 2, 1)
    for stage, (width, blocks) in enumerate(zip(_WIDTHS, _BLOCKS[depth], strict=True)):
        identity_first = stage == 0 and not bottleneck
        out = stem if identity_first else choices.channels(width * _EXPANSION if bottleneck else width)
        for block in range(blocks):
            first = block == 0
            stride = 2 if first and stage > 0 else 1
            if bottleneck:
                y = _bottleneck(b, choices, x, width, out, (stride, 1) if reduction_strides else (1, stride))
            else:
                y = _basic(b, choices, x, width, out, stride)
            shortcut = b.bn(b.conv(x, out, 1, stride)) if first and not identity_first else x
            x = b.relu(b.add(y, shortcut))
    return b.build(classifier(b, x))


def _basic(b: GraphBuilder, choices: Choices, x: str, width: int, out: int, stride: int) -> str:
    y = b.conv_bn(x, choices.channels(width), choices.kernel(3), stride)
    return b.conv_bn(y, out, choices.kernel(3), act="")


def _bottleneck(b: GraphBuilder, choices: Choices, x: str, width: int, out: int, strides: tuple[int, int]) -> str:
    y = b.conv_bn(x, choices.channels(width), 1, strides[0])
    y = b.conv_bn(y, choices.channels(width), choices.kernel(3), strides[1])
    return b.conv_bn(y, out, 1, act="")
