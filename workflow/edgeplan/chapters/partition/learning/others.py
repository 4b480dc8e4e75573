"""Steps that are neither linear layers nor convolutions: their time follows from what they move and how often they touch it."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import scipy

from edgeplan.chapters.partition.learning.features import Floats
from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step

_FLOAT_BYTES = 4
#: Factors of a fit: microseconds a call, a byte moved, a multiply-add or comparison.
TERMS = ("call", "bytes", "work")
#: With fewer samples a family has the fit of all together.
FEW = 6
ALL = "all"


def family(step: Step) -> str:
    """Steps of one family have one fit: their kind, and of a window or an operation which."""
    if step.kind == "conv":
        return "conv.grouped"
    algorithm = step.settings.get("algorithm", "")
    return f"{step.kind}.{algorithm}" if algorithm else step.kind


def terms(step: Step, shapes: Mapping[str, Shape]) -> tuple[float, float, float]:
    """Return the amounts that the factors of `TERMS` are of."""
    tensors = (*step.reads, *step.outputs, *step.weights.values())
    moved = _FLOAT_BYTES * sum(math.prod(shapes[name]) for name in tensors)
    window = step.settings.get("kernel")  # of a compiled step it is a name
    each = math.prod(step.sizes("kernel")) if isinstance(window, tuple) else 1
    if step.kind == "conv":
        each *= shapes[step.inputs[0]][1] // step.integer("groups")
    return 1.0, float(moved), float(each * math.prod(shapes[step.outputs[0]]))


def fit(rows: Floats, latency_us: Floats) -> tuple[float, ...]:
    """Return the non-negative factors of the least relative squared error.

    Args:
        rows: of `terms` (samples, terms), or of others whose sum latency is.
        latency_us: of each.
    """
    scale = np.maximum(rows.max(axis=0), 1.0)
    factors = scipy.optimize.nnls(rows / scale / latency_us[:, None], np.ones(len(latency_us)))[0] / scale
    return tuple(float(f) for f in factors)
