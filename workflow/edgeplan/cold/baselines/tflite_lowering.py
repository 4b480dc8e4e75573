"""ONNX to TFLite: what a converter does offline, without TensorFlow. f32, static shapes, activations in NHWC.

BatchNormalization is folded into the convolution before it and clipping activations are fused, as TFLite's own converter does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from edgeplan.cold.baselines.base import UnsupportedError
from edgeplan.cold.baselines.tflite_file import TfliteFile
from edgeplan.cold.inputs import Array
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.kinds import kind
from edgeplan.graph.onnx_import import load_onnx

#: Stored axis i of a tensor holds this ONNX axis, by rank: channels last.
_LAYOUTS: Mapping[int, tuple[int, ...]] = MappingProxyType({4: (0, 2, 3, 1), 5: (0, 3, 4, 1, 2)})
_SAME, _VALID = 0, 1
_NONE, _RELU, _RELU6 = 0, 1, 3
_FUSED = MappingProxyType({"relu": _RELU, "relu6": _RELU6})
_LOWEST = float(np.finfo(np.float32).min)


def layout(rank: int) -> tuple[int, ...]:
    """Which ONNX axis each stored axis of a tensor holds."""
    return _LAYOUTS.get(rank, tuple(range(rank)))


def convert(model: Path, target: Path) -> None:
    """Write a TFLite file of an ONNX model.

    Raises:
        UnsupportedError: an operator, or a use of one, has no counterpart here.
        ModelError: the ONNX file cannot be read.
    """
    proto = onnx.load(model)
    values = {i.name: numpy_helper.to_array(i) for i in proto.graph.initializer}
    _Lowering(load_onnx(model), values).write(target)


class _Lowering:
    def __init__(self, graph: Graph, values: Mapping[str, Any]) -> None:
        self._graph, self._values, self._file = graph, values, TfliteFile()
        self._index: dict[str, int] = {name: self._declare(name) for name in graph.inputs}
        self._done: set[str] = set()

    def write(self, target: Path) -> None:
        for op in self._graph.operators:
            if op.name not in self._done:
                lower = _LOWERINGS.get(op.op_type)
                if lower is None:
                    raise UnsupportedError(f"no TFLite counterpart of {op.op_type} ({op.name})")
                lower(self, op)
        graph = self._graph
        self._file.write(target, {n: self._index[n] for n in graph.inputs}, {n: self._index[n] for n in graph.outputs})

    # tensors

    def _declare(self, name: str) -> int:
        shape = self._graph.shape(name)
        return self._file.tensor(name, [shape[axis] for axis in layout(len(shape))])

    def _out(self, name: str) -> int:
        self._index[name] = self._declare(name)
        return self._index[name]

    def _weights(self, op: Operator) -> list[Array]:
        return [np.asarray(self._values[name], np.float32) for name in op.weights]

    def _scratch(self, op: Operator, role: str, shape: Sequence[int]) -> int:
        return self._file.tensor(f"{op.name}/{role}", shape)

    # fusion

    def _only_reader(self, name: str, op_type: str = "") -> Operator | None:
        readers = self._graph.consumers.get(name, ())
        if len(readers) != 1 or name in self._graph.outputs or readers[0].inputs.count(name) != 1:
            return None
        return readers[0] if not op_type or readers[0].op_type == op_type else None

    def _fused_activation(self, name: str) -> tuple[int, str]:
        """The activation that follows a tensor and can be fused, and the name of what it writes."""
        reader = self._only_reader(name)
        code = _FUSED.get(kind(self._graph, reader)) if reader is not None else None
        if reader is None or code is None:
            return _NONE, name
        self._done.add(reader.name)
        return code, reader.outputs[0]

    # operators

    def conv(self, op: Operator) -> None:
        weight, *rest = self._weights(op)
        if weight.ndim != 4:  # noqa: PLR2004  2-D convolutions have 4 axes
            raise UnsupportedError(f"only 2-D convolutions ({op.name})")
        bias = rest[0] if rest else np.zeros(weight.shape[0], np.float32)
        name = op.outputs[0]
        bn = self._only_reader(name, "BatchNormalization")
        if bn is not None:
            scale, shift = self._scale_and_shift(bn)
            weight, bias = weight * scale[:, None, None, None], bias * scale + shift
            self._done.add(bn.name)
            name = bn.outputs[0]
        activation, name = self._fused_activation(name)
        x, padding = self._padded(op, self._index[op.inputs[0]], 0.0)
        channels, groups = self._graph.shape(op.inputs[0])[1], op.integer("group", 1)
        (sh, sw), (dh, dw) = op.integers("strides", (1, 1)), op.integers("dilations", (1, 1))
        common: dict[str, Any] = {
            "padding": padding,
            "strideH": sh,
            "strideW": sw,
            "dilationHFactor": dh,
            "dilationWFactor": dw,
            "fusedActivationFunction": activation,
        }
        shift_index = self._file.constant(f"{op.name}/bias", bias)
        if groups > 1 and groups == channels:
            kernel = self._file.constant(f"{op.name}/weight", weight.transpose(1, 2, 3, 0))
            multiplier = weight.shape[0] // channels
            self._file.operator(
                "DEPTHWISE_CONV_2D",
                [x, kernel, shift_index],
                [self._out(name)],
                "DepthwiseConv2D",
                depthMultiplier=multiplier,
                **common,
            )
        else:
            kernel = self._file.constant(f"{op.name}/weight", weight.transpose(0, 2, 3, 1))
            self._file.operator("CONV_2D", [x, kernel, shift_index], [self._out(name)], "Conv2D", **common)

    def _scale_and_shift(self, bn: Operator) -> tuple[Array, Array]:
        gamma, beta, mean, variance = self._weights(bn)
        scale = (gamma / np.sqrt(variance + np.float32(bn.number("epsilon", 1e-5)))).astype(np.float32)
        return scale, (beta - mean * scale).astype(np.float32)

    def _padded(self, op: Operator, x: int, value: float) -> tuple[int, int]:
        """Input and padding mode of a windowed operator: SAME where its arithmetic gives ONNX's pads, else a PAD before it."""
        top, left, bottom, right = op.integers("pads", (0, 0, 0, 0))
        _, h, w, c = self._file.shape(x)
        oh, ow = self._graph.shape(op.outputs[0])[2:]
        kernel = op.integers("kernel_shape", ()) or self._graph.shape(op.weights[0])[2:]
        strides, dilations = op.integers("strides", (1, 1)), op.integers("dilations", (1, 1))
        # what the windows reach beyond the input: more than the pads for ceil_mode, less where the last rows are not read
        reach = [
            max(0, (o - 1) * s + d * (k - 1) + 1 - i)
            for o, s, d, k, i in zip((oh, ow), strides, dilations, kernel, (h, w), strict=True)
        ]
        if reach == [0, 0] and (top, left) == (0, 0):
            return x, _VALID
        full = [-(-i // s) for i, s in zip((h, w), strides, strict=True)]
        if [oh, ow] == full and [top, left] == [r // 2 for r in reach]:
            return x, _SAME
        if op.op_type == "AveragePool":
            raise UnsupportedError(f"average pooling whose padding is not TFLite's SAME ({op.name})")
        bottom, right = max(0, reach[0] - top), max(0, reach[1] - left)
        padded = self._scratch(op, "padded", (1, h + top + bottom, w + left + right, c))
        pads = self._file.constant(f"{op.name}/pads", np.array([[0, 0], [top, bottom], [left, right], [0, 0]], np.int32))
        if value == 0.0:
            self._file.operator("PAD", [x, pads], [padded], "Pad")
        else:
            fill = self._file.constant(f"{op.name}/fill", np.array([value], np.float32))
            self._file.operator("PADV2", [x, pads, fill], [padded], "PadV2")
        return padded, _VALID

    def pool(self, op: Operator) -> None:
        producer = self._graph.producer.get(op.inputs[0])
        clipped = (
            producer is not None and kind(self._graph, producer) in _FUSED
        )  # never negative: zeros pad as well, and faster
        x, padding = self._padded(op, self._index[op.inputs[0]], 0.0 if clipped else _LOWEST)
        (kh, kw), (sh, sw) = op.integers("kernel_shape", ()), op.integers("strides", (1, 1))
        code = "MAX_POOL_2D" if op.op_type == "MaxPool" else "AVERAGE_POOL_2D"
        values = {"padding": padding, "filterHeight": kh, "filterWidth": kw, "strideH": sh, "strideW": sw}
        self._file.operator(code, [x], [self._out(op.outputs[0])], "Pool2D", **values)

    def mean(self, op: Operator) -> None:
        rank = len(self._graph.shape(op.inputs[0]))
        axes = op.integers("axes", (2, 3)) if op.op_type == "ReduceMean" else tuple(range(2, rank))
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
        if which == "hsigmoid":
            self._hard_sigmoid(op, x)
        elif which == "leakyrelu":
            alpha = op.number("alpha", 0.01)
            self._file.operator("LEAKY_RELU", [x], [self._out(op.outputs[0])], "LeakyRelu", alpha=alpha)
        elif code is None:
            raise UnsupportedError(f"no TFLite counterpart of {which} ({op.name})")
        else:
            options = {"HARD_SWISH": "HardSwish"}.get(code, "")
            self._file.operator(code, [x], [self._out(op.outputs[0])], options)

    def _hard_sigmoid(self, op: Operator, x: int) -> None:
        """max(0, min(1, alpha x + beta)) = relu6(6 alpha x + 6 beta) / 6."""
        scaled, clipped = (self._scratch(op, role, self._file.shape(x)) for role in ("scaled", "clipped"))
        factor, offset, sixth = (
            self._file.constant(f"{op.name}/{role}", np.array([value], np.float32))
            for role, value in (
                ("factor", 6 * op.number("alpha", 0.2)),
                ("offset", 6 * op.number("beta", 0.5)),
                ("sixth", 1 / 6),
            )
        )
        self._file.operator("MUL", [x, factor], [scaled], "Mul")
        self._file.operator("ADD", [scaled, offset], [clipped], "Add", fusedActivationFunction=_RELU6)
        self._file.operator("MUL", [clipped, sixth], [self._out(op.outputs[0])], "Mul")

    def fully_connected(self, op: Operator) -> None:
        if not op.weights or op.integer("transA", 0) or len(op.inputs) != 1:
            raise UnsupportedError(f"only matrix products with constant weights ({op.name})")
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
        """Straight where the order of elements is the same in both layouts, else through ONNX's order."""
        before, after = self._graph.shape(op.inputs[0]), self._graph.shape(op.outputs[0])
        x = self._index[op.inputs[0]]
        if not _keeps_order(before, after):
            x = self._transposed(op, x, layout(len(before)), "onnx_order")
            target = self._scratch(op, "reshaped", after)
            self._reshaped(op, x, target)
            self._emit_transpose(op, target, layout(len(after)), self._out(op.outputs[0]))
        else:
            self._reshaped(op, x, self._out(op.outputs[0]))

    def _reshaped(self, op: Operator, x: int, out: int) -> None:
        shape = self._file.shape(out)
        index = self._file.integers(f"{op.name}/shape", shape)
        self._file.operator("RESHAPE", [x, index], [out], "Reshape", newShape=list(shape))

    def _transposed(self, op: Operator, x: int, stored: Sequence[int], role: str) -> int:
        """The tensor with its axes put into ONNX's order."""
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

    def softmax(self, op: Operator) -> None:
        rank = len(self._graph.shape(op.inputs[0]))
        if self._stored_axis(op, op.integer("axis", -1)) != rank - 1:
            raise UnsupportedError(f"softmax only over the innermost axis ({op.name})")
        self._file.operator("SOFTMAX", [self._index[op.inputs[0]]], [self._out(op.outputs[0])], "Softmax", beta=1.0)


def _keeps_order(before: Sequence[int], after: Sequence[int]) -> bool:
    """Whether elements lie in the same order before and after when both are stored channels last."""
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
        "Reshape": _Lowering.reshape,
        "Flatten": _Lowering.reshape,
        "Transpose": _Lowering.transpose,
        "LRN": _Lowering.lrn,
        "Softmax": _Lowering.softmax,
        **dict.fromkeys(("Relu", "Clip", "LeakyRelu", "HardSwish", "HardSigmoid", "Sigmoid", "Tanh"), _Lowering.activation),
    }
)
