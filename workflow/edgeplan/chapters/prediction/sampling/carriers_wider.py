"""Builds carriers of shapes that files from elsewhere hold and no walk of the prior draws.

The families of Table 2 classify small images. Files that people bring hold other shapes of the same operators, and a
predictor that has seen none of them is off by half: many groups of few channels, windows of 5 to 31, sequences, few channels
at a high resolution, first layers of any window on an image of three channels, wide layers on a flattened image, joins and
changes of layout of large maps, recurrent layers of any length, attention, transposed convolutions of a group a channel. Each
sort has carriers of its own, drawn on logarithmic scales under seeds of their own: more of one sort, or another sort, leaves
the others as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from random import Random
from types import MappingProxyType
from typing import Literal

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.simplify import simplify

#: Bounds of what one operator may do and hold, so that a carrier takes about a second to measure.
_MOST_MACS, _MOST_ELEMENTS, _MOST_WEIGHTS = 400_000_000, 6_000_000, 40_000_000

_BLOCKS = 3  # of a carrier that repeats a block
_GROUPS, _GROUP_CHANNELS = (2, 4, 8, 16, 32, 32, 32, 64), (1, 64)
_GROUPED_SIZES, _GROUPED_KERNELS = (7, 14, 28, 56, 112), (3, 3, 3, 5)
_WINDOWS, _WINDOW_SIZES, _WINDOW_CHANNELS = (5, 7, 9, 11), (28, 56, 96, 128, 224, 256), (1, 64)
_WIDE, _WIDE_SIZES, _WIDE_CHANNELS = (5, 7, 9, 13, 15, 21, 31), (7, 14, 28, 56), (16, 768)
_LENGTHS, _LINE_CHANNELS, _LINE_KERNELS, _LINE_DILATIONS = (40, 16_000), (1, 512), (1, 3, 5, 7, 9, 15, 31), (1, 1, 1, 2, 4, 8)
_FINE_SIZES, _FINE_CHANNELS, _FINE_KERNELS = (128, 192, 256, 320, 384, 512, 640), (3, 48), (1, 3, 3, 5)
_MAPS, _MAP_CHANNELS = (1, 2, 3, 4, 6, 7), (32, 1024)
_OUTPUTS = (10, 4096)
_JOINED_SIZES, _JOINED_CHANNELS = (20, 28, 40, 56, 80, 112), (16, 512)
_CELLS: tuple[Literal["LSTM", "GRU"], ...] = ("LSTM", "GRU")
_STEPS, _FEATURES, _HIDDEN = (1, 400), (16, 768), (16, 512)
_TOKENS, _HEADS, _HEAD_WIDTHS = (16, 400), (1, 2, 3, 4, 6, 8, 12), (16, 24, 32, 64)
_IMAGE_SIZES, _STEMS, _STEM_CHANNELS = (32, 96, 128, 160, 192, 224, 256), 4, (8, 96)
_STEM_KERNELS, _STEM_STRIDES, _NEXT_KERNELS = (3, 3, 5, 7, 9, 11), (1, 2, 2, 4), (3, 5, 7, 9)
_COARSE_SIZES, _ENLARGED_CHANNELS, _ENLARGING = (4, 7, 8, 14, 20, 28, 40, 80), (8, 384), ((2, 0), (3, 1), (4, 1))


def wider_graphs(seed: int, count: int) -> Iterator[Graph]:
    """Build `count` carriers of each sort, the same for the same seed; the n-th of all come before the next of any."""
    for number in range(count):
        for sort, build in _SORTS.items():
            name = f"wider-{sort}-{number}"
            yield simplify(build(name, Random(f"{seed}/{name}")))  # noqa: S311  not cryptography


def _between(rng: Random, bounds: tuple[int, int], most: float = math.inf) -> int:
    """Draw a number evenly on a logarithmic scale, no larger than `most`; half of those above 8 are multiples of 8."""
    low, high = bounds[0], max(bounds[0], min(bounds[1], int(min(most, bounds[1]))))
    drawn = round(math.exp(rng.uniform(math.log(low), math.log(high))))
    return drawn // 8 * 8 if drawn > 8 and drawn // 8 * 8 >= low and rng.random() < 0.5 else drawn


def _grouped(name: str, rng: Random) -> Graph:
    """Build residual blocks whose middle convolution has groups of few channels, as ResNeXt and RegNet have them."""
    size = rng.choice(_GROUPED_SIZES)
    widest = _MOST_MACS // size**2
    b = GraphBuilder(name, (1, _between(rng, (16, 1024), math.sqrt(widest)), size, size))
    x = b.input
    for _ in range(_BLOCKS):
        groups, kernel = rng.choice(_GROUPS), rng.choice(_GROUPED_KERNELS)
        fits = min(widest / b.channels(x), math.sqrt(widest * groups) / kernel) / groups
        each = _between(rng, _GROUP_CHANNELS, fits)
        y = b.conv_bn(x, groups * each, 1)
        y = b.conv_bn(y, groups * each, kernel, groups=groups)
        x = b.relu(b.add(x, b.conv_bn(y, b.channels(x), 1, act="")))
    return b.build(x)


def _windows(name: str, rng: Random) -> Graph:
    """Build dense convolutions of wide windows on few channels, and factorised ones: a row's window, then a column's."""
    size = rng.choice(_WINDOW_SIZES)
    b = GraphBuilder(name, (1, _between(rng, _WINDOW_CHANNELS, _MOST_ELEMENTS / size**2), size, size))
    x = b.input
    for _ in range(_BLOCKS):
        kernel, biased = rng.choice(_WINDOWS), rng.random() < 0.5
        shapes = ((1, kernel), (kernel, 1)) if rng.random() < 0.3 else ((kernel, kernel),)
        for height, width in shapes:
            fits = min(_MOST_MACS / (size**2 * height * width * b.channels(x)), _MOST_ELEMENTS / size**2)
            y = b.conv(x, _between(rng, _WINDOW_CHANNELS, fits), (height, width), bias=biased)
            x = b.relu(y if biased else b.bn(y))
    return b.build(x)


def _wide(name: str, rng: Random) -> Graph:
    """Build depthwise convolutions of wide windows between pointwise ones, as ConvNeXt, MixNet and RepLKNet have them."""
    size = rng.choice(_WIDE_SIZES)
    b = GraphBuilder(name, (1, _between(rng, _WIDE_CHANNELS, _MOST_ELEMENTS / size**2), size, size))
    x = b.input
    for _ in range(_BLOCKS):
        kernel = rng.choice([k for k in _WIDE if k < 2 * size])
        y = b.bn(b.dwconv(x, kernel, rng.choice((1, 1, 2)) if b.shape(x)[2] > kernel else 1))
        x = b.conv_bn(y, _between(rng, _WIDE_CHANNELS, _MOST_MACS / size**2 / b.channels(y)), 1)
    return b.build(x)


def _lines(name: str, rng: Random) -> Graph:
    """Build convolutions over a sequence, of one axis: sound, sensors, bytes of text."""
    length = _between(rng, _LENGTHS)
    b = GraphBuilder(name, (1, _between(rng, _LINE_CHANNELS, _MOST_ELEMENTS / length), length))
    x = b.input
    for _ in range(2 * _BLOCKS):
        _, channels, steps = b.shape(x)
        kernel = rng.choice([k for k in _LINE_KERNELS if k <= steps])
        dilation = rng.choice([d for d in _LINE_DILATIONS if d * (kernel - 1) < steps])
        if kernel > 1 and rng.random() < 0.2:
            x = b.relu(b.conv1d(x, channels, kernel, groups=channels, dilation=dilation))
            continue
        fits = min(_MOST_MACS / (steps * kernel * channels), _MOST_ELEMENTS / steps)
        stride = rng.choice((1, 1, 2, 4)) if steps > 4 * kernel else 1
        x = b.relu(b.conv1d(x, _between(rng, _LINE_CHANNELS, fits), kernel, stride, dilation=dilation))
    return b.build(x)


def _fine(name: str, rng: Random) -> Graph:
    """Build few channels at a high resolution: a stem that halves it or none, and a join with an enlarged map, as U-Nets do."""
    size = rng.choice(_FINE_SIZES)
    most = _MOST_ELEMENTS / size**2
    b = GraphBuilder(name, (1, rng.choice((1, 3, 3, _between(rng, _FINE_CHANNELS, most))), size, size))
    x = b.input
    for _ in range(2):
        kernel = rng.choice(_FINE_KERNELS)
        fits = min(most, _MOST_MACS / (size**2 * kernel**2 * b.channels(x)))
        x = b.conv_bn(x, _between(rng, _FINE_CHANNELS, fits), kernel, act=rng.choice(("relu", "leakyrelu", "sigmoid")))
    low = b.conv_bn(b.maxpool(x, 2, 2), _between(rng, _FINE_CHANNELS), 3)
    y = b.upsample(low, 2, mode=rng.choice(("nearest", "linear")))
    return b.build(b.conv(b.concat([x, y]), rng.choice((1, 2, 3)), rng.choice((1, 3)), bias=True))


def _flattened(name: str, rng: Random) -> Graph:
    """Build fully connected layers on a flattened image or on a vector of many features."""
    size = rng.choice(_MAPS)
    b = GraphBuilder(name, (1, _between(rng, _MAP_CHANNELS), size, size))
    x = b.flatten(b.relu(b.conv(b.input, b.channels(b.input), 3 if size > 2 else 1, bias=True)))
    for _ in range(rng.randint(2, 3)):
        x = b.relu(b.fc(x, _between(rng, _OUTPUTS, _MOST_WEIGHTS / b.channels(x))))
    return b.build(b.fc(x, _between(rng, (1, 1000))))


def _joined(name: str, rng: Random) -> Graph:
    """Build joins of large maps, and heads of detectors: channels last, rows of a few values, all heads joined."""
    size = rng.choice(_JOINED_SIZES)
    most = _MOST_ELEMENTS / size**2
    b = GraphBuilder(name, (1, _between(rng, (8, 64)), size, size))
    maps = [b.conv_bn(b.input, _between(rng, _JOINED_CHANNELS, most / 4), 1) for _ in range(rng.randint(2, 4))]
    x = b.concat(maps)
    values, heads = rng.choice((1, 2, 4, 6, 85)), []
    for _ in range(2):
        y = b.conv(x, values * _between(rng, (1, 24), max(1.0, most / values / 2)), 1, bias=True)
        turned = b.transpose(y, (0, 2, 3, 1))
        heads.append(b.reshape(turned, (1, math.prod(b.shape(turned)) // values, values)))
        x = b.maxpool(x, 2, 2)
    return b.build(b.activation(b.concat(heads), "sigmoid"))


def _recurrent(name: str, rng: Random) -> Graph:
    """Build two recurrent layers over a sequence of any length, each with a fully connected layer behind."""
    steps = _between(rng, _STEPS)
    b = GraphBuilder(name, (steps, 1, _between(rng, _FEATURES)))
    x, cell = b.input, rng.choice(_CELLS)
    for _ in range(2):
        hidden, both = _between(rng, _HIDDEN), rng.random() < 0.5
        y = b.transpose(b.recurrent(x, cell, hidden, bidirectional=both), (0, 2, 1, 3))
        out = _between(rng, _FEATURES)
        x = b.reshape(b.fc(b.reshape(y, (steps, hidden * (2 if both else 1))), out), (steps, 1, out))
    return b.build(x)


def _attention(name: str, rng: Random) -> Graph:
    """Build a block of a transformer: normalisation, heads of queries, keys and values, their products, and two layers."""
    tokens, heads, each = _between(rng, _TOKENS), rng.choice(_HEADS), rng.choice(_HEAD_WIDTHS)
    width = heads * each
    b = GraphBuilder(name, (tokens, width))
    y = b.layer_norm(b.input)
    query, key, value = (
        b.transpose(b.reshape(b.fc(y, width), (tokens, heads, each)), order) for order in ((1, 0, 2), (1, 2, 0), (1, 0, 2))
    )
    found = b.matmul(b.softmax(b.matmul(query, key)), value)
    x = b.add(b.input, b.fc(b.reshape(b.transpose(found, (1, 0, 2)), (tokens, width)), width))
    y = b.relu(b.fc(b.layer_norm(x), width * rng.choice((1, 2, 4))))
    return b.build(b.add(x, b.fc(y, width)))


def _enlarged(name: str, rng: Random) -> Graph:
    """Build transposed convolutions of stride 2, dense or with a group a channel, between pointwise ones."""
    size = rng.choice(_COARSE_SIZES)
    b = GraphBuilder(name, (1, _between(rng, _ENLARGED_CHANNELS, _MOST_ELEMENTS / size**2 / 16), size, size))
    x = b.input
    for _ in range(2):
        area, channels = b.shape(x)[2] ** 2, b.channels(x)
        kernel, pad = rng.choice(_ENLARGING)
        if rng.random() < 0.5:
            x = b.deconv(x, channels, kernel, 2, pad, groups=channels)
        else:
            x = b.deconv(x, _between(rng, _ENLARGED_CHANNELS, _MOST_MACS / (area * kernel**2 * channels)), kernel, 2, pad)
        fits = min(_MOST_MACS / (4 * area * b.channels(x)), _MOST_ELEMENTS / 16 / area)
        x = b.conv_bn(x, _between(rng, _ENLARGED_CHANNELS, fits), 1)
    return b.build(x)


def _stems(name: str, rng: Random) -> Graph:
    """Build first layers on one image of three channels, each with another convolution behind, of any window."""
    size = rng.choice(_IMAGE_SIZES)
    b = GraphBuilder(name, (1, 3, size, size))
    ends = []
    for _ in range(_STEMS):
        kernel, stride = rng.choice(_STEM_KERNELS), rng.choice(_STEM_STRIDES)
        area = (size // stride) ** 2
        fits = min(_MOST_MACS / (area * kernel**2 * 3), _MOST_ELEMENTS / area)
        x = b.conv_bn(b.input, _between(rng, _STEM_CHANNELS, fits), kernel, stride)
        kernel, stride = rng.choice(_NEXT_KERNELS), rng.choice((1, 2, 2))
        fits = _MOST_MACS * stride**2 / (area * kernel**2 * b.channels(x))
        ends.append(b.gap(b.conv_bn(x, _between(rng, _STEM_CHANNELS, fits), kernel, stride)))
    return b.build(*ends)


_SORTS: Mapping[str, Callable[[str, Random], Graph]] = MappingProxyType(
    {
        "grouped": _grouped,
        "windows": _windows,
        "wide": _wide,
        "lines": _lines,
        "fine": _fine,
        "flattened": _flattened,
        "joined": _joined,
        "recurrent": _recurrent,
        "attention": _attention,
        "enlarged": _enlarged,
        "stems": _stems,
    }
)
#: Sorts of carriers.
SORTS = tuple(_SORTS)
