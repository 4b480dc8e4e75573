"""Lowers windowed operators to TFLite: convolutions and pools, and the padding TFLite cannot say."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeplan.engines.description import UnsupportedError
from edgeplan.engines.litert.context import FUSED, LoweringContext
from edgeplan.graph.ir import Operator
from edgeplan.graph.kinds import kind
from edgeplan.support.tensors import Array

_SAME, _VALID = 0, 1
_LOWEST = float(np.finfo(np.float32).min)


class Windows(LoweringContext):
    """This class lowers convolutions and pools."""

    def conv(self, op: Operator) -> None:
        """Lower a `Conv` with what can be fused into it."""
        weight, *rest = self._weights(op)
        if weight.ndim != 4:  # 2-D convolutions have 4 axes
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

    def _padded(self, op: Operator, x: int, value: float) -> tuple[int, int]:
        """Return input and padding mode of a windowed operator: SAME where that gives ONNX's pads, else after a PAD."""
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
        counted = op.integer("count_include_pad", 0)  # SAME leaves padding out of averages
        if [oh, ow] == full and [top, left] == [r // 2 for r in reach] and not counted:
            return x, _SAME
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
        """Lower `MaxPool` and `AveragePool` to TFLite."""
        if set(op.integers("dilations", (1, 1))) != {1}:
            raise UnsupportedError(f"pooling with dilation ({op.name})")
        average = op.op_type == "AveragePool"
        producer = self._graph.producer.get(op.inputs[0])
        clipped = producer is not None and kind(self._graph, producer) in FUSED  # never negative: zeros pad as well, and faster
        given = self._index[op.inputs[0]]
        x, padding = self._padded(op, given, 0.0 if average or clipped else _LOWEST)
        (kh, kw), (sh, sw) = op.integers("kernel_shape", ()), op.integers("strides", (1, 1))
        values = {"padding": padding, "filterHeight": kh, "filterWidth": kw, "strideH": sh, "strideW": sw}
        if not average:
            self._file.operator("MAX_POOL_2D", [x], [self._out(op.outputs[0])], "Pool2D", **values)
        elif x == given:
            self._file.operator("AVERAGE_POOL_2D", [x], [self._out(op.outputs[0])], "Pool2D", **values)
        else:
            out = self._out(op.outputs[0])
            diluted = self._scratch(op, "diluted", self._file.shape(out))
            self._file.operator("AVERAGE_POOL_2D", [x], [diluted], "Pool2D", **values)
            rows, columns = (self._undiluted(op, axis) for axis in (0, 1))
            factor = self._file.constant(f"{op.name}/factor", (rows[:, None] * columns)[None, :, :, None])
            self._file.operator("MUL", [diluted, factor], [out], "Mul")

    def _undiluted(self, op: Operator, axis: int) -> Array:
        """Return the factors of an average over padded windows along rows or columns: window size / counted places."""
        size, out = (self._graph.shape(name)[2 + axis] for name in (op.inputs[0], op.outputs[0]))
        kernel, stride = op.integers("kernel_shape", ())[axis], op.integers("strides", (1, 1))[axis]
        before, after = op.integers("pads", (0, 0, 0, 0))[axis::2]
        first, last = (-before, size + after) if op.integer("count_include_pad", 0) else (0, size)
        starts = np.arange(out) * stride - before
        counts = np.minimum(starts + kernel, last) - np.maximum(starts, first)
        return (kernel / counts).astype(np.float32)
