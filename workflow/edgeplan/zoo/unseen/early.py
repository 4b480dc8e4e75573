"""Builds early large networks, with wide fully connected layers on a flattened image."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.layers import CLASSES


def zfnet(name: str) -> Graph:
    """Build ZFNet (Zeiler and Fergus, 2014), figure 3: 7 x 7 and 5 x 5 convolutions of stride 2, contrast normalisation."""
    b = GraphBuilder(name, (1, 3, 225, 225))
    x = _conv(b, b.input, 96, 7, 2, pad=1)
    x = b.lrn(b.maxpool(x, 3, 2, 1))
    x = _conv(b, x, 256, 5, 2, pad=0)
    x = b.lrn(b.maxpool(x, 3, 2, 1))
    for channels in (384, 384, 256):
        x = _conv(b, x, channels, 3, 1, pad=1)
    return b.build(b.softmax(_classifier(b, b.maxpool(x, 3, 2), (4096, 4096))))


def overfeat_fast(name: str) -> Graph:
    """Build OverFeat's fast model (Sermanet et al., 2014), table 1: 3072 features of a flattened map of 6 x 6 x 1024."""
    b = GraphBuilder(name, (1, 3, 231, 231))
    x = b.maxpool(_conv(b, b.input, 96, 11, 4, pad=0), 2, 2)
    x = b.maxpool(_conv(b, x, 256, 5, 1, pad=0), 2, 2)
    for channels in (512, 1024, 1024):
        x = _conv(b, x, channels, 3, 1, pad=1)
    return b.build(b.softmax(_classifier(b, b.maxpool(x, 2, 2), (3072, 4096))))


def eigen_depth(name: str) -> Graph:
    """Build the depth estimator of Eigen et al. (2014), figure 1: a coarse map by full connections, refined by convolutions."""
    b = GraphBuilder(name, (1, 3, 228, 304))
    x = b.maxpool(_conv(b, b.input, 96, 11, 4, pad=0), 2, 2)
    x = b.maxpool(_conv(b, x, 256, 5, 1, pad=2), 2, 2)
    for channels in (384, 384):
        x = _conv(b, x, channels, 3, 1, pad=1)
    x = b.maxpool(_conv(b, x, 256, 3, 1, pad=0), 2, 2, ceil=True)
    coarse = b.fc(b.relu(b.fc(b.flatten(x), 4096)), 55 * 74)
    fine = b.maxpool(_conv(b, b.input, 63, 9, 2, pad=0), 2, 2)
    x = _conv(b, b.concat([fine, b.reshape(coarse, (1, 1, 55, 74))]), 64, 5, 1, pad=2)
    return b.build(b.conv(x, 1, 5, bias=True))


def _conv(b: GraphBuilder, x: str, channels: int, kernel: int, stride: int, *, pad: int) -> str:
    return b.relu(b.conv(x, channels, kernel, stride, pad=pad, bias=True))


def _classifier(b: GraphBuilder, x: str, hidden: tuple[int, ...]) -> str:
    x = b.flatten(x)
    for features in hidden:
        x = b.relu(b.fc(x, features))
    return b.fc(x, CLASSES)
