"""Builds networks for images of 32 x 32 pixels."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph

_IMAGE = (1, 3, 32, 32)
_CLASSES = 10


def nin_cifar10(name: str) -> Graph:
    """Build Network in Network (Lin et al., 2014), as its authors' model for CIFAR-10: 5 x 5 convolutions and perceptrons."""
    b = GraphBuilder(name, _IMAGE)
    x = _stack(b, b.input, 5, (192, 160, 96))
    x = _stack(b, b.maxpool(x, 3, 2, ceil=True), 5, (192, 192, 192))
    x = _stack(b, b.avgpool(x, 3, 2, ceil=True), 3, (192, 192, _CLASSES))
    return b.build(b.softmax(b.flatten(b.gap(x))))


def _stack(b: GraphBuilder, x: str, kernel: int, channels: tuple[int, ...]) -> str:
    for place, out in enumerate(channels):
        x = b.relu(b.conv(x, out, kernel if place == 0 else 1, bias=True))
    return x


def all_cnn_c(name: str) -> Graph:
    """Build All-CNN-C (Springenberg et al., 2015), table 2: strided convolutions in place of pooling."""
    b = GraphBuilder(name, _IMAGE)
    x = b.input
    for channels, stride in ((96, 1), (96, 1), (96, 2), (192, 1), (192, 1), (192, 2)):
        x = b.relu(b.conv(x, channels, 3, stride, bias=True))
    x = b.relu(b.conv(x, 192, 3, pad=0, bias=True))
    for channels in (192, _CLASSES):
        x = b.relu(b.conv(x, channels, 1, bias=True))
    return b.build(b.softmax(b.flatten(b.gap(x))))


def wrn_40_4(name: str) -> Graph:
    """Build WRN-40-4 (Zagoruyko and Komodakis, 2016): six blocks a stage, four times as wide, activated before convolutions."""
    b = GraphBuilder(name, _IMAGE)
    x = b.conv(b.input, 16, 3)
    for channels, first_stride in ((64, 1), (128, 2), (256, 2)):
        for stride in (first_stride, 1, 1, 1, 1, 1):
            active = b.relu(b.bn(x))
            y = b.conv(b.relu(b.bn(b.conv(active, channels, 3, stride))), channels, 3)
            x = b.add(y, x if b.channels(x) == channels else b.conv(active, channels, 1, stride))
    return b.build(b.fc(b.flatten(b.gap(b.relu(b.bn(x)))), _CLASSES))
