"""Holds the prior over convolutions (section 5.2): what published models use, spread as the variants spread it.

The joint distribution of (size, kernel, stride, channels) comes from the base models; channels are then scaled and kernels
resampled as section 3 does to make variants, so that the prior covers the design space and not the base models alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pandas as pd

from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import KernelConfig
from edgeplan.graph.kinds import kind

#: Table 5 of the paper: the sample space of Conv++bn++relu.
TABLE5_SIZES = (224, 112, 56, 32, 28, 27, 14, 13, 8, 7, 1)
TABLE5_KERNELS = (1, 3, 5, 7, 9)
TABLE5_STRIDES = (1, 2, 4)
TABLE5_IN_CHANNELS = (3, 2160)
TABLE5_OUT_CHANNELS = (16, 2048)
CHANNEL_SCALE = (0.2, 1.8)
_KEEP_KERNEL = 0.35


@dataclass(frozen=True, order=True, slots=True)
class ConvShape:
    """Describes a convolution: input size (height = width), channels, kernel, stride; depthwise when `depthwise`."""

    size: int
    in_channels: int
    out_channels: int
    kernel: int
    stride: int
    depthwise: bool = False

    @property
    def macs(self) -> int:
        """Count the multiply-adds, with "same" padding."""
        out = -(-self.size // self.stride)
        fan_in = 1 if self.depthwise else self.in_channels
        return out * out * self.out_channels * fan_in * self.kernel**2


def conv_shapes(graphs: Iterable[Graph]) -> Counter[ConvShape]:
    """Count every square convolution of the graphs."""
    found: Counter[ConvShape] = Counter()
    for graph in graphs:
        for op in graph.operators:
            if op.op_type != "Conv":
                continue
            _, cin, height, width = graph.shape(op.inputs[0])
            kh, kw = op.integers("kernel_shape", (1, 1))
            if height == width and kh == kw:
                cout = graph.shape(op.outputs[0])[1]
                stride = op.integers("strides", (1, 1))[0]
                found[ConvShape(height, cin, cout, kh, stride, kind(graph, op) == "dwconv")] += 1
    return found


def read_prior(path: Path) -> Counter[ConvShape]:
    """Read the convolutions of the base models with their counts, from prior.parquet."""
    found: Counter[ConvShape] = Counter()
    for text, count in pd.read_parquet(path)[["config", "count"]].itertuples(index=False):
        c = KernelConfig.from_json(text)
        found[ConvShape(c.in_height, c.in_channels, c.out_channels, c.kernel_h, c.stride_h, c.kind == "dwconv")] = int(count)
    return found


class ConvPrior:
    """Draws convolutions that look like those of published models and their variants."""

    def __init__(self, shapes: Counter[ConvShape]) -> None:
        self._dense = sorted((s, n) for s, n in shapes.items() if not s.depthwise)
        self._depthwise = sorted((s, n) for s, n in shapes.items() if s.depthwise)

    def start(self, rng: Random) -> ConvShape:
        """Draw a dense convolution to start a network at; stems (3 channels) included."""
        return _pick(rng, self._dense)

    def out_channels(self, rng: Random, size: int, channels: int) -> int:
        """Draw output channels of a convolution that reads `channels` at a size: the ratio of a like convolution, scaled."""
        like = _pick(rng, _near(self._dense, size, channels))
        ratio = like.out_channels / like.in_channels
        return max(4, round(min(channels * ratio, 2.0 * like.out_channels) * rng.uniform(*CHANNEL_SCALE)))

    def published(self, rng: Random, size: int, channels: int, *, depthwise: bool) -> tuple[int, int, int]:
        """Draw kernel, stride and output channels of a like convolution, as they are."""
        like = _pick(rng, _near(self._depthwise if depthwise else self._dense, size, channels))
        return like.kernel, like.stride, like.out_channels

    def kernel(self, rng: Random, size: int, channels: int, *, depthwise: bool) -> int:
        """Draw a kernel size: that of a like convolution, or any of Table 5 unless that one is pointwise."""
        like = _pick(rng, _near(self._depthwise if depthwise else self._dense, size, channels))
        if like.kernel == 1 or rng.random() < _KEEP_KERNEL:
            return like.kernel
        return rng.choice(TABLE5_KERNELS)

    def stride(self, rng: Random, size: int, channels: int, *, depthwise: bool) -> int:
        """Draw the stride of a like convolution."""
        return _pick(rng, _near(self._depthwise if depthwise else self._dense, size, channels)).stride


def _pick(rng: Random, weighted: Sequence[tuple[ConvShape, int]]) -> ConvShape:
    return rng.choices([s for s, _ in weighted], [n**0.5 for _, n in weighted])[0]


def _near(weighted: Sequence[tuple[ConvShape, int]], size: int, channels: int) -> Sequence[tuple[ConvShape, int]]:
    """Return the convolutions nearest in size, and among these those within a factor of two in channels, if any."""
    nearest = min((abs(s.size - size) for s, _ in weighted), default=0)
    same = [(s, n) for s, n in weighted if abs(s.size - size) == nearest]
    return [(s, n) for s, n in same if channels / 2 <= s.in_channels <= 2 * channels] or same
