"""Holds what builders of families share: layers, and the free dimensions, which they ask `Choices` for.

A builder is written once, with the published sizes as defaults. `Choices()` answers with the defaults and notes what was asked;
`Choices(channels, kernels)` answers from a variant's spec in the same order. So nothing but the builder says which layers are
free and which are tied: tied layers reuse one answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from edgeplan.graph.builder import GraphBuilder

CLASSES = 1000
IMAGE = (1, 3, 224, 224)
#: nn-Meter, section 3: output channels are resampled in [0.2, 1.8] x Cout (in tenths here: the bounds are exact) ...
LOWEST_TENTHS, HIGHEST_TENTHS = 2, 18
#: ... and kernel sizes from these.
KERNEL_SIZES = (1, 3, 5, 7, 9)


class Choices:
    """Answers a builder's questions, with the defaults or from a spec, and remembers the defaults it was asked."""

    def __init__(self, channels: Sequence[int] | None = None, kernels: Sequence[int] | None = None) -> None:
        self._channels = channels
        self._kernels = kernels
        self.channel_defaults: list[int] = []
        self.kernel_defaults: list[int] = []

    def channels(self, default: int) -> int:
        """Return the output channels of the next free layer: the base model's or the variant's."""
        self.channel_defaults.append(default)
        return default if self._channels is None else self._channels[len(self.channel_defaults) - 1]

    def kernel(self, default: int) -> int:
        """Return the kernel size of the next convolution; one of size 1 is no question and stays 1.

        With 1 x 1 convolutions resampled, MobileNetV1 variants would average thirty times the multiply-adds the paper reports.
        """
        if default == 1:
            return 1
        self.kernel_defaults.append(default)
        return default if self._kernels is None else self._kernels[len(self.kernel_defaults) - 1]


@dataclass(frozen=True, slots=True)
class Slots:
    """Lists every free dimension of a base model, in the order its builder asks."""

    channels: tuple[int, ...]
    kernels: tuple[int, ...]

    def draw(self, random: Random) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Draw channels and kernel sizes of a variant: each independent and uniform (nn-Meter, section 3)."""
        channels = tuple([random.randint(*channel_bounds(c)) for c in self.channels])
        return channels, tuple([random.choice(KERNEL_SIZES) for _ in self.kernels])


def channel_bounds(default: int) -> tuple[int, int]:
    """Return the smallest and largest channel count of a layer: within [0.2, 1.8] x the base's `default`, at least 1."""
    return max(1, -(-default * LOWEST_TENTHS // 10)), max(1, default * HIGHEST_TENTHS // 10)


def make_divisible(value: float, divisor: int = 8) -> int:
    """Round to the nearest multiple of `divisor`, at least `divisor` and 90 % of `value` (the MobileNets' rounding)."""
    rounded = max(divisor, int(value + divisor / 2) // divisor * divisor)
    return rounded + divisor if rounded < 0.9 * value else rounded


def kept_padding(kernel: int, base_kernel: int, base_padding: int) -> int:
    """Return the padding, 0 or more, with which a resampled kernel keeps the base kernel's output size."""
    return max(0, base_padding + (kernel - base_kernel) // 2)


def classifier(b: GraphBuilder, x: str, classes: int = CLASSES) -> str:
    """Add global average pooling and the last fully connected layer; its outputs are never resampled."""
    return b.fc(b.flatten(b.gap(x)), classes)
