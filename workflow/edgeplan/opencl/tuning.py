"""Autotuning, offline: what the white-box dispatcher could have chosen instead, to be timed beside its choice.

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

#: The dispatcher's own choice.
OWN = "dispatcher"


def choices(step: Step, shapes: Mapping[str, Shape], layouts: Mapping[str, str], numbers: DeviceNumbers) -> dict[str, Dispatch]:
    """The dispatcher's choice for a convolution or a fully connected step, and others that compute the same, by name.

    Args:
        step: that the dispatcher does not refuse.
        shapes: shape of every tensor.
        layouts: layout of every activation.
        numbers: of the device.
    """
    own = dispatch(step, shapes, layouts, numbers)
    more: dict[str, Dispatch] = {}
    if step.kind == "conv":
        more = convolutions.others(step, shapes, layouts, numbers)
    elif step.kind == "fc":
        for rows, vectors in TRIED[numbers.vector]:
            more[f"{rows} x {vectors}"] = linear.dispatch(step, shapes, layouts, numbers, tile=(rows, vectors))
    return {OWN: own, **{name: other for name, other in more.items() if other.launches != own.launches}}
