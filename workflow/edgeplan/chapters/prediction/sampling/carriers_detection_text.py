"""Builds carriers of kinds that no family of Table 2 has: resizing (detectors' necks) and LSTMs (text recognisers).

They are drawn, not taken from published models, and are trained on beside the other carriers. What they span is what
predictors know of these kinds: square maps enlarged 2 or 4 times, by repeating pixels or linearly; LSTMs over one sequence,
forward or both ways.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

from edgeplan.graph.builder import GraphBuilder
from edgeplan.graph.ir import Graph
from edgeplan.graph.simplify import simplify

#: Kinds that are measured through them.
KINDS = frozenset({"resize", "resize_linear", "lstm"})
_NECKS, _RECOGNISERS = 32, 24
_LEVELS = 3
_COARSE_SIZES = (1, 2, 4, 6, 7, 8, 10, 13, 14)
_CHANNELS = (16, 640)
_MOST_ELEMENTS = 2_000_000
_FEATURES, _HIDDEN, _STEPS = (32, 768), (16, 320), (8, 160)
_CLASSES = (32, 4000)


def further_graphs(seed: int) -> Iterator[Graph]:
    """Yield all carriers of the family, the same for the same seed."""
    for number in range(_NECKS):
        yield simplify(_neck(f"neck-{number}", Random(f"{seed}/neck-{number}")))  # noqa: S311  not cryptography
    for number in range(_RECOGNISERS):
        yield simplify(_recogniser(f"recogniser-{number}", Random(f"{seed}/recogniser-{number}")))  # noqa: S311  likewise


def _between(rng: Random, bounds: tuple[int, int], multiple: int = 1) -> int:
    """Draw a number evenly on a logarithmic scale; half of them are a multiple, as in published models."""
    drawn = math.exp(rng.uniform(math.log(bounds[0]), math.log(bounds[1])))
    return round(drawn / multiple) * multiple if rng.random() < 0.5 and drawn >= multiple else round(drawn)


def _neck(name: str, rng: Random) -> Graph:
    """Build feature maps that grow from level to level, each joined with a convolution of itself or followed by one."""
    channels, size = _between(rng, _CHANNELS, 16), rng.choice(_COARSE_SIZES)
    b = GraphBuilder(name, (1, channels, size, size))
    x = b.conv_bn(b.input, channels, 1)
    for _ in range(_LEVELS):
        factor = 2 if rng.random() < 0.8 else 4
        if b.channels(x) * (b.shape(x)[2] * factor) ** 2 > _MOST_ELEMENTS:
            break
        y = b.upsample(x, factor, mode="nearest" if rng.random() < 0.6 else "linear")
        style = rng.choice(("alone", "sum", "joined"))
        lateral = b.conv_bn(y, b.channels(y) if style == "sum" else _between(rng, _CHANNELS, 16), 1)
        x = lateral if style == "alone" else b.add(y, lateral) if style == "sum" else b.concat([y, lateral])
        if rng.random() < 0.5 or style == "joined":
            x = b.conv_bn(x, _between(rng, _CHANNELS, 16), 1)
    return b.build(x)


def _recogniser(name: str, rng: Random) -> Graph:
    """Build a carrier in which one or two LSTMs read a line of features, each with a fully connected layer behind."""
    steps, features = _between(rng, _STEPS), _between(rng, _FEATURES, 16)
    b = GraphBuilder(name, (1, features, 1, steps))
    x = b.conv_bn(b.input, features, 1)
    x = b.transpose(b.squeeze(x, (2,)), (2, 0, 1))
    for _ in range(rng.choice((1, 2, 2))):
        hidden, both = _between(rng, _HIDDEN, 16), rng.random() < 0.6
        y = b.transpose(b.lstm(x, hidden, bidirectional=both), (0, 2, 1, 3))
        out = _between(rng, _CLASSES if rng.random() < 0.5 else _FEATURES)
        y = b.fc(b.reshape(y, (steps, hidden * (2 if both else 1))), out)
        x = b.reshape(y, (steps, 1, out))
    return b.build(x)
