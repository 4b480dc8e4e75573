"""Single layers: what is sampled to learn from, and what splits are tried on."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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

    Attributes:
        kind: `LINEAR` or `CONV`.
        height, width: of the input; of a linear layer its rows, and 1.
        inputs, outputs: channels.
        window, stride: of a convolution, else 1.
        window_width: where it is another than the height of the window, else 0.
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
