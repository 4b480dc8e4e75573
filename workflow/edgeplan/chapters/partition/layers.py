"""Single layers: what is sampled to learn from, and what splits are tried on."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Lowered, PostOp, Step
from edgeplan.runtime.layouts import BLOCKED, NCHW

LINEAR, CONV = "linear", "conv"
#: Both kinds of layers, as the paper's tables have them.
KINDS = (LINEAR, CONV)
#: So many channels are those of an image.
IMAGE_CHANNELS = 4
_FLOAT_BYTES = 4
#: Keeps values between the layers of a chain in bounds, whatever the weights.
_CLIP = PostOp("eltwise", "clip", 0.0, 1.0)


@dataclass(frozen=True, slots=True, order=True)
class LayerShape:
    """A linear layer, or a convolution with as many zeros around as half its window.

    The input of a linear layer is its rows high and 1 wide; windows and strides are 1 there. `window_width` is 0 where it is
    the height of the window.
    """

    kind: str
    height: int
    width: int
    inputs: int
    outputs: int
    window: int = 1
    stride: int = 1
    window_width: int = 0

    @classmethod
    def linear(cls, rows: int, inputs: int, outputs: int) -> Self:
        """A product of `rows` x `inputs` and `inputs` x `outputs`."""
        return cls(LINEAR, rows, 1, inputs, outputs)

    @property
    def kernel(self) -> tuple[int, int]:
        """Height and width of the window."""
        return self.window, self.window_width or self.window

    @property
    def out_size(self) -> tuple[int, int]:
        """Height and width of the output."""
        if self.kind == LINEAR:
            return self.height, self.width
        return (self.height - 1) // self.stride + 1, (self.width - 1) // self.stride + 1

    @property
    def macs(self) -> int:
        """Return the number of multiply-adds."""
        high, wide = self.out_size
        return high * wide * self.weights

    @property
    def flops(self) -> int:
        """Return the number of operations, two for each multiply-add."""
        return 2 * self.macs

    @property
    def weights(self) -> int:
        """Return the number of weights, the bias apart."""
        return self.inputs * self.outputs * math.prod(self.kernel)

    @property
    def weight_bytes(self) -> int:
        """Return the bytes of the weights."""
        return _FLOAT_BYTES * self.weights

    def part(self, outputs: int) -> LayerShape:
        """The layer with some of its output channels alone."""
        return LayerShape(
            self.kind, self.height, self.width, self.inputs, outputs, self.window, self.stride, self.window_width
        )  # `replace` takes ten times as long, and a plan asks for hundreds

    @property
    def name(self) -> str:
        """Return a short and unique name."""
        if self.kind == LINEAR:
            return f"linear-{self.height}x{self.inputs}x{self.outputs}"
        window = f"{self.window}x{self.window_width}" if self.window_width else self.window
        return f"conv-{self.height}x{self.width}x{self.inputs}-{self.outputs}-k{window}s{self.stride}"

    @property
    def in_shape(self) -> Shape:
        """Return the shape of the input."""
        return (self.height, self.inputs) if self.kind == LINEAR else (1, self.inputs, self.height, self.width)

    @property
    def out_shape(self) -> Shape:
        """Return the shape of the output."""
        return (self.height, self.outputs) if self.kind == LINEAR else (1, self.outputs, *self.out_size)

    @property
    def weight_shape(self) -> Shape:
        """Shape of the weights, outputs first."""
        return (self.outputs, self.inputs, *(self.kernel if self.kind == CONV else ()))

    def step(self, name: str) -> Step:
        """The layer as a step that reads `<name>.in` and writes `<name>.out`, its weights `<name>.weight` and `<name>.bias`."""
        weights = MappingProxyType({"weight": f"{name}.weight", "bias": f"{name}.bias"})
        settings: dict[str, int | float | str | tuple[int, ...]]
        if self.kind == LINEAR:
            settings = {"transposed": 1, "alpha": 1.0, "beta": 1.0}
        else:
            pads = (self.kernel[0] // 2, self.kernel[1] // 2)
            settings = {
                "groups": 1, "kernel": self.kernel, "strides": (self.stride,) * 2, "dilations": (1, 1),
                "pads_before": pads, "pads_after": pads,
            }  # fmt: skip
        kind = "fc" if self.kind == LINEAR else "conv"
        return Step(name, kind, (name,), (f"{name}.in",), (f"{name}.out",), weights, MappingProxyType(settings), (_CLIP,))

    def layouts(self, name: str) -> dict[str, str]:
        """Layouts of what the step of that name reads and writes: images row-major, as a model's inputs are."""
        if self.kind == LINEAR:
            return {f"{name}.in": NCHW, f"{name}.out": NCHW}
        return {f"{name}.in": NCHW if self.inputs <= IMAGE_CHANNELS else BLOCKED, f"{name}.out": BLOCKED}

    def shapes(self, name: str) -> dict[str, Shape]:
        """Shapes of what the step of that name reads and writes."""
        return {
            f"{name}.in": self.in_shape,
            f"{name}.out": self.out_shape,
            f"{name}.weight": self.weight_shape,
            f"{name}.bias": (self.outputs,),
        }


def layer_of(step: Step, shapes: Mapping[str, Shape]) -> LayerShape | None:
    """The layer that a step of a model is, None if it is none of these kinds.

    Windows and strides of one size in both directions, groups of one, no dilations. Its input is as large as its output and
    the strides say: zeros around it count as pixels where they do not make up half a window.
    """
    if step.kind == "fc":
        weight, target = shapes[step.weights["weight"]], shapes[step.outputs[0]]
        return LayerShape.linear(math.prod(target[:-1]), weight[1 if step.integer("transposed") else 0], target[-1])
    if step.kind != "conv":
        return None
    source, target = shapes[step.inputs[0]], shapes[step.outputs[0]]
    if len(target) != 4 or target[0] != 1 or step.integer("groups") != 1:  # of images, one at a time
        return None
    kernel, strides = step.sizes("kernel"), step.sizes("strides")
    if set(step.sizes("dilations")) != {1} or len(set(strides)) > 1:
        return None
    wide = kernel[1] if kernel[1] != kernel[0] else 0
    return LayerShape(CONV, target[2] * strides[0], target[3] * strides[0], source[1], target[1], kernel[0], strides[0], wide)


def lowered(name: str, layers: Sequence[LayerShape]) -> Lowered:
    """Layers as steps `0`, `1`, ..., none of which reads what another wrote."""
    shapes = {key: shape for k, layer in enumerate(layers) for key, shape in layer.shapes(str(k)).items()}
    return Lowered(name, tuple(layer.step(str(k)) for k, layer in enumerate(layers)), (), (), MappingProxyType(shapes))


def layouts(layers: Sequence[LayerShape]) -> Mapping[str, str]:
    """Layouts of what the steps of `lowered` read and write."""
    return MappingProxyType({key: layout for k, layer in enumerate(layers) for key, layout in layer.layouts(str(k)).items()})


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
    linear = itertools.starmap(LayerShape.linear, itertools.product(_LINEAR_SIZES, repeat=3))
    return sorted({v for v in (linear if kind == LINEAR else _all_convs(divisors)) if flops[0] <= v.flops <= flops[1]})


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
