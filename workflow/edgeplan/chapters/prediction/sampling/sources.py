"""Draws the convolutions of carriers: from the prior, uniformly, or near configurations that are predicted badly."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from random import Random

from edgeplan.chapters.prediction.sampling.prior import (
    TABLE5_IN_CHANNELS,
    TABLE5_KERNELS,
    TABLE5_OUT_CHANNELS,
    TABLE5_SIZES,
    TABLE5_STRIDES,
    ConvPrior,
    ConvShape,
)

#: Algorithm 2, line 3: new channel numbers around a hard configuration.
FINE_GRAINED_RANGE = (0.4, 1.2)
#: No convolution of a walk above this many multiply-adds: it would cost more time than hundreds of others. Most are held to
#: the second limit; what lies between the two is sampled apart (`carriers_large_grouped.py`).
MAX_MACS = 4_000_000_000
TYPICAL_MACS = 400_000_000
_LARGE_SHARE = 0.06


class ConvSource(ABC):
    """Draws the convolutions of one carrier, in order."""

    @abstractmethod
    def start(self, rng: Random) -> tuple[int, int]:
        """Draw channels and size (height = width) of a carrier's input."""

    @abstractmethod
    def next(self, rng: Random, channels: int, size: int, *, depthwise: bool) -> ConvShape:
        """Draw the next convolution at a place with so many channels and that size; its `in_channels` may be others."""


def _within(shape: ConvShape, limit: int) -> ConvShape:
    """Return the same convolution with fewer output channels, if it would be too large."""
    if shape.macs <= limit or shape.depthwise:
        return shape
    channels = max(4, int(shape.out_channels * limit / shape.macs))
    return ConvShape(shape.size, shape.in_channels, channels, shape.kernel, shape.stride)


def _limit(rng: Random) -> int:
    return MAX_MACS if rng.random() < _LARGE_SHARE else TYPICAL_MACS


class PriorSource(ConvSource):
    """Draws convolutions from the prior distribution."""

    def __init__(self, prior: ConvPrior) -> None:
        self.prior = prior

    def start(self, rng: Random) -> tuple[int, int]:
        like = self.prior.start(rng)
        if like.in_channels == 3:  # an image: its channels are not scaled
            return 3, like.size
        return max(4, round(like.in_channels * rng.uniform(0.2, 1.8))), like.size

    def next(self, rng: Random, channels: int, size: int, *, depthwise: bool) -> ConvShape:
        kernel = self.prior.kernel(rng, size, channels, depthwise=depthwise)
        stride = self.prior.stride(rng, size, channels, depthwise=depthwise)
        if depthwise:
            return ConvShape(size, channels, channels, kernel, stride, depthwise=True)
        out = self.prior.out_channels(rng, size, channels)
        return _within(ConvShape(size, channels, out, kernel, stride), _limit(rng))


class PublishedSource(PriorSource):
    """Draws from the prior before it is spread: channels and kernels as published models have them, mostly multiples of 8.

    Engines run such channels in layouts and code of their own, which scaled channels seldom meet.
    """

    def start(self, rng: Random) -> tuple[int, int]:
        like = self.prior.start(rng)
        return like.in_channels, like.size

    def next(self, rng: Random, channels: int, size: int, *, depthwise: bool) -> ConvShape:
        kernel, stride, out = self.prior.published(rng, size, channels, depthwise=depthwise)
        return _within(ConvShape(size, channels, channels if depthwise else out, kernel, stride, depthwise), _limit(rng))


class UniformSource(ConvSource):
    """Draws as the paper's random baseline does: every dimension uniform over Table 5, whatever models use."""

    def start(self, rng: Random) -> tuple[int, int]:
        return rng.randint(*TABLE5_IN_CHANNELS), rng.choice(TABLE5_SIZES)

    def next(self, rng: Random, channels: int, size: int, *, depthwise: bool) -> ConvShape:
        kernel, stride = rng.choice(TABLE5_KERNELS), rng.choice(TABLE5_STRIDES)
        if depthwise:
            return ConvShape(size, channels, channels, kernel, stride, depthwise=True)
        return _within(ConvShape(size, channels, rng.randint(*TABLE5_OUT_CHANNELS), kernel, stride), MAX_MACS)


class FocusSource(ConvSource):
    """Draws near badly predicted configurations (Algorithm 2, lines 1-8): their size, kernel and stride, channels redrawn.

    Args:
        hard: configurations to sample around, each `fine_grained` times; drawn in random order without replacement.
    """

    def __init__(self, hard: Sequence[ConvShape], prior: ConvPrior) -> None:
        self._left = list(hard)
        self._fallback = PriorSource(prior)

    @property
    def exhausted(self) -> bool:
        """Tell whether every configuration has been drawn."""
        return not self._left

    def start(self, rng: Random) -> tuple[int, int]:
        if not self._left:
            return self._fallback.start(rng)
        around = rng.choice(self._left)
        return _redraw(rng, around.in_channels), around.size

    def next(self, rng: Random, channels: int, size: int, *, depthwise: bool) -> ConvShape:
        fitting = [s for s in self._left if s.size == size and s.depthwise == depthwise]
        if not fitting:
            return self._fallback.next(rng, channels, size, depthwise=depthwise)
        around = min(fitting, key=lambda s: abs(s.in_channels - channels))
        self._left.remove(around)
        low, high = (round(f * around.in_channels) for f in FINE_GRAINED_RANGE)
        cin = channels if depthwise or low <= channels <= high else _redraw(rng, around.in_channels)
        out = cin if depthwise else _redraw(rng, around.out_channels)
        # larger ones are dearer: what is learned about them per second of measuring is little
        return _within(ConvShape(size, cin, out, around.kernel, around.stride, depthwise), _limit(rng))


def _redraw(rng: Random, channels: int) -> int:
    if channels <= 3:  # an image
        return channels
    return max(4, round(channels * rng.uniform(*FINE_GRAINED_RANGE)))
