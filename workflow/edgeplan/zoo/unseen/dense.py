"""Builds networks that join many earlier maps: HarDNet and PeleeNet."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.layers import IMAGE, classifier

_GROWTH_FACTOR = 1.6
#: HarDNet-39DS: growth, layers, channels behind the block, whether the map is halved.
_HARD_STAGES = ((16, 4, 96, True), (20, 16, 320, True), (64, 8, 640, True), (160, 4, 1024, False))


def hardnet39ds(name: str) -> Graph:
    """Build HarDNet-39DS (Chao et al., 2019) in its authors' form: separable convolutions, harmonically joined."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.conv_bn(b.input, 24, 3, 2, act="relu6"), 48, 1, act="relu6")
    x = b.bn(b.dwconv(x, 3, 2))
    for growth, layers, channels, halved in _HARD_STAGES:
        x = b.conv_bn(_hard_block(b, x, growth, layers), channels, 1, act="relu6")
        x = b.bn(b.dwconv(x, 3, 2)) if halved else x
    return b.build(classifier(b, x))


def _hard_block(b: GraphBuilder, x: str, growth: int, layers: int) -> str:
    made = [x]
    for layer in range(1, layers + 1):
        reached = [layer - 2**power for power in range(layers.bit_length()) if layer % 2**power == 0]
        width = growth * _GROWTH_FACTOR ** (len(reached) - 1)
        joined = [made[number] for number in reached]
        y = b.concat(joined) if len(joined) > 1 else joined[0]
        y = b.conv_bn(y, int(int(width + 1) / 2) * 2, 1, act="relu6")
        made.append(b.bn(b.dwconv(y, 3)))
    return b.concat([y for number, y in enumerate(made) if number % 2 or number == layers])


def peleenet(name: str) -> Graph:
    """Build PeleeNet (Wang et al., 2018), table 1: dense layers of two ways, a stem of two branches."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, 32, 3, 2)
    x = b.concat([b.conv_bn(b.conv_bn(x, 16, 1), 32, 3, 2), b.maxpool(x, 2, 2)])
    x = b.conv_bn(x, 32, 1)
    for stage, (layers, width) in enumerate(((3, 1), (4, 2), (8, 4), (6, 4))):
        if stage:
            x = b.avgpool(x, 2, 2)
        for _ in range(layers):
            inner = 16 * width
            if inner > b.channels(x) // 2:
                inner = b.channels(x) // 8 * 4
            short = b.conv_bn(b.conv_bn(x, inner, 1), 16, 3)
            long = b.conv_bn(b.conv_bn(b.conv_bn(x, inner, 1), 16, 3), 16, 3)
            x = b.concat([x, short, long])
        x = b.conv_bn(x, b.channels(x), 1)
    return b.build(classifier(b, x))
