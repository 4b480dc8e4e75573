"""Builds ShuffleNetV2 (Ma et al., 2018): channel split and channel shuffle."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import IMAGE, classifier

# Table 5 of its paper: channels of one branch (half a stage's output) by stage, and of the last convolution.
_WIDTHS: dict[float, tuple[tuple[int, int, int], int]] = {
    0.5: ((24, 48, 96), 1024),
    1.0: ((58, 116, 232), 1024),
    1.5: ((88, 176, 352), 1024),
    2.0: ((122, 244, 488), 2048),
}
_REPEATS = (4, 8, 4)
_STEM = 24


def shufflenetv2(choices: Choices, name: str, *, width: float = 1.0) -> Graph:
    """Build ShuffleNetV2 0.5x, 1.0x, 1.5x or 2.0x.

    Free: the stem, a stage's branch (both branches of all its units are tied by the shuffle), each unit's inner channels, the
    last convolution.
    """
    branches, last = _WIDTHS[width]
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(_STEM), choices.kernel(3), 2)
    x = b.maxpool(x, 3, 2, 1)
    for base_branch, repeats in zip(branches, _REPEATS, strict=True):
        branch = choices.channels(base_branch)
        for unit in range(repeats):
            if unit == 0:
                shortcut = b.bn(b.dwconv(x, choices.kernel(3), 2))
                shortcut, kept = b.conv_bn(shortcut, branch, 1), x
            else:
                shortcut, kept = b.split(x, (branch, branch))
            y = b.conv_bn(kept, choices.channels(base_branch), 1)
            y = b.bn(b.dwconv(y, choices.kernel(3), 2 if unit == 0 else 1))
            y = b.conv_bn(y, branch, 1)
            x = b.channel_shuffle(b.concat([shortcut, y]), 2)
    x = b.conv_bn(x, choices.channels(last), 1)
    return b.build(classifier(b, x))
