"""Variants say how primitives are asked for; descriptors describe the activations and weights of one model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.runtime import constants
from edgeplan.runtime.dnnl import Dnnl, Handle
from edgeplan.runtime.layouts import tag


@dataclass(frozen=True, slots=True)
class Variant:
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


@dataclass(frozen=True, slots=True)
class Operand:
    """An activation that a primitive reads or writes: which argument, which tensor, with which descriptor."""

    argument: int
    tensor: str
    layout: str
    descriptor: Handle


@dataclass(frozen=True, slots=True)
class Slot:
    """A weight a primitive reads: its argument, and the descriptor of its values in the ONNX file's order."""

    argument: int
    source: Handle
    index: int = 0  # among the weights descriptors of the primitive
    chosen: bool = False  # whether the implementation chooses the layout
    target: Handle | None = None  # descriptor of its values as the primitive reads them, where that is another and not chosen


@dataclass(frozen=True, slots=True)
class Described:
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
    """

    def __init__(self, dnnl: Dnnl, shapes: Mapping[str, Shape]) -> None:
        self.dnnl = dnnl
        self.shapes = shapes

    def activation(self, tensor: str, layout: str) -> Handle:
        """Return the descriptor of an activation."""
        return self.plain(self.shapes[tensor], layout)

    def plain(self, shape: Shape, layout: str = "nchw") -> Handle:
        """Descriptor of a shape, row-major unless it is 4-D and the layout another."""
        return self.dnnl.descriptor(shape, tag(shape, layout, self.dnnl.info.block))

    def per_channel(self, step: Step) -> Handle:
        """Descriptor of one value for each channel, of the rank of the step's input."""
        shape = self.shapes[step.inputs[0]]
        return self.plain((1, shape[1], *[1] * (len(shape) - 2)))

    def conv_weights(self, step: Step) -> Shape:
        """Shape of a convolution's weights as oneDNN takes them: groups first."""
        out, inner, *kernel = self.shapes[step.weights["weight"]]
        groups = step.integer("groups")
        return (out, inner, *kernel) if groups == 1 else (groups, out // groups, inner, *kernel)
