"""Builds SqueezeNet (Iandola et al., 2016): fire modules; no batch normalisation, biases instead."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.zoo.choices import Choices
from edgeplan.zoo.layers import CLASSES, IMAGE, kept_padding

# Fire modules as (squeeze, expand) and "pool", after the stem and its pooling.
_FIRES: dict[str, tuple[tuple[int, int] | str, ...]] = {
    "1.0": ((16, 64), (16, 64), (32, 128), "pool", (32, 128), (48, 192), (48, 192), (64, 256), "pool", (64, 256)),
    "1.1": ((16, 64), (16, 64), "pool", (32, 128), (32, 128), "pool", (48, 192), (48, 192), (64, 256), (64, 256)),
}
_STEMS = {"1.0": (96, 7), "1.1": (64, 3)}


def squeezenet(choices: Choices, name: str, *, version: str = "1.0") -> Graph:
    """Build SqueezeNet 1.0 or 1.1; every convolution's channels are free but the classifier's."""
    b = GraphBuilder(name, IMAGE)
    stem, base_kernel = _STEMS[version]
    kernel = choices.kernel(base_kernel)
    # The published stem has no padding.
    x = b.relu(b.conv(b.input, choices.channels(stem), kernel, 2, pad=kept_padding(kernel, base_kernel, 0), bias=True))
    x = b.maxpool(x, 3, 2, ceil=True)
    for fire in _FIRES[version]:
        x = b.maxpool(x, 3, 2, ceil=True) if isinstance(fire, str) else _fire(b, choices, x, *fire)
    x = b.relu(b.conv(x, CLASSES, 1, bias=True))
    return b.build(b.flatten(b.gap(x)))


def _fire(b: GraphBuilder, choices: Choices, x: str, squeeze: int, expand: int) -> str:
    x = b.relu(b.conv(x, choices.channels(squeeze), 1, bias=True))
    pointwise = b.relu(b.conv(x, choices.channels(expand), 1, bias=True))
    spatial = b.relu(b.conv(x, choices.channels(expand), choices.kernel(3), bias=True))
    return b.concat([pointwise, spatial])
