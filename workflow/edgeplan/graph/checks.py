"""These checks hold a graph to the assumptions of costs and predictors: shapes are known, operators fit their tensors."""

from __future__ import annotations

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.onnx.constants import MOST_BYTES
from edgeplan.graph.onnx.shapes import no_static_shape
from edgeplan.graph.operators.base import AGAIN, Problem
from edgeplan.graph.operators.registry import SPECS


def check_graph(graph: Graph, source: str) -> None:
    """Hold a graph that came from outside against what is taken for granted of it.

    Args:
        graph: the graph; its operators are sorted.
        source: where it comes from, for messages.
    """
    known = set(graph.inputs)
    for op in graph.operators:
        where = f"{source}, operator {op.name!r}"
        for name in (*op.inputs, *op.weights, *op.outputs):
            tensor = graph.tensors.get(name)
            if tensor is None or any(size < 1 for size in tensor.shape):
                raise no_static_shape(name, tensor, where)
        known.update(op.outputs)
        if lost := next((name for name in op.inputs if name not in known), None):
            raise ModelError(f"tensor {lost!r} is computed in training alone", where=where, next_step="export it for inference")
        check = SPECS[op.op_type].check
        if problem := _axis(graph, op) or (check and check(graph, op)):
            what, next_step = problem
            raise ModelError(f"{op.op_type} {what}", where=where, next_step=next_step)
    total = sum(tensor.size_bytes for tensor in graph.tensors.values())
    if total > MOST_BYTES:
        raise ModelError(
            f"the tensors of the model take {total / 1e12:.0f} TB",
            where=source,
            next_step="check the shapes and export it again",
        )


def _axis(graph: Graph, op: Operator) -> Problem:
    rank = len(graph.shape(op.operands[0]))
    (axis,) = op.integers("axis", (0,))[:1] or (rank,)
    behind = op.op_type == "Flatten"  # which may join no axis
    return None if -rank <= axis < rank + behind or not axis else (f"along axis {axis} of {rank}", AGAIN)
