"""A TopK of constants is constant, too: the optimizer folds no node of several outputs."""

from __future__ import annotations

import numpy as np
import onnx

from edgeplan.graph.onnx.nodes import Array, Writer
from edgeplan.graph.operators.base import attributes_of, input_of


def fold_choices(model: onnx.ModelProto) -> bool:
    """Write every TopK of constants as the constants that it chooses.

    Args:
        model: the model; it is changed.

    Returns:
        Whether there was one.
    """
    if not any(node.op_type == "TopK" for node in model.graph.node):
        return False
    write, folded = Writer(model.graph), False
    for node in model.graph.node:
        chosen = _chosen(node, write) if node.op_type == "TopK" else None
        if chosen is None:
            write.keep(node)
            continue
        folded = True
        for name, value in zip(node.output, chosen, strict=False):
            if name:
                write.constant(value, name)
    if folded:
        write.finish()
    return folded


def _chosen(node: onnx.NodeProto, write: Writer) -> tuple[Array, Array] | None:
    """Return the best values, and where they stood; None where they depend on data, or the node is none that ONNX knows."""
    values, count = write.value(input_of(node, 0)), write.value(input_of(node, 1))
    given = attributes_of(node)
    axis = int(given.get("axis", -1))
    if values is None or count is None or count.size != 1 or not -values.ndim <= axis < values.ndim:
        return None
    wanted = int(count.reshape(-1)[0])
    if not 0 < wanted <= values.shape[axis]:
        return None
    order = _order(values, axis, largest=bool(given.get("largest", 1)))
    places = np.take(order, np.arange(wanted), axis)
    return np.take_along_axis(values, places, axis), places.astype(np.int64)


def _order(values: Array, axis: int, *, largest: bool) -> Array:
    """Return the places along an axis, the best first, of equal ones the first."""
    if not largest:
        return np.argsort(values, axis, kind="stable")
    backwards = np.flip(np.argsort(np.flip(values, axis), axis, kind="stable"), axis)
    return np.asarray(values.shape[axis] - 1 - backwards)
