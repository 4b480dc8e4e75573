"""The field's names for operators: `conv`, `dwconv`, `relu6` ... as nn-Meter's fusion rules and kernels use them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from edgeplan.graph.ir import Graph, Operator

_BY_ONNX_TYPE: Mapping[str, str] = MappingProxyType(
    {
        "Gemm": "fc",
        "MatMul": "fc",
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
        "ReduceMean": "gap",
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

KNOWN_ONNX_TYPES = frozenset(_BY_ONNX_TYPE) | {"Conv", "Clip"}


def kind(graph: Graph, op: Operator) -> str:
    """The kind of an operator.

    A `Conv` with as many groups as input and output channels is `dwconv`; a `Clip` to [0, 6] is `relu6`; a `Resize` that
    interpolates is `resize_linear` or `resize_cubic`.
    """
    if op.op_type == "Conv":
        groups = op.integer("group", 1)
        channels = graph.shape(op.inputs[0])[1]
        return "dwconv" if groups > 1 and groups == channels == graph.shape(op.outputs[0])[1] else "conv"
    if op.op_type == "Clip":
        return "relu6" if (op.number("min", -math.inf), op.number("max", math.inf)) == (0.0, 6.0) else "clip"
    if op.op_type == "Resize" and op.attributes.get("mode", "nearest") != "nearest":
        return f"resize_{op.attributes['mode']}"
    return _BY_ONNX_TYPE[op.op_type]
