"""Builds networks for phones: GhostNet, MobileOne, RepVGG (both as they run), SqueezeNext."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder, Size
from edgeplan.graph.ir import Graph
from edgeplan.zoo.layers import CLASSES, IMAGE, classifier, make_divisible

#: GhostNet's bottlenecks: kernel, expanded and output channels, squeeze and excitation, stride.
_GHOSTS = (
    (3, 16, 16, False, 1),
    (3, 48, 24, False, 2),
    (3, 72, 24, False, 1),
    (5, 72, 40, True, 2),
    (5, 120, 40, True, 1),
    (3, 240, 80, False, 2),
    (3, 200, 80, False, 1),
    (3, 184, 80, False, 1),
    (3, 184, 80, False, 1),
    (3, 480, 112, True, 1),
    (3, 672, 112, True, 1),
    (5, 672, 160, True, 2),
    (5, 960, 160, False, 1),
    (5, 960, 160, True, 1),
    (5, 960, 160, False, 1),
    (5, 960, 160, True, 1),
)


def ghostnet(name: str) -> Graph:
    """Build GhostNet 1.0 (Han et al., 2020), table 2: cheap convolutions make half of each map from the other half."""
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, 16, 3, 2)
    for kernel, expanded, channels, excited, stride in _GHOSTS:
        y = _ghost(b, x, expanded, "relu")
        if stride > 1:
            y = b.bn(b.dwconv(y, kernel, stride))
        if excited:
            gate = b.relu(b.conv(b.gap(y), make_divisible(expanded / 4, 4), 1, bias=True))
            y = b.mul(y, b.activation(b.conv(gate, expanded, 1, bias=True), "hsigmoid"))
        y = _ghost(b, y, channels, "")
        if b.channels(x) != channels or stride > 1:
            x = b.conv_bn(b.bn(b.dwconv(x, kernel, stride)), channels, 1, act="")
        x = b.add(y, x)
    x = b.gap(b.conv_bn(x, 960, 1))
    return b.build(b.fc(b.flatten(b.relu(b.conv(x, 1280, 1, bias=True))), CLASSES))


def _ghost(b: GraphBuilder, x: str, channels: int, act: str) -> str:
    half = b.conv_bn(x, channels // 2, 1, act=act)
    return b.concat([half, b.activation(b.bn(b.dwconv(half, 3)), act)])


def mobileone_s1(name: str) -> Graph:
    """Build MobileOne-S1 (Vasu et al., 2023), table 2, with its branches merged: a bias and a ReLU behind every convolution."""
    b = GraphBuilder(name, IMAGE)
    x = b.relu(b.conv(b.input, 64, 3, 2, bias=True))
    for channels, blocks in ((96, 2), (192, 8), (512, 10), (1280, 1)):
        for block in range(blocks):
            into = b.channels(x)
            x = b.relu(b.conv(x, into, 3, 2 if block == 0 else 1, groups=into, bias=True))
            x = b.relu(b.conv(x, channels, 1, bias=True))
    return b.build(classifier(b, x))


def repvgg_a0(name: str) -> Graph:
    """Build RepVGG-A0 (Ding et al., 2021), table 3, with its branches merged: 3 x 3 convolutions, biases and ReLUs alone."""
    b = GraphBuilder(name, IMAGE)
    x = b.relu(b.conv(b.input, 48, 3, 2, bias=True))
    for channels, blocks in ((48, 2), (96, 4), (192, 14), (1280, 1)):
        for block in range(blocks):
            x = b.relu(b.conv(x, channels, 3, 2 if block == 0 else 1, bias=True))
    return b.build(classifier(b, x))


def squeezenext23(name: str) -> Graph:
    """Build 1.0-SqNxt-23 (Gholami et al., 2018), figure 3: bottlenecks of two steps, 3 x 1 and 1 x 3 convolutions."""
    b = GraphBuilder(name, (1, 3, 227, 227))
    x = b.maxpool(_conv(b, b.input, 64, 7, 2, pad=1), 3, 2, ceil=True)
    for stage, (channels, blocks) in enumerate(((32, 6), (64, 6), (128, 8), (256, 1))):
        for block in range(blocks):
            x = _squeezed(b, x, channels, 2 if block == 0 and stage > 0 else 1)
    return b.build(classifier(b, _conv(b, x, 128, 1)))


def _squeezed(b: GraphBuilder, x: str, channels: int, stride: int) -> str:
    into = b.channels(x)
    reduced = into if stride > 1 else into // 4 if into > channels else into // 2
    y = _conv(b, _conv(b, x, reduced, 1, stride), reduced // 2, 1)
    y = _conv(b, _conv(b, y, reduced, (1, 3)), reduced, (3, 1))
    y = _conv(b, y, channels, 1)
    if into != channels or stride > 1:
        x = _conv(b, x, channels, 1, stride)
    return b.relu(b.add(y, x))


def _conv(b: GraphBuilder, x: str, channels: int, kernel: Size, stride: int = 1, *, pad: int | None = None) -> str:
    return b.relu(b.bn(b.conv(x, channels, kernel, stride, pad=pad)))
