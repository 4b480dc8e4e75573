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
from edgeplan.opencl.launch import ArenaOffset, Argument, DeviceNumbers, Dispatch, Launch
from edgeplan.opencl.spaces import TRIED, Layouts, Maker, Shapes, refusal_of
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
#: Makers that say themselves what they lack.
_OTHERS: Mapping[str, Maker] = MappingProxyType(
    {
        **dict.fromkeys(("eltwise", "binary", "scale"), pointwise.pointwise_dispatch),
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
#: Kind of step -> (why a step is refused or "", its kernels).
KINDS: Mapping[str, tuple[Callable[[Step, Shapes, Layouts, DeviceNumbers], str], Callable[..., Dispatch]]] = MappingProxyType(
    {
        "conv": (convolutions.convolution_refusal, convolutions.conv_dispatch),
        "fc": (products.fc_refusal, products.fc),
        **{kind: (refusal_of(maker), maker) for kind, maker in _OTHERS.items()},
    }
)


def refusal(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> str:
    """Return why there are no kernels for a step, or ""."""
    if step.kind not in KINDS:
        return f"steps of kind {step.kind}"
    if (most := _most_elements(step, shapes)) > MOST_ELEMENTS:
        return f"a tensor of {most} elements, more than {MOST_ELEMENTS}"
    why = KINDS[step.kind][0](step, shapes, layouts, numbers)
    if why and _images_of(step, shapes) > 1:
        return KINDS[step.kind][0](step, _one_image(step, shapes), layouts, numbers)
    return why


def dispatch(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers, leading: int = 0) -> Dispatch:
    """Return the kernels of a step, or of a part of one whose weights and outputs are those of a range.

    `leading` are, of a fully connected step, columns of the tensor that its output is a range of; 0 for those of the output.
    """
    known = KINDS.get(step.kind)
    as_one = (
        known is not None and _most_elements(step, shapes) <= MOST_ELEMENTS and not known[0](step, shapes, layouts, numbers)
    )
    if not as_one and (why := refusal(step, shapes, layouts, numbers)):
        raise DeviceError(
            f"the OpenCL kernels lack {why}", where=f"step {step.name!r}", next_step="leave this step to the other processor"
        )
    make = KINDS[step.kind][1]
    if not as_one:  # of several images at once
        return _of_images(step, shapes, layouts, numbers, lambda one: make(step, one, layouts, numbers))
    if leading:
        return make(step, shapes, layouts, numbers, leading)
    return make(step, shapes, layouts, numbers)


def alternative_dispatches(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> dict[str, Dispatch]:
    """Return by name, to be timed, what computes the same for a convolution or a fully connected step."""
    found: dict[str, Dispatch] = {}
    if step.kind == "conv":
        found = convolutions.others(step, shapes, layouts, numbers)
    elif step.kind == "fc":
        for rows, vectors in TRIED[numbers.vector]:
            found[f"{rows} x {vectors}"] = products.fc(step, shapes, layouts, numbers, tile=(rows, vectors))
    own = dispatch(step, shapes, layouts, numbers).launches if found else ()
    return {name: other for name, other in found.items() if other.launches != own}


def _most_elements(step: Step, shapes: Shapes) -> int:
    return max(math.prod(shapes[name]) for name in (*step.reads, *step.outputs, *step.weights.values()))


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
    """Return the shapes of one image of a step."""
    tensors = dict.fromkeys((*step.reads, *step.outputs))
    return MappingProxyType({**shapes, **{t: (1, *shapes[t][1:]) for t in tensors}})


def _of_images(
    step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers, make: Callable[[Shapes], Dispatch]
) -> Dispatch:
    """Return the kernels of one image, for each of several."""
    count = _images_of(step, shapes)
    found = make(_one_image(step, shapes))
    names = {f"input:{k}": t for k, t in enumerate(step.inputs)} | {f"output:{k}": t for k, t in enumerate(step.outputs)}
    names |= {f"operand:{k}": p.tensor for k, p in enumerate(step.post_ops)} | {"output": step.outputs[0]}
    apart = {role: size_bytes(shapes[t], layouts[t], numbers.block) // _FLOAT_BYTES // count for role, t in names.items() if t}

    def moved(argument: Argument, image: int) -> Argument:
        if not isinstance(argument, ArenaOffset):
            return argument
        return replace(argument, extra=argument.extra + image * apart[argument.role])

    launches: list[Launch] = []
    for image in range(count):
        launches += [replace(one, arguments=tuple(moved(a, image) for a in one.arguments)) for one in found.launches]
    work = replace(found.work, pixels=found.work.pixels * count, padded_pixels=found.work.padded_pixels * count)
    return replace(found, launches=tuple(launches), work=work)
