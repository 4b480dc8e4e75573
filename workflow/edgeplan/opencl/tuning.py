"""Lists for offline autotuning what the white-box dispatcher could have chosen instead, to be timed beside its choice.

LiPG's predictors learn from what the dispatcher decides, so that nothing is tuned when a model is
planned; how much that leaves is measured (`chapters.partition.measuring.tuning`).
"""

from __future__ import annotations

from collections.abc import Mapping

from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step
from edgeplan.opencl import convolutions, linear
from edgeplan.opencl.dispatch import dispatch
from edgeplan.opencl.launch import DeviceNumbers, Dispatch
from edgeplan.opencl.tiles import TRIED


def alternatives(
    step: Step, shapes: Mapping[str, Shape], layouts: Mapping[str, str], numbers: DeviceNumbers
) -> dict[str, Dispatch]:
    """List dispatches that compute the same as the dispatcher's choice for a convolution or a fully connected step, by name.

    Args:
        step: a step that the dispatcher does not refuse.
        shapes: shape of every tensor.
        layouts: layout of every activation.
        numbers: numbers of the device.
    """
    found: dict[str, Dispatch] = {}
    if step.kind == "conv":
        found = convolutions.others(step, shapes, layouts, numbers)
    elif step.kind == "fc":
        for rows, vectors in TRIED[numbers.vector]:
            found[f"{rows} x {vectors}"] = linear.dispatch(step, shapes, layouts, numbers, tile=(rows, vectors))
    own = dispatch(step, shapes, layouts, numbers) if found else None
    return {name: other for name, other in found.items() if own is not None and other.launches != own.launches}
