"""Builds carriers of convolutions beyond those of the prior's walks: large, grouped and dilated ones.

Most walks allow a convolution so many multiply-adds and no more, and the next one reads the narrowed channels. Engines compute
convolutions in blocks cut for the caches: where the weights of a block outgrow them (hundreds of channels under a kernel of
7 x 7 or 9 x 9), a multiply-add costs up to three times as much, and a predictor has to have seen that. Two of three carriers
hold such convolutions as they were drawn. The third holds what no family of Table 2 has and many other networks do: groups that
are not depthwise (ShuffleNet, ResNeXt), and dilation (segmentation); of these only the weights are bounded.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

from edgeplan.chapters.prediction.sampling.prior import CHANNEL_SCALE, ConvPrior, ConvShape
from edgeplan.chapters.prediction.sampling.sources import MAX_MACS, TYPICAL_MACS
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.onnx.write import weight_bytes
from edgeplan.graph.simplify import simplify

_LARGE = 2  # large convolutions of a carrier; a pointwise one leads to those that read other channels
_TRIES = 1000
_FIRST_CHANNELS = (16, 256)
_RESIDUAL_SHARE, _BIASED_SHARE = 0.3, 0.2
#: Weights of a carrier, bytes: to build and load more takes longer than to measure it.
_MOST_BYTES = 300_000_000
_IMAGE_CHANNELS = 3

_UNUSUAL = 4  # grouped and dilated convolutions of a carrier
_SIZES = (7, 14, 28, 33, 56, 65)
_GROUPS, _GROUP_CHANNELS = (2, 3, 4, 8, 16, 32), (4, 64)
_GROUPED_KERNELS = (1, 3, 3, 5)
_DILATIONS, _DILATED_KERNELS = (2, 2, 4, 6, 12), (3, 3, 3, 5)
_DILATED_CHANNELS = (16, 384)


def beyond_carriers(prior: ConvPrior, seed: int) -> Iterator[Graph]:
    """Yield carriers without end, the same for the same seed."""
    number = 0
    while True:
        name = f"beyond-{number}"
        rng = Random(f"{seed}/{name}")  # noqa: S311  not cryptography
        graph = _large(name, prior, rng) if number % 3 else _unusual(name, rng)
        number += 1
        if graph is not None and weight_bytes(graph) <= _MOST_BYTES:
            yield graph


def _large(name: str, prior: ConvPrior, rng: Random) -> Graph | None:
    shape = _drawn(prior, rng)
    if shape is None:
        return None
    channels = _IMAGE_CHANNELS if shape.in_channels == _IMAGE_CHANNELS else rng.randint(*_FIRST_CHANNELS)
    b = GraphBuilder(name, (1, channels, shape.size, shape.size))
    x = _convolved(b, b.input, shape, rng)
    for _ in range(_LARGE - 1):
        following = _drawn(prior, rng, b.shape(x)[2])
        if following is not None:
            x = _convolved(b, x, following, rng)
    return simplify(b.build(x))


def _drawn(prior: ConvPrior, rng: Random, size: int = 0) -> ConvShape | None:
    """Draw a convolution of the prior that most walks would narrow, of an input size or any; None if many draws gave none."""
    for _ in range(_TRIES):
        like = prior.start(rng)
        if size not in (0, like.size):
            continue
        image = like.in_channels == _IMAGE_CHANNELS  # its channels are not scaled
        into = like.in_channels if image else max(4, round(like.in_channels * rng.uniform(*CHANNEL_SCALE)))
        out = max(4, round(like.out_channels * rng.uniform(*CHANNEL_SCALE)))
        kernel = prior.kernel(rng, like.size, like.in_channels, depthwise=False)
        drawn = ConvShape(like.size, into, out, kernel, like.stride)
        if TYPICAL_MACS < drawn.macs <= MAX_MACS:
            return drawn
    return None


def _convolved(b: GraphBuilder, x: str, shape: ConvShape, rng: Random) -> str:
    """Add a convolution and what follows it: a sum with a shortcut as in ResNets, a bias as in VGGs, or neither."""
    if shape.in_channels != b.channels(x):
        x = b.conv_bn(x, shape.in_channels, 1)
    style = rng.random()
    if style < _RESIDUAL_SHARE:
        y = b.conv_bn(x, shape.out_channels, shape.kernel, shape.stride, act="")
        return b.relu(b.add(y, b.conv_bn(x, shape.out_channels, 1, shape.stride, act="")))
    if style < _RESIDUAL_SHARE + _BIASED_SHARE:
        return b.relu(b.conv(x, shape.out_channels, shape.kernel, shape.stride, bias=True))
    return b.conv_bn(x, shape.out_channels, shape.kernel, shape.stride)


def _unusual(name: str, rng: Random) -> Graph:
    size = rng.choice(_SIZES)
    b = GraphBuilder(name, (1, rng.randint(*_FIRST_CHANNELS), size, size))
    x = b.input
    for _ in range(_UNUSUAL):
        x = _grouped(b, x, rng) if rng.random() < 0.5 else _dilated(b, x, rng)  # either as often
    return simplify(b.build(x))


def _grouped(b: GraphBuilder, x: str, rng: Random) -> str:
    groups = rng.choice(_GROUPS)
    into, out = (groups * _between(rng, _GROUP_CHANNELS) for _ in range(2))
    x = b.conv_bn(x, into, 1)
    return b.conv_bn(x, out, rng.choice(_GROUPED_KERNELS), rng.choice((1, 1, 1, 2)), groups=groups)


def _dilated(b: GraphBuilder, x: str, rng: Random) -> str:
    """Add a dilated convolution, dense or depthwise, whose dilation fits the feature map."""
    into, kernel = _between(rng, _DILATED_CHANNELS), rng.choice(_DILATED_KERNELS)
    fits = [d for d in _DILATIONS if d * (kernel - 1) < 2 * b.shape(x)[2]]
    dilation = rng.choice(fits or [1])
    x = b.conv_bn(x, into, 1)
    if rng.random() < 0.5:  # either as often
        return b.relu(b.bn(b.conv(x, into, kernel, groups=into, dilation=dilation)))
    return b.relu(b.bn(b.conv(x, _between(rng, _DILATED_CHANNELS), kernel, dilation=dilation)))


def _between(rng: Random, bounds: tuple[int, int]) -> int:
    """Draw a number evenly on a logarithmic scale; half of them are multiples of 8, as in published models."""
    drawn = math.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1])))
    return max(8, round(drawn / 8) * 8) if rng.random() < 0.5 else round(drawn)
