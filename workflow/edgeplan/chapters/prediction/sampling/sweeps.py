"""Builds fixed convolutions that show how latency follows one dimension (Figures 7, 8) and what fusion behind Conv costs.

They have a sampler name of their own, and are never trained on.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from edgeplan.chapters.prediction.sampling.prior import (
    TABLE5_IN_CHANNELS,
    TABLE5_KERNELS,
    TABLE5_OUT_CHANNELS,
    TABLE5_SIZES,
    TABLE5_STRIDES,
)
from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph

_OUT_CHANNELS = range(16, 97)
_MOST_RANDOM_MACS = 2_000_000_000
#: (channels, size, kernel) at which Conv, Conv++bn and Conv++bn++relu are compared; the first is the paper's (section 6).
_CHECKED = (
    (32, 56, 1),
    (32, 56, 3),
    (64, 56, 3),
    (30, 56, 3),
    (64, 28, 3),
    (66, 28, 3),
    (128, 28, 1),
    (256, 14, 3),
    (512, 7, 3),
)


def _graph(sweep: str, channels: int, size: int, out: int, kernel: int, tail: str = "bn relu") -> Graph:
    """Build a model of one convolution behind a pointwise one; an image is read directly, as a stem reads it."""
    b = GraphBuilder(f"{sweep}-{channels}-{size}-{out}-{kernel}-{tail or 'plain'}".replace(" ", "-"), (1, channels, size, size))
    x = b.input if channels <= 3 else b.conv_bn(b.input, channels, 1)  # an image
    x = b.conv(x, out, kernel)
    if "bn" in tail:
        x = b.bn(x)
    if "relu" in tail:
        x = b.relu(x)
    return b.build(b.maxpool(x, 3, 1, 1) if size > 2 else x)


def sweep_graphs() -> Iterator[Graph]:
    """Yield the models of the sweeps of Figures 7 and 8."""
    for kernel in TABLE5_KERNELS:
        yield _graph("kernel_size", 3, 224, 32, kernel)
    for size in TABLE5_SIZES:
        yield _graph("input_size", 64, size, 64, 3)
    for out in _OUT_CHANNELS:
        yield _graph("out_channels", 32, 112, out, 3)


def check_graphs() -> Iterator[Graph]:
    """Yield the models of the comparison of Conv with what is fused behind it."""
    for channels, size, kernel in _CHECKED:
        for tail in ("", "bn", "relu", "bn relu"):
            yield _graph("check", channels, size, channels, kernel, tail)


def random_graphs(rng: Random, count: int) -> Iterator[Graph]:
    """Yield models of one convolution drawn uniformly from the sample space of Table 5: the paper's random sampling."""
    for number in range(count):
        while True:
            size, kernel, stride = rng.choice(TABLE5_SIZES), rng.choice(TABLE5_KERNELS), rng.choice(TABLE5_STRIDES)
            channels, out = rng.randint(*TABLE5_IN_CHANNELS), rng.randint(*TABLE5_OUT_CHANNELS)
            if (-(-size // stride)) ** 2 * channels * out * kernel**2 <= _MOST_RANDOM_MACS and kernel <= size:
                break
        b = GraphBuilder(f"random-{number}", (1, channels, size, size))
        yield b.build(b.relu(b.bn(b.conv(b.input, out, kernel, stride))))
