"""Windowed operators in TFLite: convolutions and pools, and the padding TFLite cannot say."""

from __future__ import annotations

from typing import Any

import numpy as np

from edgeplan.cold.baselines.base import UnsupportedError
from edgeplan.cold.baselines.tflite_context import FUSED, Context
from edgeplan.graph.ir import Operator
from edgeplan.graph.kinds import kind

_SAME, _VALID = 0, 1
_LOWEST = float(np.finfo(np.float32).min)


class Windows(Context):
    """Lowerings of convolutions and pools."""

    def conv(self, op: Operator) -> None:
        """`Conv` with what can be fused into it."""
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
        """`MaxPool` and `AveragePool`."""
        producer = self._graph.producer.get(op.inputs[0])
        clipped = producer is not None and kind(self._graph, producer) in FUSED  # never negative: zeros pad as well, and faster
        x, padding = self._padded(op, self._index[op.inputs[0]], 0.0 if clipped else _LOWEST)
        (kh, kw), (sh, sw) = op.integers("kernel_shape", ()), op.integers("strides", (1, 1))
        code = "MAX_POOL_2D" if op.op_type == "MaxPool" else "AVERAGE_POOL_2D"
        values = {"padding": padding, "filterHeight": kh, "filterWidth": kw, "strideH": sh, "strideW": sw}
        self._file.operator(code, [x], [self._out(op.outputs[0])], "Pool2D", **values)
