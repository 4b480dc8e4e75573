"""Builds layers that several families share."""

from __future__ import annotations

from edgeplan.graph.builder import GraphBuilder

CLASSES = 1000
IMAGE = (1, 3, 224, 224)


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
