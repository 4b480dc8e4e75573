"""Which layers are measured: samples to learn from (LiPG, section 5.2) and layers to split (section 5.3). Pure and seeded."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence

from edgeplan.chapters.partition.layers import CONV, LINEAR, LayerShape

_WINDOWS, _STRIDES = (1, 3, 5, 7), (1, 2)
#: Intervals [2^k, 2^(k+1)] that sizes are drawn from: k of 2 to 9 in the paper. The layers of section 5.3 and of models go
#: beyond them: one row, 4096 channels and more, images of 224 pixels.
_ROWS, _INPUTS, _CHANNELS, _SIZES = range(12), range(2, 13), range(2, 12), range(2, 8)
#: One convolution in so many reads an image of three channels, one has a window of unequal sides, as models have them.
_IMAGES, _UNEQUAL = 12, 8
_IMAGE_SIZES, _IMAGE_OUTPUTS = range(5, 8), range(3, 7)
#: Convolutions of section 5.3: resolutions and channels of the first of four stages.
_RESOLUTIONS, _STAGE_CHANNELS, _STAGES = (64, 56, 48, 40), (256, 320, 384, 448, 512), 4
_LINEAR_SIZES = sorted({i * 2**j for i in (4, 5, 6) for j in range(2, 10)})
#: One linear layer in so many has one row and many weights, as models end with them.
_SINGLE_ROWS = 8
_ROW_INPUTS, _ROW_OUTPUTS = range(8, 14), range(6, 13)
#: More weights are beside what is asked, and than the pool has that chains take them from.
_MOST_WEIGHTS = 40 << 20
#: Layers of every chain of samples. How long they take beside their median over all chains says how fast the machine was in
#: these seconds: on machines that others share it changes by more than predictors err.
ANCHORS = (
    LayerShape.linear(128, 512, 512),
    LayerShape(CONV, 28, 28, 64, 96, 3),
    LayerShape(CONV, 14, 14, 256, 256),
    LayerShape(CONV, 20, 20, 48, 64, 5),
)


def sampled(kind: str, count: int, flops: tuple[float, float], seed: int) -> tuple[LayerShape, ...]:
    """Different layers, each size from an interval that is drawn first, then uniformly within it."""
    rng = random.Random(f"{seed} {kind} samples")  # noqa: S311  no secrets
    draw = _linear if kind == LINEAR else _conv
    found: dict[LayerShape, None] = {}
    while len(found) < count:
        layer = draw(rng)
        if flops[0] <= layer.flops <= flops[1] and layer.weights <= _MOST_WEIGHTS:
            found[layer] = None
    return tuple(found)


def _size(rng: random.Random, powers: range) -> int:
    power = rng.choice(powers)
    return rng.randint(2**power, 2 ** (power + 1))


def _linear(rng: random.Random) -> LayerShape:
    if rng.randrange(_SINGLE_ROWS) == 0:
        return LayerShape.linear(1, _size(rng, _ROW_INPUTS), _size(rng, _ROW_OUTPUTS))
    return LayerShape.linear(_size(rng, _ROWS), _size(rng, _INPUTS), _size(rng, _CHANNELS))


def _conv(rng: random.Random) -> LayerShape:
    image = rng.randrange(_IMAGES) == 0
    height, width = (_size(rng, _IMAGE_SIZES if image else _SIZES) for _ in range(2))
    inputs, outputs = 3 if image else _size(rng, _CHANNELS), _size(rng, _IMAGE_OUTPUTS if image else _CHANNELS)
    window, stride = rng.choice(_WINDOWS), rng.choice(_STRIDES)
    if rng.randrange(_UNEQUAL) == 0 and window > 1:
        return LayerShape(CONV, height, width, inputs, outputs, *rng.choice([(1, 1, window), (window, 1, 1)]))
    return LayerShape(CONV, height, width, inputs, outputs, window, stride)


def layers(kind: str, count: int, flops: tuple[float, float], divisors: Sequence[int], seed: int) -> tuple[LayerShape, ...]:
    """Layers to split: a seeded choice of all that the rules of section 5.3 give."""
    every = all_layers(kind, flops, divisors)
    rng = random.Random(f"{seed} {kind} layers")  # noqa: S311  no secrets
    return tuple(rng.sample(every, min(count, len(every))))


def all_layers(kind: str, flops: tuple[float, float], divisors: Sequence[int]) -> list[LayerShape]:
    """Return all layers of a kind by the rules of section 5.3, sorted."""
    make: Callable[[], Iterator[LayerShape]] = _all_linear if kind == LINEAR else lambda: _all_convs(divisors)
    return sorted({layer for layer in make() if flops[0] <= layer.flops <= flops[1]})


def _all_linear() -> Iterator[LayerShape]:
    for rows, inputs, outputs in itertools.product(_LINEAR_SIZES, repeat=3):
        yield LayerShape.linear(rows, inputs, outputs)


def _all_convs(divisors: Sequence[int]) -> Iterator[LayerShape]:
    for stage, (window, divisor) in itertools.product(range(_STAGES), zip(_WINDOWS, divisors, strict=True)):
        channels = [c * 2**stage // divisor for c in _STAGE_CHANNELS]
        for resolution, stride in itertools.product(_RESOLUTIONS, _STRIDES):
            size = resolution // 2**stage
            for inputs, outputs in itertools.product(channels, repeat=2):
                yield LayerShape(CONV, size, size, inputs, outputs, window, stride)


def chains(found: Sequence[LayerShape], length: int, most_bytes: float) -> Iterator[tuple[LayerShape, ...]]:
    """Layers in their order, as many in a chain as there may be, and at least one."""
    chain: list[LayerShape] = []
    size = 0
    for layer in found:
        if chain and (len(chain) >= length or size + layer.weight_bytes > most_bytes):
            yield tuple(chain)
            chain, size = [], 0
        chain.append(layer)
        size += layer.weight_bytes
    if chain:
        yield tuple(chain)


def anchored(chain: Sequence[LayerShape]) -> tuple[tuple[LayerShape, ...], tuple[int, ...]]:
    """A chain with `ANCHORS` spread over it, and of each layer its place in the chain; of anchor k it is -1 - k."""
    found, places = [*chain], [*range(len(chain))]
    for k in reversed(range(len(ANCHORS))):
        at = round((k + 0.5) * len(chain) / len(ANCHORS))
        found.insert(at, ANCHORS[k])
        places.insert(at, -1 - k)
    return tuple(found), tuple(places)


def splits(outputs: int, step: int) -> tuple[int, ...]:
    """Channels of the CPU in every split of a layer, in steps: 0 and all of them apart."""
    return tuple(range(step, outputs, step))
