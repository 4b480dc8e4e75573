"""Chooses, as a white-box dispatcher, the kernels that run a step, with tiles and groups, from shapes and numbers alone.

What it decides is known before anything is built, so predictors learn from it (LiPG, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from edgeplan.errors import DeviceError
from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.opencl import batches, convolutions, copies, linear, pointwise, products, windows
from edgeplan.opencl.launch import DeviceNumbers, Dispatch
from edgeplan.opencl.spaces import Maker, refusal_of
from edgeplan.opencl.tiles import TRIED

Shapes = Mapping[str, Shape]
Layouts = Mapping[str, str]
#: Of one tensor: kernels count elements, padding among them, in 32 bits.
MOST_ELEMENTS: Final = 1 << 29


#: Makers that say themselves what they lack.
_OTHERS: Mapping[str, Maker] = MappingProxyType(
    {
        **dict.fromkeys(("eltwise", "binary", "scale"), pointwise.dispatch),
        "concat": copies.concat,
        "split": copies.split,
        "shuffle": copies.shuffle,
        "reshape": copies.reshape,
        "transpose": copies.transpose,
        "pool": windows.pool,
        "lrn": windows.lrn,
        "resize": windows.resize,
        "softmax": windows.softmax,
        "matmul": products.matmul,
        "layer_norm": products.layer_norm,
        "cut_rows": batches.cut_rows,
        "paste_rows": batches.paste_rows,
    }
)
#: Kind of step -> (why a step is refused or "", its kernels).
KINDS: Mapping[str, tuple[Callable[[Step, Shapes, Layouts, DeviceNumbers], str], Callable[..., Dispatch]]] = MappingProxyType(
    {
        "conv": (convolutions.refusal, convolutions.dispatch),
        "fc": (linear.refusal, linear.dispatch),
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
    if why and batches.images_of(step, shapes) > 1:
        return KINDS[step.kind][0](step, batches.one_image(step, shapes), layouts, numbers)
    return why


def dispatch(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers, leading: int = 0) -> Dispatch:
    """Return the kernels of a step.

    Args:
        step: the step, or a part of one whose weights and outputs are those of a range.
        shapes: shape of every tensor.
        layouts: layout of every activation.
        numbers: numbers of the device.
        leading: of a fully connected step: columns of the tensor that its output is a range of; 0 for those of the output.
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
        return batches.of_images(step, shapes, layouts, numbers, lambda one: make(step, one, layouts, numbers))
    if leading:
        return make(step, shapes, layouts, numbers, leading)
    return make(step, shapes, layouts, numbers)


def alternatives(step: Step, shapes: Shapes, layouts: Layouts, numbers: DeviceNumbers) -> dict[str, Dispatch]:
    """Return by name, to be timed, what computes the same for a convolution or a fully connected step."""
    found: dict[str, Dispatch] = {}
    if step.kind == "conv":
        found = convolutions.others(step, shapes, layouts, numbers)
    elif step.kind == "fc":
        for rows, vectors in TRIED[numbers.vector]:
            found[f"{rows} x {vectors}"] = linear.dispatch(step, shapes, layouts, numbers, tile=(rows, vectors))
    own = dispatch(step, shapes, layouts, numbers).launches if found else ()
    return {name: other for name, other in found.items() if other.launches != own}


def _most_elements(step: Step, shapes: Shapes) -> int:
    return max(math.prod(shapes[name]) for name in (*step.reads, *step.outputs, *step.weights.values()))
