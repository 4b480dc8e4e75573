"""Multiply-adds and parameters of workloads, by shapes alone."""

from __future__ import annotations

import math

import onnx

from edgeplan.graph.ir import Graph
from edgeplan.graph.kinds import graph_macs, graph_parameters
from edgeplan.workloads.registry import Workload


def parameters(workload: Workload) -> int:
    """Learnable parameters, in elements; a weight that is shared counts once."""
    return graph_parameters(workload) if isinstance(workload, Graph) else workload.parameters


def macs(workload: Workload) -> int:
    """Multiply-adds of convolutions, products and recurrent layers in one inference, by ONNX's own shape inference."""
    if isinstance(workload, Graph):
        return graph_macs(workload)
    shapes = workload.shapes()
    return sum(_macs(node, shapes) for node in workload.model.graph.node)


def _macs(node: onnx.NodeProto, shapes: dict[str, tuple[int, ...]]) -> int:
    """Multiply-adds of a node; those of a recurrent layer are its gates' products."""
    if node.op_type in ("MatMul", "Gemm"):
        return shapes[node.input[0]][-1] * math.prod(shapes[node.output[0]])
    if node.op_type == "Conv":
        return math.prod(shapes[node.input[1]][1:]) * math.prod(shapes[node.output[0]])
    if node.op_type in ("LSTM", "GRU"):
        steps, batch, _ = shapes[node.input[0]]
        return steps * batch * sum(math.prod(shapes[name]) for name in node.input[1:3])
    return 0
