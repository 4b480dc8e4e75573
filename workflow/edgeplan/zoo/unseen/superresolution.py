"""Builds networks that enlarge a single image: few channels at high resolution, 9 x 9 and 5 x 5 convolutions."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph


def srcnn(name: str) -> Graph:
    """Build SRCNN 9-5-5 (Dong et al., 2016), on the luminance of an image already enlarged to 256 x 256."""
    b = GraphBuilder(name, (1, 1, 256, 256))
    x = b.relu(b.conv(b.input, 64, 9, bias=True))
    x = b.relu(b.conv(x, 32, 5, bias=True))
    return b.build(b.conv(x, 1, 5, bias=True))


def espcn(name: str) -> Graph:
    """Build ESPCN (Shi et al., 2016), 360 x 640 to 1080 x 1920: tanh, and the last map's channels shuffled into pixels."""
    factor, height, width = 3, 360, 640
    b = GraphBuilder(name, (1, 1, height, width))
    x = b.activation(b.conv(b.input, 64, 5, bias=True), "tanh")
    x = b.activation(b.conv(x, 32, 3, bias=True), "tanh")
    x = b.conv(x, factor**2, 3, bias=True)
    x = b.transpose(b.reshape(x, (1, 1, factor, factor, height, width)), (0, 1, 4, 2, 5, 3))
    return b.build(b.reshape(x, (1, 1, factor * height, factor * width)))
