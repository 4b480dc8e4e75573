"""The field's names for operators: `conv`, `dwconv`, `relu6` ... as nn-Meter's fusion rules and kernels use them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.graph.ir import Graph, Operator

_BY_ONNX_TYPE: Mapping[str, str] = MappingProxyType(
    {
        "BatchNormalization": "bn",
        "Relu": "relu",
        "LeakyRelu": "leakyrelu",
        "HardSwish": "hswish",
        "HardSigmoid": "hsigmoid",
        "Sigmoid": "sigmoid",
        "Tanh": "tanh",
        "Add": "add",
        "Mul": "mul",
        "Concat": "concat",
        "Split": "split",
        "MaxPool": "maxpool",
        "AveragePool": "avgpool",
        "GlobalAveragePool": "gap",
        "Flatten": "reshape",
        "Reshape": "reshape",
        "Squeeze": "reshape",
        "Unsqueeze": "reshape",
        "Transpose": "transpose",
        "LRN": "lrn",
        "Softmax": "softmax",
        "Resize": "resize",
        "LSTM": "lstm",
    }
)

#: Kinds that compute a value from each element alone, or from two elements at the same place.
ACTIVATIONS = frozenset({"relu", "relu6", "clip", "leakyrelu", "hswish", "hsigmoid", "sigmoid", "tanh"})
ELEMENTWISE = ACTIVATIONS | {"add", "mul", "bn"}

KNOWN_ONNX_TYPES = frozenset(_BY_ONNX_TYPE) | {"Conv", "Clip", "Gemm", "MatMul", "ReduceMean"}
_MATRIX_RANK = 2
_FULLY_CONNECTED_RANKS = (2, 3, 4)  # further axes would fold into the one that is multiplied
_SPATIAL_RANKS = (3, 4)


def kind(graph: Graph, op: Operator) -> str:
    """The kind of an operator.

    A `Conv` with as many groups as input and output channels is `dwconv`; a `Clip` to [0, 6] is `relu6`; a `Resize` that
    interpolates is `resize_linear` or `resize_cubic`. A product of an activation and a matrix of weights behind it is `fc`, any
    other `matmul`; a `ReduceMean` over the whole image is `gap`, over other axes `mean`.
    """
    if op.op_type == "Conv":
        groups = op.integer("group", 1)
        channels = graph.shape(op.inputs[0])[1]
        return "dwconv" if groups > 1 and groups == channels == graph.shape(op.outputs[0])[1] else "conv"
    if op.op_type in ("Gemm", "MatMul"):
        return "fc" if is_fully_connected(graph, op) else "matmul"
    if op.op_type == "ReduceMean":
        return "gap" if is_over_image(graph, op) else "mean"
    if op.op_type == "Clip":
        return "relu6" if (op.number("min", -math.inf), op.number("max", math.inf)) == (0.0, 6.0) else "clip"
    if op.op_type == "Resize" and op.attributes.get("mode", "nearest") != "nearest":
        return f"resize_{op.attributes['mode']}"
    return _BY_ONNX_TYPE[op.op_type]


def is_fully_connected(graph: Graph, op: Operator) -> bool:
    """Whether a `Gemm` or `MatMul` multiplies an activation of two to four axes, as it is, by a matrix of weights."""
    left, right = op.operands[:2]
    ranks = len(graph.shape(left)) in _FULLY_CONNECTED_RANKS and len(graph.shape(right)) == _MATRIX_RANK
    return ranks and left in op.inputs and right in op.weights and not op.integer("transA", 0)


def mean_axes(graph: Graph, op: Operator) -> tuple[int, ...]:
    """The axes, in order, that a `ReduceMean` runs over: all where none are given, unless that is said to mean none."""
    rank = len(graph.shape(op.inputs[0]))
    axes = op.integers("axes", ())
    if not axes and not op.integer("noop_with_empty_axes", 0):
        return tuple(range(rank))
    return tuple(sorted({axis % rank for axis in axes}))


def is_over_image(graph: Graph, op: Operator) -> bool:
    """Whether a `ReduceMean` runs over all axes of the image and no other."""
    rank = len(graph.shape(op.inputs[0]))
    return rank in _SPATIAL_RANKS and mean_axes(graph, op) == tuple(range(2, rank))
