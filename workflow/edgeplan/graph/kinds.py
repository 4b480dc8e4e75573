"""The field's names for operators: `conv`, `dwconv`, `relu6` ... as nn-Meter's fusion rules and kernels use them."""

from __future__ import annotations

from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.operators.activations import ACTIVATIONS
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
