"""Features of layers: their shapes, and what the dispatcher of a processor tells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
import scipy

from edgeplan.chapters.partition.layers import LayerShape
from edgeplan.graph.ir import Shape
from edgeplan.graph.steps import Step

Floats = npt.NDArray[np.float64]
#: Of the shape alone, the configuration and what follows from it.
SHAPE = (
    *("height", "width", "inputs", "outputs", "window", "window_width", "stride"),
    *("flops", "input_elements", "output_elements", "weight_elements"),
)
#: Place of the work, which times grow with.
WORK = SHAPE.index("flops")


def shape_matrix(layers: Sequence[LayerShape]) -> Floats:
    """Features of shapes (layers, features)."""
    rows = np.array([(v.height, v.width, v.inputs, v.outputs, *v.kernel, v.stride, *v.out_size) for v in layers], np.float64)
    rows = rows.reshape(len(layers), 9)
    height, width, inputs, outputs, tall, broad, _, high, wide = rows.T
    weights = inputs * outputs * tall * broad
    more = (2 * high * wide * weights, height * width * inputs, high * wide * outputs, weights)
    return np.column_stack([rows[:, :7], *more])


def dispatch_matrix(found: Sequence[Mapping[str, float]], features: Sequence[str]) -> Floats:
    """Features of dispatches, by name (layers, features)."""
    return np.array([[one[name] for name in features] for one in found], np.float64).reshape(len(found), len(features))


def augmented_names(features: Sequence[str]) -> tuple[str, ...]:
    """Names of all features with those of a dispatch, as tables of importance have them."""
    return (*SHAPE, *(f"dispatch.{name}" for name in features))


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
