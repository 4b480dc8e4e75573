"""Chooses kernels for steps that copy: joined, cut, shuffled, transposed, or put in another layout or shape; and for windows.

These look at neighbours: pooling, normalisation over near channels, resizing, softmax. Where a layout is none of theirs, copies
go before or behind them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

from msgspec import structs

from edgeplan.graph.steps import Step
from edgeplan.opencl.launch import ArenaOffset, Argument, DeviceNumbers, Dispatch, Memory, Packing
from edgeplan.opencl.spaces import (
    Channels,
    DeviceTensor,
    LackingError,
    LaunchChain,
    Layouts,
    Shapes,
    Space,
    by_row,
    ceil,
    image_strides,
    is_blocked,
    plain_strides,
    rows,
)
from edgeplan.runtime.layouts import BLOCKED, NCHW

_RANK, _CHANNELS, _ROW_AXIS = 4, 1, 2
_PACKED = 2  # constants of a step
#: Codes of `sources/window.cl`.
_POOLING = {"max": 0, "avg_exclude_padding": 1, "avg_include_padding": 2}
_RESIZING = ("nearest", "linear")


def concat(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Copy each input, or constant, to its place in the output, in order: a block that two share is written by both."""
    chain, axis = LaunchChain(step, shapes, layouts, numbers), step.integer("axis")
    target = chain.tensor("output")
    sources = [chain.tensor(f"input:{index}") for index in range(len(step.inputs))]
    held = 0
    for place, name in sorted((int(role.removeprefix("part_")), name) for role, name in step.weights.items()):
        sources.insert(place, DeviceTensor(Memory.weights, held, shapes[name], NCHW))
        held += math.prod(shapes[name])
    if len(step.weights) > _PACKED or any(one.shape[0] != target.shape[0] for one in sources if axis):
        raise LackingError("several constants that are joined with activations, or for a batch")
    start = 0
    for source in sources:
        if _images([target, *sources], axis, numbers.block):
            _pasted(chain, source, target, axis, start)
        else:
            _row_part(chain, source, target, axis, (0, start))
        start += source.shape[axis]
    if held:
        chain.packing = Packing("in_a_row", held)
    return chain.done("concat.move")


def split(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Copy each output from its place in the input."""
    chain, axis = LaunchChain(step, shapes, layouts, numbers), step.integer("axis")
    source = chain.tensor("input:0")
    targets = [chain.tensor(f"output:{index}") for index in range(len(step.outputs))]
    start = step.integer("start") if "start" in step.settings else 0
    for target in targets:
        if _images([source, *targets], axis, numbers.block):
            _cut(chain, source, target, axis, start)
        else:
            _row_part(chain, source, target, axis, (start, 0))
        start += target.shape[axis]
    return chain.done("split.move")


def _images(tensors: Sequence[DeviceTensor], axis: int, block: int) -> bool:
    """Tell whether any of the tensors is in blocks, so that all are walked through as images."""
    if not any(is_blocked(one, block) for one in tensors):
        return False
    if axis == 0 or any(len(one.shape) != _RANK or one.shape[0] != 1 for one in tensors):
        raise LackingError("this along the first axis of images, or of several")
    return True


def _from(tensor: DeviceTensor, elements: int) -> DeviceTensor:
    place = tensor.place
    at = replace(place, extra=place.extra + elements) if isinstance(place, ArenaOffset) else place + elements
    return replace(tensor, place=at)


def _space(part: DeviceTensor, blocks: int, lanes: int, *, padded: bool, flat: bool) -> Space:
    _, _, height, width = part.shape
    return Space(blocks, 1 if flat else height, height * width if flat else width, lanes, padded)


def _pasted(chain: LaunchChain, source: DeviceTensor, target: DeviceTensor, axis: int, start: int) -> None:
    """Copy an image to its place along an axis of another."""
    block, channels = chain.numbers.block, source.shape[1]
    read, out = image_strides(source, source.shape, block), image_strides(target, target.shape, block)
    padded = is_blocked(target, block)
    by_channel = axis == _CHANNELS
    if not by_channel or not padded:
        space = _space(source, ceil(channels, block), channels, padded=padded, flat=by_channel)
        place = _from(target, start * out[3 if by_channel else axis - 1])
        chain.moved((source, read), (place, out), space, Channels(channels))
        return
    first, last = start // block, ceil(start + channels, block)
    space = _space(source, last - first, target.shape[1] - first * block, padded=True, flat=True)
    place = _from(target, first * out[0])
    chain.moved((source, read), (place, out), space, Channels(channels, first * block - start))


def _cut(chain: LaunchChain, source: DeviceTensor, target: DeviceTensor, axis: int, start: int) -> None:
    block, channels = chain.numbers.block, target.shape[1]
    read, out = image_strides(source, source.shape, block), image_strides(target, target.shape, block)
    by_channel = axis == _CHANNELS
    padded = is_blocked(target, block)
    space = _space(target, ceil(channels, block), channels, padded=padded, flat=by_channel)
    place = source if by_channel else _from(source, start * read[axis - 1])
    chain.moved((place, read), (target, out), space, Channels(source.shape[1], start if by_channel else 0))


def _row_part(chain: LaunchChain, source: DeviceTensor, target: DeviceTensor, axis: int, starts: tuple[int, int]) -> None:
    """Copy bytes between two row-major tensors, of which one is a part of the other."""
    block, inner = chain.numbers.block, math.prod(source.shape[axis + 1 :])
    outer = math.prod(source.shape[:axis])
    lanes = min(source.shape[axis], target.shape[axis]) * inner
    read, out = ((block, 0, tensor.shape[axis] * inner, 1) for tensor in (source, target))
    space = Space(ceil(lanes, block), 1, outer, lanes, padded=False)
    places = [_from(tensor, start * inner) for tensor, start in zip((source, target), starts, strict=True)]
    chain.moved((places[0], read), (places[1], out), space, Channels(lanes))


def shuffle(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Copy channels of several groups, in turn."""
    chain, groups = LaunchChain(step, shapes, layouts, numbers), step.integer("groups")
    source, target = chain.ends()
    chain.in_blocks(source)  # an image, in blocks or not
    block, channels = numbers.block, source.shape[1]
    read, out = (image_strides(one, one.shape, block) for one in (source, target))
    space = _space(target, ceil(channels, block), channels, padded=is_blocked(target, block), flat=True)
    chain.moved((source, read), (target, out), space, Channels(channels, 0, groups, channels // groups))
    return chain.done("shuffle.move")


def reshape(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Copy the same values in row-major order, whatever the two layouts."""
    chain = LaunchChain(step, shapes, layouts, numbers)
    source, target = chain.ends()
    before, after = (is_blocked(one, numbers.block) for one in (source, target))
    if before and after:
        source, before = chain.plain(source), False
    if before:
        chain.copied(source, replace(target, shape=source.shape, layout=NCHW))
    elif after:
        chain.copied(replace(source, shape=target.shape, layout=NCHW), target)
    else:
        flat = (math.prod(source.shape),)
        chain.copied(replace(source, shape=flat), replace(target, shape=flat))
    return chain.done("reshape.move")


def transpose(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Copy axes in another order, between row-major tensors."""
    chain, permutation = LaunchChain(step, shapes, layouts, numbers), step.sizes("permutation")
    source, target = chain.ends()
    source = chain.plain(source)
    written = target if not is_blocked(target, numbers.block) else chain.temporary(target.shape, NCHW)
    own = plain_strides(source.shape, source.shape)
    strides = [plain_strides(target.shape, target.shape), [own[axis] for axis in permutation]]
    space, (out, read) = rows(target.shape, strides, numbers.block)
    chain.moved((source, read), (written, out), space, Channels(space.lanes))
    if written is not target:
        chain.copied(written, target)
    return chain.done("transpose.move")


def cut_rows(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Copy rows of an image to a tensor of their own."""
    settings = MappingProxyType({"axis": _ROW_AXIS, "start": step.integer("start")})
    return split(structs.replace(step, kind="split", settings=settings), shapes, layouts, numbers)


def paste_rows(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Copy rows to their place in an image."""
    chain = LaunchChain(step, shapes, layouts, numbers)
    source, target = chain.ends()
    chain.in_blocks(target)  # one image
    _pasted(chain, source, target, _ROW_AXIS, step.integer("start"))
    return chain.done("paste_rows.move")


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
    chain, (name, given) = LaunchChain(step, shapes, layouts, numbers), kernel
    source, target = chain.ends()
    source = chain.blocked(source)
    written = target if chain.in_blocks(target) else chain.temporary(target.shape, BLOCKED)
    _, channels, height, width = target.shape
    space = Space(ceil(channels, numbers.block), height, width, channels, padded=True)
    arguments = [source.memory, source.place, written.memory, written.place, *source.shape[2:], height, width, channels]
    chain.launches.append(space.launch("window", name, numbers, [*arguments, *given]))
    done = space.work(chain.launches[-1], numbers.block, work)
    if written is not target:
        chain.copied(written, target)
    return chain.done(f"{step.kind}.blocked", done)


def softmax(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> Dispatch:
    """Build the softmax of each row along an axis of a row-major tensor."""
    chain, axis = LaunchChain(step, shapes, layouts, numbers), step.integer("axis")
    source, target = chain.ends()
    source = chain.plain(source)
    plain = len(target.shape) != _RANK or target.layout == NCHW  # no image, or a row-major one
    written = target if plain else chain.temporary(target.shape, NCHW)
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
