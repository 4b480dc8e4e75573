"""Chooses kernels for steps that look at neighbours: pooling, normalisation over near channels, resizing, softmax."""

from __future__ import annotations

import math

from edgeplan.graph.steps import Step
from edgeplan.opencl.copies import LaunchChain
from edgeplan.opencl.launch import Argument, DeviceNumbers, Dispatch
from edgeplan.opencl.spaces import DeviceTensor, LackingError, Layouts, Shapes, Space, activation, by_row
from edgeplan.runtime.layouts import BLOCKED, NCHW

#: Codes of `sources/window.cl`.
_POOLING = {"max": 0, "avg_exclude_padding": 1, "avg_include_padding": 2}
_RESIZING = ("nearest", "linear")


def pool(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Launch windows over an image in blocks."""
    source, sizes = shapes[step.inputs[0]], [step.sizes(key) for key in ("kernel", "strides", "dilations")]
    if any(len(size) != len(source) - 2 for size in sizes) or len(source) != 4:  # an image
        raise LackingError(f"pooling of a tensor {source}")
    window: list[Argument] = [*(n for size in sizes for n in size), *step.sizes("pads_before")]
    kind = _POOLING[step.text("algorithm")]
    return _in_blocks(step, shapes, layouts, numbers, ("pool", [*window, kind]), math.prod(sizes[0]))


def lrn(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Normalise each value by the squares of near channels."""
    half = (step.integer("size") - 1) // 2
    if half > numbers.block:
        raise LackingError(f"normalisation over {step.integer('size')} channels")
    given: list[Argument] = [half, step.number("alpha") / step.integer("size"), step.number("beta"), step.number("bias")]
    return _in_blocks(step, shapes, layouts, numbers, ("lrn", given), step.integer("size"))


def resize(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Dispatch a change of height and width, by the centres of pixels."""
    if step.text("algorithm") not in _RESIZING:
        raise LackingError(f"a change of size that is {step.text('algorithm')}")
    linear = _RESIZING.index(step.text("algorithm"))
    return _in_blocks(step, shapes, layouts, numbers, ("resize", [linear]), 1 + 3 * linear)


def _in_blocks(
    step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers, kernel: tuple[str, list[Argument]], work: float
) -> Dispatch:
    """Dispatch a kernel of `window.cl`; images are put into blocks before it and out of them behind it if need be."""
    chain, (name, given) = LaunchChain(numbers), kernel
    source, target = activation(step, "input:0", shapes, layouts), activation(step, "output", shapes, layouts)
    source = chain.blocked(source)
    written = target if chain.in_blocks(target) else chain.temporary(target.shape, BLOCKED)
    _, channels, height, width = target.shape
    space = Space(-(-channels // numbers.block), height, width, channels, padded=True)
    arguments = [source.memory, source.place, written.memory, written.place, *source.shape[2:], height, width, channels]
    chain.launches.append(space.launch("window", name, numbers, [*arguments, *given]))
    done = space.work(chain.launches[-1], numbers.block, work)
    if written is not target:
        chain.copied(written, target)
    return chain.done(f"{step.kind}.blocked", done)


def softmax(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Build the softmax of each row along an axis of a row-major tensor."""
    chain, axis = LaunchChain(numbers), step.integer("axis")
    source, target = activation(step, "input:0", shapes, layouts), activation(step, "output", shapes, layouts)
    source = chain.plain(source)
    written = _plain_target(chain, target)
    shape = source.shape
    inner, outer = math.prod(shape[axis + 1 :]), math.prod(shape[:axis])
    logarithm = int(str(step.settings.get("algorithm", "accurate")) == "log")
    space = Space(1, outer, inner, shape[axis], padded=False)
    arguments = [source.memory, source.place, written.memory, written.place, shape[axis], inner, logarithm]
    if inner == 1:
        chain.launches.append(by_row("softmax", space, outer, numbers, arguments))
    else:  # the values of a row lie apart, those of many rows side by side
        chain.launches.append(space.launch("softmax", "softmax", numbers, arguments))
    done = space.work(chain.launches[-1], numbers.block, 1.0)
    if written is not target:
        chain.copied(written, target)
    return chain.done("softmax.rows", done)


def _plain_target(chain: LaunchChain, target: DeviceTensor) -> DeviceTensor:
    """Return the tensor that a row-major result is written to: the target, or a temporary one before it."""
    plain = len(target.shape) != 4 or target.layout == NCHW  # an image
    return target if plain else chain.temporary(target.shape, NCHW)
