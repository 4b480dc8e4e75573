"""Single operators, drawn to be sampled: what one reads and writes around a feature map of a drawn shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from types import MappingProxyType

from edgeplan.graph.ir import Attribute, Shape


@dataclass(frozen=True, slots=True)
class Single:
    """A single is an operator with the shapes of its tensors.

    Attributes:
        inputs: of its activations.
        output: of what it writes; parts of a split have names of their own.
        weights: of its weights, by role.
        attributes: of the operator.
        more: further outputs.
    """

    inputs: tuple[Shape, ...]
    output: Shape
    weights: Mapping[str, Shape] = field(default_factory=lambda: MappingProxyType({}))
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    more: tuple[Shape, ...] = ()


#: A single operator on a feature map (batch 1, channels, height, width; at least 4 channels) of which it is told the shape.
Draw = Callable[[Random, Shape], Single]
_MOST_TOKENS = 400


def same_shape(*choices: Mapping[str, Attribute]) -> Draw:
    """Draw an operator that writes a map of the shape that it reads; attributes are one of the choices."""
    return lambda rng, shape: Single((shape,), shape, attributes=rng.choice(choices) if choices else {})


def pair(rng: Random, shape: Shape) -> Single:
    """Build an operator on two maps, a map and a value for each channel, or a map and weights for each channel."""
    n, channels, *rest = shape
    second = (n, channels, *[1] * len(rest))
    return rng.choice(
        (
            Single((shape, shape), shape),
            Single((shape, second), shape),
            Single((shape,), shape, {"operand": second}),
        )
    )


def slope(_: Random, shape: Shape) -> Single:
    """Build an operator with a slope for each channel."""
    return Single((shape,), shape, {"slope": (shape[1], 1, 1)})


def by_channel(*roles: str) -> Draw:
    """Draw an operator with weights for each channel."""
    return lambda _, shape: Single((shape,), shape, dict.fromkeys(roles, (shape[1],)))


def image(_: Random, shape: Shape) -> Single:
    """Return the whole image reduced to a pixel."""
    return Single((shape,), (*shape[:2], 1, 1))


def reduced(rng: Random, shape: Shape) -> Single:
    """Along channels, rows or both axes of the image, which stay as axes of size 1."""
    axes = rng.choice(((1,), (3,), (2, 3)))
    out = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    return Single((shape,), out, attributes={"axes": axes, "keepdims": 1})


def joined(rng: Random, shape: Shape) -> Single:
    """Return two to four maps, over channels."""
    count = rng.randint(2, 4)
    return Single((shape,) * count, (shape[0], count * shape[1], *shape[2:]), attributes={"axis": 1})


def parted(rng: Random, shape: Shape) -> Single:
    """Build an operator that splits channels in two parts."""
    first = rng.randint(1, shape[1] - 1)
    parts = tuple((shape[0], size, *shape[2:]) for size in (first, shape[1] - first))
    return Single((shape,), parts[0], attributes={"axis": 1, "split": (first, shape[1] - first)}, more=parts[1:])


def sliced(rng: Random, shape: Shape) -> Single:
    """Half of the channels, or every second row."""
    axis, step = rng.choice(((1, 1), (2, 2)))
    end = shape[axis] // 2 if step == 1 else shape[axis]
    out = tuple(len(range(0, end, step)) if place == axis else size for place, size in enumerate(shape))
    return Single((shape,), out, attributes={"starts": (0,), "ends": (end,), "axes": (axis,), "steps": (step,)})


def padded(rng: Random, shape: Shape) -> Single:
    """Build an operator that pads the image with zeros."""
    n, channels, height, width = shape
    by = rng.randint(1, 3)
    pads = (0, 0, by, by, 0, 0, by, by)
    return Single((shape,), (n, channels, height + 2 * by, width + 2 * by), attributes={"pads": pads, "mode": "constant"})


def gathered(rng: Random, shape: Shape) -> Single:
    """Some of the channels, in any order."""
    indices = tuple(rng.sample(range(shape[1]), shape[1] // 2))
    return Single((shape,), (shape[0], len(indices), *shape[2:]), attributes={"axis": 1, "indices": indices})


def expanded(_: Random, shape: Shape) -> Single:
    """Return a pixel to an image."""
    return Single(((*shape[:2], 1, 1),), shape, attributes={"shape": shape})


def tiled(rng: Random, shape: Shape) -> Single:
    """Twice over channels or rows."""
    repeats = rng.choice(((1, 2, 1, 1), (1, 1, 2, 1)))
    out = tuple(size * times for size, times in zip(shape, repeats, strict=True))
    return Single((shape,), out, attributes={"repeats": repeats})


def to_space(_: Random, shape: Shape) -> Single:
    """Four channels to four pixels."""
    n, channels, height, width = shape
    return Single(
        ((n, channels // 4 * 4, height, width),), (n, channels // 4, 2 * height, 2 * width), attributes={"blocksize": 2}
    )


def to_depth(_: Random, shape: Shape) -> Single:
    """Four pixels to four channels."""
    n, channels, height, width = shape
    height, width = max(1, height // 2), max(1, width // 2)
    return Single(((n, channels, 2 * height, 2 * width),), (n, 4 * channels, height, width), attributes={"blocksize": 2})


def turned(rng: Random, shape: Shape) -> Single:
    """Channels last, channels first, or two axes exchanged."""
    order = rng.choice(((0, 2, 3, 1), (0, 3, 1, 2), (0, 2, 1, 3)))
    return Single((shape,), tuple(shape[axis] for axis in order), attributes={"perm": order})


def tokens(_: Random, shape: Shape) -> Single:
    """Return pixels as tokens, each normalised over its channels."""
    n, channels, height, width = shape
    rows = (n, height * width, channels)
    weights = {"scale": (channels,), "bias": (channels,)}
    return Single((rows,), rows, weights, {"axis": -1, "epsilon": 1e-5})


def grouped(rng: Random, shape: Shape) -> Single:
    """Return channels in groups, each normalised as a whole."""
    n, channels, *rest = shape
    groups = rng.choice((1, 2, 4))
    whole = (n, channels // groups * groups, *rest)
    weights = {"scale": whole[1:2], "bias": whole[1:2]}
    return Single((whole,), whole, weights, {"num_groups": groups, "epsilon": 1e-5})


def attention(rng: Random, shape: Shape) -> Single:
    """Return products of queries and keys, or of scores and values, head by head."""
    heads, length = rng.choice((1, 2, 4, 8)), min(_MOST_TOKENS, max(4, math.isqrt(math.prod(shape))))
    depth = rng.choice((16, 32, 64))
    query, key, scores = (1, heads, length, depth), (1, heads, depth, length), (1, heads, length, length)
    return Single((query, key), scores) if rng.random() < 0.5 else Single((scores, query), query)


def enlarged(rng: Random, shape: Shape) -> Single:
    """Return a transposed convolution of stride 2 to as many channels or half as many."""
    n, channels, height, width = shape
    kernel, pad = rng.choice(((2, 0), (4, 1)))
    out = max(4, rng.choice((channels, channels // 2)))
    attributes: dict[str, Attribute] = {
        "kernel_shape": (kernel, kernel), "strides": (2, 2), "pads": (pad, pad, pad, pad), "dilations": (1, 1), "group": 1,
    }  # fmt: skip
    return Single((shape,), (n, out, 2 * height, 2 * width), {"weight": (channels, out, kernel, kernel)}, attributes)
