"""Scaler of ONNX's domain of classical learning, which exporters put before networks: a difference and a product."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from edgeplan.graph.onnx.nodes import Writer
from edgeplan.graph.operators.base import attributes_of

_DOMAIN = "ai.onnx.ml"


def plain_scalers(model: onnx.ModelProto) -> None:
    """Write each Scaler of a model as (x - offset) x scale; offsets and scales are of the last axis.

    Args:
        model: the model; it is changed.
    """
    if all(node.domain != _DOMAIN for node in model.graph.node):
        return
    write = Writer(model.graph)
    for node in model.graph.node:
        write.name = node.name or node.output[0]
        if (node.domain, node.op_type) != (_DOMAIN, "Scaler"):
            write.keep(node)
            continue
        attributes, found = attributes_of(node), write.node("Cast", [node.input[0]], to=TensorProto.FLOAT)
        if offset := attributes.get("offset"):
            found = write.node("Sub", [found, write.constant(np.array(offset, np.float32))])
        if scale := attributes.get("scale"):
            found = write.node("Mul", [found, write.constant(np.array(scale, np.float32))])
        write.node("Identity", [found], node.output[0])
    write.finish()
