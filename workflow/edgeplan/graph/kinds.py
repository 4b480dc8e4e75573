"""The field's names for operators (`conv`, `dwconv`, `relu6` ... as in nn-Meter's fusion rules), and what they cost on paper.

FLOPs means multiply-adds, as in nn-Meter (footnote 1), and only convolutions, matrix products and recurrent layers do any:
biases, batch normalisation, activations, pooling, additions and data movement count nothing.
"""

from __future__ import annotations

from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.operators.elementwise import ACTIVATIONS
from edgeplan.graph.operators.registry import SPECS

#: Kinds that compute a value from each element alone, or from two elements at the same place.
ELEMENTWISE = ACTIVATIONS | {"add", "mul", "bn"}

KNOWN_ONNX_TYPES = frozenset(SPECS)


def kind(graph: Graph, op: Operator) -> str:
    """Return the kind of an operator.

    A `Conv` with as many groups as input and output channels is `dwconv`; a `Clip` to [0, 6] is `relu6`; a `Resize` that
    interpolates is `resize_linear` or `resize_cubic`. A product of an activation and a matrix of weights behind it is `fc`, any
    other `matmul`; a `ReduceMean` over the whole image is `gap`, over other axes `mean`.
    """
    found = SPECS[op.op_type].kind
    return found if isinstance(found, str) else found(graph, op)


# BatchNormalization also stores the running mean and variance: statistics, not learnt, and left out of published counts.
_LEARNABLE_BN_WEIGHTS = 2


def operator_macs(graph: Graph, op: Operator) -> int:
    """Multiply-adds of one operator: those of convolutions, products of matrices and recurrent layers, 0 for all else."""
    macs = SPECS[op.op_type].macs
    return macs(graph, op) if macs else 0


def operator_parameters(graph: Graph, op: Operator) -> int:
    """Learnable parameters of one operator, in elements: weights and biases, no running mean and variance."""
    weights = op.weights[:_LEARNABLE_BN_WEIGHTS] if op.op_type == "BatchNormalization" else op.weights
    return sum(graph.tensors[name].elements for name in weights)


def graph_macs(graph: Graph) -> int:
    """Return the multiply-adds of the whole graph (the paper's FLOPs)."""
    return sum(operator_macs(graph, op) for op in graph.operators)


def graph_parameters(graph: Graph) -> int:
    """Learnable parameters of the whole graph, in elements."""
    return sum(operator_parameters(graph, op) for op in graph.operators)


def graph_memory_access_bytes(graph: Graph) -> int:
    """Memory access cost in bytes: every operator's feature maps, read and written, and its weights (nn-Meter, section 7.1).

    A map that an operator reads twice counts twice; of a batch normalisation's weights the mean and variance count, too.
    """
    names = (name for op in graph.operators for name in (*op.inputs, *op.weights, *op.outputs))
    return sum(graph.tensors[name].size_bytes for name in names)
