"""Variants say how primitives are asked for; descriptors describe the activations and weights of one model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from types import MappingProxyType

import msgspec

from edgeplan.graph.shapes import FLOAT32, Shape
from edgeplan.graph.steps import INT8_FC, INT8_KINDS, SIDES, Step
from edgeplan.runtime import constants
from edgeplan.runtime.dnnl import SCALES, ZERO_POINTS, Dnnl, Handle, Mask
from edgeplan.runtime.layouts import tag

_SIDE_ARGUMENTS: Mapping[str, int] = MappingProxyType({"source": constants.ARG_SRC, "written": constants.ARG_DST})


class Variant(msgspec.Struct, frozen=True):
    """A variant says how a primitive is asked for.

    Attributes:
        source, output: layouts of the 4-D activations read and written.
        algorithm: of a convolution: `direct` or `winograd`; of a fully connected step also `convolution`.
        weights: `any` (the implementation chooses) or `plain` (as in the ONNX file).
    """

    source: str
    output: str
    algorithm: str = "direct"
    weights: str = "any"


class Operand(msgspec.Struct, frozen=True):
    """An activation that a primitive reads or writes: which argument, which tensor, with which descriptor."""

    argument: int
    tensor: str
    layout: str
    descriptor: Handle


class Slot(msgspec.Struct, frozen=True):
    """A weight a primitive reads: its argument, and the descriptor of its values in the ONNX file's order."""

    argument: int
    source: Handle
    index: int = 0  # among the weights descriptors of the primitive
    chosen: bool = False  # whether the implementation chooses the layout
    target: Handle | None = None  # descriptor of its values as the primitive reads them, where that is another and not chosen


class Described(msgspec.Struct, frozen=True):
    """A primitive descriptor with what it reads and writes."""

    descriptor: Handle
    reads: tuple[Operand, ...]
    writes: tuple[Operand, ...]
    slots: tuple[Slot, ...] = ()
    summed: str = ""  # the activation whose values the output must hold beforehand

    def target(self, dnnl: Dnnl, slot: Slot) -> int:
        """Descriptor of a weight as the current implementation reads it."""
        if not slot.chosen:
            return (slot.target or slot.source).value
        return dnnl.queried(self.descriptor, constants.QUERY_WEIGHTS_MD, slot.index)


class Descriptors:
    """Descriptors of one model's tensors.

    Args:
        dnnl: the library.
        shapes: shape of every tensor.
        types: element type of tensors that are not of float32.
    """

    def __init__(self, dnnl: Dnnl, shapes: Mapping[str, Shape], types: Mapping[str, str] = MappingProxyType({})) -> None:
        self.dnnl = dnnl
        self.shapes, self.types = shapes, types

    def activation(self, tensor: str, layout: str) -> Handle:
        """Return the descriptor of an activation."""
        return self.plain(self.shapes[tensor], layout, self.type_of(tensor))

    def type_of(self, tensor: str) -> str:
        """Return the element type of a tensor."""
        return self.types.get(tensor, FLOAT32)

    def plain(self, shape: Shape, layout: str = "nchw", dtype: str = FLOAT32) -> Handle:
        """Descriptor of a shape, row-major unless it is 4-D and the layout another."""
        return self.dnnl.descriptor(shape, tag(shape, layout, self.dnnl.info.block), dtype)

    def per_channel(self, step: Step) -> Handle:
        """Descriptor of one value for each channel, of the rank of the step's input."""
        shape = self.shapes[step.inputs[0]]
        return self.plain((1, shape[1], *[1] * (len(shape) - 2)))

    def conv_weights(self, step: Step) -> Shape:
        """Shape of a convolution's weights as oneDNN takes them: groups first."""
        out, inner, *kernel = self.shapes[step.weights["weight"]]
        groups = step.integer("groups")
        return (out, inner, *kernel) if groups == 1 else (groups, out // groups, inner, *kernel)

    def masks(self, step: Step) -> tuple[Mask, ...]:
        """Return what is told of the scales and zero points of a step in eight bits; nothing of others."""
        return tuple(Mask(kind, argument, axes) for kind, argument, axes, _ in self._scaling(step))

    def scaling_slots(self, step: Step) -> tuple[Slot, ...]:
        """Return the slots of the scales and zero points of a step in eight bits, in the order of `transform.folded`."""
        flags = {SCALES: constants.ARG_SCALES, ZERO_POINTS: constants.ARG_ZERO_POINTS}
        types = {SCALES: FLOAT32, ZERO_POINTS: "int32"}
        return tuple(
            Slot(flags[kind] | argument, self.plain((count,), dtype=types[kind]))
            for kind, argument, _, count in self._scaling(step)
        )

    def _scaling(self, step: Step) -> Iterator[tuple[str, int, int, int]]:
        """Yield the kind, the argument, the axes of several, and the count of scales and zero points."""
        if step.kind not in INT8_KINDS:
            return
        sides = [_SIDE_ARGUMENTS[side] for side in SIDES if f"{side}_scale" in step.weights]
        yield from ((SCALES, argument, 0, 1) for argument in sides)
        count = math.prod(self.shapes[step.weights["weight_scale"]])
        axes = 1 << 1 if step.kind == INT8_FC else 1 if step.integer("groups") == 1 else 1 | 1 << 1
        yield SCALES, constants.ARG_WEIGHTS, axes if count > 1 else 0, count
        yield from ((ZERO_POINTS, argument, 0, 1) for argument in sides)
