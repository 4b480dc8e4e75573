"""Builds ProxylessNAS (Cai et al., 2019): the networks found for a phone, a GPU and a CPU."""

from __future__ import annotations

from dataclasses import dataclass

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import IMAGE, classifier
from edgeplan.zoo.mobilenetv2 import inverted_residual


@dataclass(frozen=True, slots=True)
class _Stage:
    """Lists blocks of one output width as (kernel, expansion); blocks the search left out are not listed."""

    channels: int
    stride: int
    blocks: tuple[tuple[int, int], ...]


_NETWORKS: dict[str, tuple[int, tuple[_Stage, ...], int]] = {
    "mobile": (
        32,
        (
            _Stage(16, 1, ((3, 1),)),
            _Stage(32, 2, ((5, 3), (3, 3))),
            _Stage(40, 2, ((7, 3), (3, 3), (5, 3), (5, 3))),
            _Stage(80, 2, ((7, 6), (5, 3), (5, 3), (5, 3))),
            _Stage(96, 1, ((5, 6), (5, 3), (5, 3), (5, 3))),
            _Stage(192, 2, ((7, 6), (7, 6), (7, 3), (7, 3))),
            _Stage(320, 1, ((7, 6),)),
        ),
        1280,
    ),
    "gpu": (
        40,
        (
            _Stage(24, 1, ((3, 1),)),
            _Stage(32, 2, ((5, 3),)),
            _Stage(56, 2, ((7, 3), (3, 3))),
            _Stage(112, 2, ((7, 6), (5, 3))),
            _Stage(128, 1, ((5, 6), (3, 3), (5, 3))),
            _Stage(256, 2, ((7, 6), (7, 6), (7, 6), (5, 6))),
            _Stage(432, 1, ((7, 6),)),
        ),
        1728,
    ),
    "cpu": (
        40,
        (
            _Stage(24, 1, ((3, 1),)),
            _Stage(32, 2, ((3, 6), (3, 3), (3, 3), (3, 3))),
            _Stage(48, 2, ((3, 6), (3, 3), (3, 3), (5, 3))),
            _Stage(88, 2, ((3, 6), (3, 3))),
            _Stage(104, 1, ((5, 6), (3, 3), (3, 3), (3, 3))),
            _Stage(216, 2, ((5, 6), (5, 3), (5, 3), (3, 3))),
            _Stage(360, 1, ((5, 6),)),
        ),
        1432,
    ),
}


def proxylessnas(choices: Choices, name: str, *, target: str = "mobile") -> Graph:
    """Build the ProxylessNAS network found for `mobile`, `gpu` or `cpu`; free as in MobileNetV2."""
    stem, stages, last = _NETWORKS[target]
    b = GraphBuilder(name, IMAGE)
    x = b.conv_bn(b.input, choices.channels(stem), choices.kernel(3), 2, act="relu6")
    base_in = stem
    for stage in stages:
        out = choices.channels(stage.channels)
        for block, (kernel, expansion) in enumerate(stage.blocks):
            expanded = 0 if expansion == 1 else choices.channels(base_in * expansion)
            y = inverted_residual(b, x, expanded, choices.kernel(kernel), out, stage.stride if block == 0 else 1)
            x = b.add(x, y) if block > 0 else y
            base_in = stage.channels
    x = b.conv_bn(x, choices.channels(last), 1, act="relu6")
    return b.build(classifier(b, x))
