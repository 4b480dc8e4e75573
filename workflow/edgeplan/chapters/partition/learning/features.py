"""Features of layers: their shapes, and what the dispatcher of a processor tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from edgeplan.chapters.partition.layers import LayerShape

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
