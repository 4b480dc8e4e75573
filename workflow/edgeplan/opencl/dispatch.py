"""Chooses, as a white-box dispatcher, the kernels that run a step, with tiles and groups, from shapes and numbers alone.

What it decides is known before anything is built, so predictors learn from it (LiPG, section 3.2). Of several images one
image's kernels are launched for each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from edgeplan.errors import DeviceError
from edgeplan.graph.steps import Step
from edgeplan.opencl import convolutions, copies, pointwise, products
from edgeplan.opencl.launch import ArenaOffset, Argument, DeviceNumbers, Dispatch
from edgeplan.opencl.spaces import TRIED, LackingError, Layouts, Shapes, tensor_of
from edgeplan.runtime.layouts import size_bytes

#: Of one tensor: kernels count elements, padding among them, in 32 bits.
MOST_ELEMENTS: Final = 1 << 29
_FLOAT_BYTES = 4
_RANK = 4
#: Kinds that compute images each for itself, with no constant that has a value for each.
_OF_IMAGES = frozenset(
    {
        *("conv", "pool", "lrn", "resize", "shuffle", "scale", "eltwise", "concat", "split", "softmax"),
        *("binary", "reshape", "transpose", "cut_rows", "paste_rows"),
    }
)
#: Kind of step -> what makes its kernels, or raises what they lack.
_MAKERS: Mapping[str, Callable[..., Dispatch]] = MappingProxyType(
    {
        **dict.fromkeys(("eltwise", "binary", "scale"), pointwise.pointwise_dispatch),
        "conv": convolutions.conv_dispatch,
        "fc": products.fc,
        "concat": copies.concat,
        "split": copies.split,
        "shuffle": copies.shuffle,
        "reshape": copies.reshape,
        "transpose": copies.transpose,
        "pool": copies.pool,
        "lrn": copies.lrn,
        "resize": copies.resize,
        "softmax": copies.softmax,
        "matmul": products.matmul,
        "layer_norm": products.layer_norm,
        "cut_rows": copies.cut_rows,
        "paste_rows": copies.paste_rows,
    }
)


def refusal(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> str:
    """Return why there are no kernels for a step, or ""."""
    try:
        _made(step, shapes, layouts, numbers)
    except LackingError as lacking:
        return str(lacking)
    return ""


def dispatch(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers, leading: int = 0) -> Dispatch:
    """Return the kernels of a step, or of a part of one whose weights and outputs are those of a range.

    `leading` are, of a fully connected step, columns of the tensor that its output is a range of; 0 for those of the output.
    """
    try:
        return _made(step, shapes, layouts, numbers, leading)
    except LackingError as lacking:
        what, instead = f"the OpenCL kernels lack {lacking}", "leave this step to the other processor"
        raise DeviceError(what, where=f"step {step.name!r}", next_step=instead) from lacking


def alternative_dispatches(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> dict[str, Dispatch]:
    """Return by name, to be timed, what computes the same for a convolution or a fully connected step."""
    if step.kind not in ("conv", "fc"):
        return {}
    own = dispatch(step, shapes, layouts, numbers).launches
    if step.kind == "fc":
        tiles = TRIED[numbers.vector]
        found = {f"{tile[0]} x {tile[1]}": products.fc(step, shapes, layouts, numbers, tile=tile) for tile in tiles}
    else:
        of_one = convolutions.others(step, _one_image(step, shapes), layouts, numbers)
        found = {name: _of_images(step, shapes, layouts, numbers.block, other) for name, other in of_one.items()}
    return {name: other for name, other in found.items() if other.launches != own}


def _made(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers, leading: int = 0) -> Dispatch:
    if step.kind not in _MAKERS:
        raise LackingError(f"steps of kind {step.kind}")
    most = max(math.prod(shapes[name]) for name in (*step.reads, *step.outputs, *step.weights.values()))
    if most > MOST_ELEMENTS:
        raise LackingError(f"a tensor of {most} elements, more than {MOST_ELEMENTS}")
    make = _MAKERS[step.kind]
    try:
        return make(step, shapes, layouts, numbers, *([leading] if leading else []))
    except LackingError:
        if _images_of(step, shapes) == 1:
            raise
    return _of_images(step, shapes, layouts, numbers.block, make(step, _one_image(step, shapes), layouts, numbers))


def _images_of(step: Step, shapes: Shapes) -> int:
    """Count the images that a step computes each for itself; 1 where it cannot be launched for one at a time."""
    tensors = [*step.reads, *step.outputs]
    counts = {shapes[t][0] if shapes[t] else 1 for t in tensors}
    images = any(len(shapes[t]) == _RANK for t in tensors)
    mixed = step.settings.get("axis") == 0 or (step.kind == "transpose" and step.sizes("permutation")[0] != 0)
    constant = step.weights.get("operand", "") if step.kind == "binary" else ""
    of_each = constant and len(shapes[constant]) == len(shapes[step.outputs[0]]) and shapes[constant][0] != 1
    able = step.kind in _OF_IMAGES and images and len(counts) == 1 and not mixed and not of_each
    return counts.pop() if able else 1


def _one_image(step: Step, shapes: Shapes) -> Shapes:
    return {**shapes, **{tensor: (1, *shapes[tensor][1:]) for tensor in (*step.reads, *step.outputs)}}


def _of_images(step: Step, shapes: Shapes, layouts: Layouts, block: int, found: Dispatch) -> Dispatch:
    """Return the kernels of one image, for each of those that a step has."""
    count = _images_of(step, shapes)

    def moved(argument: Argument, image: int) -> Argument:
        if not isinstance(argument, ArenaOffset):
            return argument
        tensor = tensor_of(step, argument.role)
        apart = size_bytes(shapes[tensor], layouts[tensor], block) // _FLOAT_BYTES // count
        return replace(argument, extra=argument.extra + image * apart)

    launches = tuple(
        replace(one, arguments=tuple(moved(argument, image) for argument in one.arguments))
        for image in range(count)
        for one in found.launches
    )
    work = replace(found.work, pixels=found.work.pixels * count, padded_pixels=found.work.padded_pixels * count)
    return replace(found, launches=launches, work=work)
