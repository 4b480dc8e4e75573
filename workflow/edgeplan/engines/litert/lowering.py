"""Converts ONNX to TFLite as a converter does offline, without TensorFlow: f32, static shapes, activations in NHWC.

BatchNormalization is folded into the convolution before it and clipping activations are fused, as TFLite's own converter does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
from onnx import numpy_helper

from edgeplan.engines.description import UnsupportedError
from edgeplan.engines.litert.context import layout
from edgeplan.engines.litert.lstm import Recurrent
from edgeplan.engines.litert.windows import Windows
from edgeplan.graph.ir import Operator
from edgeplan.graph.kinds import kind
from edgeplan.graph.onnx.constants import read_whole
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.operators.products import is_fully_connected
from edgeplan.graph.operators.reductions import reduced_axes


def convert(model: Path, target: Path) -> None:
    """Write a TFLite file of an ONNX model."""
    proto = read_whole(model)
    values = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    _Lowering(load_onnx(model), values).write(target)


class _Lowering(Windows, Recurrent):
    def write(self, target: Path) -> None:
        for op in self._graph.operators:
            if op.name not in self._done:
                lower = _LOWERINGS.get(op.op_type)
                if lower is None:
                    raise UnsupportedError(f"no TFLite counterpart of {op.op_type} ({op.name})")
                lower(self, op)
        graph = self._graph
        self._file.write(target, {n: self._index[n] for n in graph.inputs}, {n: self._index[n] for n in graph.outputs})

    def mean(self, op: Operator) -> None:
        rank = len(self._graph.shape(op.inputs[0]))
        axes = reduced_axes(self._graph, op) if op.op_type == "ReduceMean" else tuple(range(2, rank))
        keep = op.op_type == "GlobalAveragePool" or bool(op.integer("keepdims", 1))
        stored = sorted(layout(rank).index(axis % rank) for axis in axes)
        index = self._file.integers(f"{op.name}/axes", stored)
        self._file.operator("MEAN", [self._index[op.inputs[0]], index], [self._out(op.outputs[0])], "Reducer", keepDims=keep)

    def batch_norm(self, op: Operator) -> None:
        scale, shift = self._scale_and_shift(op)
        x = self._index[op.inputs[0]]
        scaled = self._scratch(op, "scaled", self._file.shape(x))
        self._file.operator("MUL", [x, self._file.constant(f"{op.name}/scale", scale)], [scaled], "Mul")
        activation, name = self._fused_activation(op.outputs[0])
        constant = self._file.constant(f"{op.name}/shift", shift)
        self._file.operator("ADD", [scaled, constant], [self._out(name)], "Add", fusedActivationFunction=activation)

    def binary(self, op: Operator) -> None:
        activation, name = self._fused_activation(op.outputs[0])
        rank = len(self._graph.shape(op.outputs[0]))
        if any(len(self._graph.shape(name)) != rank for name in op.inputs):
            raise UnsupportedError(f"operands of different ranks ({op.name})")
        operands = [self._index[name] for name in op.inputs]
        for weight, value in zip(op.weights, self._weights(op), strict=True):
            full = value.reshape((1,) * (rank - value.ndim) + value.shape)
            operands.append(self._file.constant(weight, full.transpose(layout(rank))))
        title = op.op_type
        self._file.operator(title.upper(), operands, [self._out(name)], title, fusedActivationFunction=activation)

    def activation(self, op: Operator) -> None:
        which = kind(self._graph, op)
        code = {"relu": "RELU", "relu6": "RELU6", "sigmoid": "LOGISTIC", "tanh": "TANH", "hswish": "HARD_SWISH"}.get(which)
        x = self._index[op.inputs[0]]
        if which == "leakyrelu":
            alpha = op.number("alpha", 0.01)
            self._file.operator("LEAKY_RELU", [x], [self._out(op.outputs[0])], "LeakyRelu", alpha=alpha)
        elif code is None:
            raise UnsupportedError(f"no TFLite counterpart of {which} ({op.name})")
        else:
            options = {"HARD_SWISH": "HardSwish"}.get(code, "")
            self._file.operator(code, [x], [self._out(op.outputs[0])], options)

    def fully_connected(self, op: Operator) -> None:
        columns = self._graph.shape(op.outputs[0])[-1:]
        biased = op.weights[1:] and self._graph.shape(op.weights[1])[-1:] != columns
        if not is_fully_connected(self._graph, op) or len(op.inputs) != 1 or biased:
            raise UnsupportedError(f"only products with a matrix of weights, and one bias for each column ({op.name})")
        weight, *rest = self._weights(op)
        if op.op_type == "MatMul" or not op.integer("transB", 0):
            weight = weight.T
        weight = weight * np.float32(op.number("alpha", 1.0))
        bias = rest[0].reshape(-1) * np.float32(op.number("beta", 1.0)) if rest else np.zeros(weight.shape[0], np.float32)
        activation, name = self._fused_activation(op.outputs[0])
        operands = [
            self._index[op.inputs[0]],
            self._file.constant(f"{op.name}/weight", weight),
            self._file.constant(f"{op.name}/bias", bias),
        ]
        values = {"fusedActivationFunction": activation, "keepNumDims": True}
        self._file.operator("FULLY_CONNECTED", operands, [self._out(name)], "FullyConnected", **values)

    def concat(self, op: Operator) -> None:
        if op.weights:
            raise UnsupportedError(f"concatenation with constants ({op.name})")
        axis = self._stored_axis(op, op.integer("axis", 1))
        self._file.operator(
            "CONCATENATION", [self._index[n] for n in op.inputs], [self._out(op.outputs[0])], "Concatenation", axis=axis
        )

    def split(self, op: Operator) -> None:
        x = self._index[op.inputs[0]]
        axis, shape = self._stored_axis(op, op.integer("axis", 0)), self._file.shape(x)
        start = 0
        for name in op.outputs:
            out = self._out(name)
            begin = [start if i == axis else 0 for i in range(len(shape))]
            size = self._file.shape(out)
            operands = [x, self._file.integers(f"{name}/begin", begin), self._file.integers(f"{name}/size", size)]
            self._file.operator("SLICE", operands, [out], "Slice")
            start += size[axis]

    def _stored_axis(self, op: Operator, axis: int) -> int:
        rank = len(self._graph.shape(op.inputs[0]))
        return layout(rank).index(axis % rank)

    def reshape(self, op: Operator) -> None:
        """Reshape a tensor directly where the order of elements is the same in both layouts, else through ONNX's order."""
        before, after = self._graph.shape(op.inputs[0]), self._graph.shape(op.outputs[0])
        x = self._index[op.inputs[0]]
        if not _keeps_order(before, after):
            x = self._transposed(op, x, layout(len(before)), "onnx_order")
            target = self._scratch(op, "reshaped", after)
            self._emit_reshape(op, x, target)
            self._emit_transpose(op, target, layout(len(after)), self._out(op.outputs[0]))
        else:
            self._emit_reshape(op, x, self._out(op.outputs[0]))

    def _transposed(self, op: Operator, x: int, stored: Sequence[int], role: str) -> int:
        """Return the tensor with its axes put into ONNX's order."""
        back = [stored.index(axis) for axis in range(len(stored))]
        out = self._scratch(op, role, [self._file.shape(x)[axis] for axis in back])
        self._emit_transpose(op, x, back, out)
        return out

    def _emit_transpose(self, op: Operator, x: int, order: Sequence[int], out: int) -> None:
        index = self._file.integers(f"{op.name}/order", order)
        self._file.operator("TRANSPOSE", [x, index], [out], "Transpose")

    def transpose(self, op: Operator) -> None:
        rank = len(self._graph.shape(op.inputs[0]))
        order = op.integers("perm", tuple(reversed(range(rank))))
        stored = [layout(rank).index(order[axis]) for axis in layout(rank)]
        self._emit_transpose(op, self._index[op.inputs[0]], stored, self._out(op.outputs[0]))

    def lrn(self, op: Operator) -> None:
        size = op.integer("size", 5)
        values = {
            "radius": size // 2,
            "bias": op.number("bias", 1.0),
            "alpha": op.number("alpha", 1e-4) / size,  # ONNX divides by the size, TFLite does not
            "beta": op.number("beta", 0.75),
        }
        self._file.operator(
            "LOCAL_RESPONSE_NORMALIZATION",
            [self._index[op.inputs[0]]],
            [self._out(op.outputs[0])],
            "LocalResponseNormalization",
            **values,
        )

    def resize(self, op: Operator) -> None:
        """Repeat pixels a whole number of times, as the models upsample that are started here; others are refused."""
        before, after = self._graph.shape(op.inputs[0]), self._graph.shape(op.outputs[0])
        names = ("mode", "coordinate_transformation_mode", "nearest_mode")
        repeats = tuple(op.attributes.get(name) for name in names) == ("nearest", "asymmetric", "floor")
        if not repeats or len(before) != 4 or any(out % size for size, out in zip(before, after, strict=True)):  # an image
            raise UnsupportedError(f"a Resize that does not repeat each pixel as often ({op.name})")
        operands = [self._index[op.inputs[0]], self._file.integers(f"{op.name}/size", after[2:])]
        out = self._out(op.outputs[0])
        self._file.operator("RESIZE_NEAREST_NEIGHBOR", operands, [out], "ResizeNearestNeighbor")

    def softmax(self, op: Operator) -> None:
        rank = len(self._graph.shape(op.inputs[0]))
        if self._stored_axis(op, op.integer("axis", -1)) != rank - 1:
            raise UnsupportedError(f"softmax only over the innermost axis ({op.name})")
        self._file.operator("SOFTMAX", [self._index[op.inputs[0]]], [self._out(op.outputs[0])], "Softmax", beta=1.0)


def _keeps_order(before: Sequence[int], after: Sequence[int]) -> bool:
    """Tell whether elements lie in the same order before and after when both are stored channels last."""
    size = int(np.prod(before))
    return np.array_equal(
        np.arange(size).reshape(before).transpose(layout(len(before))).ravel(),
        np.arange(size).reshape(after).transpose(layout(len(after))).ravel(),
    )


_LOWERINGS: Mapping[str, Callable[[_Lowering, Operator], None]] = MappingProxyType(
    {
        "Conv": _Lowering.conv,
        "BatchNormalization": _Lowering.batch_norm,
        "MaxPool": _Lowering.pool,
        "AveragePool": _Lowering.pool,
        "GlobalAveragePool": _Lowering.mean,
        "ReduceMean": _Lowering.mean,
        "Add": _Lowering.binary,
        "Mul": _Lowering.binary,
        "Gemm": _Lowering.fully_connected,
        "MatMul": _Lowering.fully_connected,
        "Concat": _Lowering.concat,
        "Split": _Lowering.split,
        "LSTM": _Lowering.lstm,
        "Resize": _Lowering.resize,
        **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _Lowering.reshape),
        "Transpose": _Lowering.transpose,
        "LRN": _Lowering.lrn,
        "Softmax": _Lowering.softmax,
        **dict.fromkeys(("Relu", "Clip", "LeakyRelu", "HardSwish", "Sigmoid", "Tanh"), _Lowering.activation),
    }
)
