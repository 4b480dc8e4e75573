"""Builds ShuffleNet (Zhang et al., 2018): grouped pointwise convolutions with channel shuffle."""

from __future__ import annotations

from types import MappingProxyType

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.layers import IMAGE, classifier

# Table 1 of its paper, three groups: channels of the stem and of each stage's output, by width.
_WIDTHS = MappingProxyType(
    {
        0.5: (12, (120, 240, 480)),
        1.0: (24, (240, 480, 960)),
        1.5: (24, (360, 720, 1440)),
        2.0: (48, (480, 960, 1920)),
    }
)
_REPEATS = (4, 8, 4)
_GROUPS = 3
_BOTTLENECK = 4


def shufflenet(name: str = "shufflenet", *, width: float = 1.0) -> Graph:
    """Build ShuffleNet 0.5x, 1x, 1.5x or 2x with three groups; stem channels are those of its authors' published code."""
    stem, stages = _WIDTHS[width]
    b = GraphBuilder(name, IMAGE)
    x = b.maxpool(b.conv_bn(b.input, stem, 3, 2), 3, 2, 1)
    for stage, (out, repeats) in enumerate(zip(stages, _REPEATS, strict=True)):
        for unit in range(repeats):
            # "We do not apply group convolution on the first pointwise layer" (section 3.2): it has few channels.
            x = _unit(b, x, out, 1 if stage == unit == 0 else _GROUPS, downsamples=unit == 0)
    return b.build(classifier(b, x))


def _unit(b: GraphBuilder, x: str, out: int, first_groups: int, *, downsamples: bool) -> str:
    """Add a unit of Figure 2: b where the size stays (residual sum), c where it halves (pooled input concatenated)."""
    produced = out - b.channels(x) if downsamples else out
    y = b.conv_bn(x, out // _BOTTLENECK, 1, groups=first_groups)
    y = b.channel_shuffle(y, _GROUPS)
    y = b.bn(b.dwconv(y, 3, 2 if downsamples else 1))
    y = b.conv_bn(y, produced, 1, groups=_GROUPS, act="")
    return b.relu(b.concat([b.avgpool(x, 3, 2, 1), y]) if downsamples else b.add(x, y))
