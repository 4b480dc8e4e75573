"""Prepares models for LiteRT (TensorFlow Lite) through XNNPACK: f32, static shapes, activations in NHWC.

The public converters need TensorFlow, so models are converted here, as a converter does offline: BatchNormalization is folded
into the convolution before it and clipping activations are fused. An LSTM becomes one product for the inputs of all steps, and
one a step for the state, as by LiteRT's converter of PyTorch models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx import numpy_helper

from edgeplan.engines.cold import Artefact, model_outputs
from edgeplan.engines.description import UnsupportedError
from edgeplan.engines.litert.context import FUSED, LoweringContext, layout
from edgeplan.graph.ir import Operator
from edgeplan.graph.kinds import kind
from edgeplan.graph.onnx.constants import read_whole_model
from edgeplan.graph.onnx.read import load_onnx
from edgeplan.graph.operators.products import is_fully_connected
from edgeplan.graph.operators.reductions import reduced_axes
from edgeplan.support.tensors import Array


def converted(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Convert the model; XNNPACK packs its weights at every start."""
    del inputs, threads
    found = folder / "model.tflite"
    values = {i.name: numpy_helper.to_array(i) for i in read_whole_model(model).graph.initializer}
    _Lowering(load_onnx(model), values).write(found)
    return Artefact(main=found, files=(found,), outputs=model_outputs(model))


def cached(model: Path, inputs: Mapping[str, tuple[int, ...]], folder: Path, threads: int) -> Artefact:
    """Convert the model, and name the cache that a start beforehand fills with packed weights."""
    return converted(model, inputs, folder, threads).model_copy(update={"companions": {"cache": folder / "weights.xnnpack"}})


_SAME, _VALID = 0, 1
_LOWEST = float(np.finfo(np.float32).min)
_ABSENT = -1
_GATES = 4  # input, output, forget, cell
_DIRECTIONS_LAST = (0, 2, 1, 3)


class _Lowering(LoweringContext):
    def write(self, target: Path) -> None:
        for op in self._graph.operators:
            if op.name not in self._done:
                lower = _LOWERINGS.get(op.op_type)
                if lower is None:
                    raise UnsupportedError(f"no TFLite counterpart of {op.op_type} ({op.name})")
                lower(self, op)
        graph = self._graph
        self._file.write(target, {n: self._index[n] for n in graph.inputs}, {n: self._index[n] for n in graph.outputs})

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
        common: dict[str, Any] = {"padding": padding, "fusedActivationFunction": activation}
        common |= {"strideH": sh, "strideW": sw, "dilationHFactor": dh, "dilationWFactor": dw}
        shift_index = self._file.constant(f"{op.name}/bias", bias)
        if groups > 1 and groups == channels:
            kernel = self._file.constant(f"{op.name}/weight", weight.transpose(1, 2, 3, 0))
            multiplier = weight.shape[0] // channels
            operands, depth = [x, kernel, shift_index], {"depthMultiplier": multiplier}
            self._file.operator("DEPTHWISE_CONV_2D", operands, [self._out(name)], "DepthwiseConv2D", **depth, **common)
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

    def lstm(self, op: Operator) -> None:
        """Lower an LSTM that runs forward, backward or both ways over a sequence (steps, batch, features), from zero states."""
        if op.outputs[1:]:
            raise UnsupportedError(f"an LSTM whose last states are read ({op.name})")
        weight, recurrence, *rest = self._weights(op)
        directions, hidden = recurrence.shape[0], recurrence.shape[2]
        steps, batch, _ = self._graph.shape(op.inputs[0])
        bias = rest[0] if rest else np.zeros((directions, 2 * _GATES * hidden), np.float32)
        backward = {"forward": (False,), "reverse": (True,)}.get(str(op.attributes.get("direction", "forward")), (False, True))
        results = [
            self._direction(op, (weight[i], recurrence[i], bias[i]), backwards=backwards)
            for i, backwards in enumerate(backward)
        ]
        joined = results[0]
        if directions > 1:
            joined = self._scratch(op, "joined", (steps, batch, directions * hidden))
            self._file.operator("CONCATENATION", results, [joined], "Concatenation", axis=2)
        self._directions_apart(op, joined, (steps, batch, directions, hidden))

    def _direction(self, op: Operator, values: tuple[Array, Array, Array], *, backwards: bool) -> int:
        """Return the states of one direction at every step, (steps, batch, hidden)."""
        weight, recurrence, bias = values
        hidden, prefix = recurrence.shape[1], "backward" if backwards else "forward"
        steps, batch, _ = self._graph.shape(op.inputs[0])
        wide = _GATES * hidden

        def scratch(role: str, *shape: int) -> int:
            return self._scratch(op, f"{prefix}/{role}", shape)

        def constant(role: str, value: Array) -> int:
            return self._file.constant(f"{op.name}/{prefix}/{role}", value)

        projected = scratch("projected", steps, batch, wide)
        operands = [self._index[op.inputs[0]], constant("weight", weight), constant("bias", bias[:wide] + bias[wide:])]
        self._file.operator("FULLY_CONNECTED", operands, [projected], "FullyConnected", keepNumDims=True)
        parts = [scratch(f"projected/{step}", 1, batch, wide) for step in range(steps)]
        axis = self._file.constant(f"{op.name}/{prefix}/steps", np.array(0, np.int32))
        self._file.operator("SPLIT", [axis, projected], parts, "Split", numSplits=steps)
        recurrent = constant("recurrence", recurrence)
        gate_axis = self._file.constant(f"{op.name}/{prefix}/gates", np.array(2, np.int32))
        states: dict[int, int] = {}
        state = cell = _ABSENT  # both are zero
        for step in reversed(range(steps)) if backwards else range(steps):
            gates = parts[step]
            if state != _ABSENT:
                product, gates = (scratch(f"{role}/{step}", 1, batch, wide) for role in ("product", "sum"))
                operands = [state, recurrent, _ABSENT]
                self._file.operator("FULLY_CONNECTED", operands, [product], "FullyConnected", keepNumDims=True)
                self._file.operator("ADD", [product, parts[step]], [gates], "Add")
            state, cell = self._cell(op, f"{prefix}/{step}", (gates, gate_axis), cell, (1, batch, hidden))
            states[step] = state
        out = scratch("states", steps, batch, hidden)
        self._file.operator("CONCATENATION", [states[i] for i in range(steps)], [out], "Concatenation", axis=0)
        return out

    def _cell(
        self, op: Operator, prefix: str, gates: tuple[int, int], cell: int, shape: tuple[int, int, int]
    ) -> tuple[int, int]:
        """Return state and cell after a step, from the sums that enter its gates (and their axis) and the cell before."""

        def emit(code: str, inputs: Sequence[int], role: str, options: str = "") -> int:
            out = self._scratch(op, f"{prefix}/{role}", shape)
            self._file.operator(code, inputs, [out], options)
            return out

        sums, axis = gates
        raw = [self._scratch(op, f"{prefix}/raw/{gate}", shape) for gate in range(_GATES)]
        self._file.operator("SPLIT", [axis, sums], raw, "Split", numSplits=_GATES)
        enter, leave = emit("LOGISTIC", raw[:1], "enter"), emit("LOGISTIC", raw[1:2], "leave")
        new = emit("MUL", [enter, emit("TANH", raw[3:], "candidate")], "new", "Mul")
        if cell != _ABSENT:
            kept = emit("MUL", [emit("LOGISTIC", raw[2:3], "keep"), cell], "kept", "Mul")
            new = emit("ADD", [kept, new], "cell", "Add")
        return emit("MUL", [leave, emit("TANH", [new], "squashed")], "state", "Mul"), new

    def _directions_apart(self, op: Operator, joined: int, shape: Sequence[int]) -> None:
        """Move directions apart, as ONNX keeps them: (steps, directions, batch, hidden), unless what follows joins them."""
        transpose = self._only_reader(op.outputs[0], "Transpose")
        if transpose is not None and transpose.integers("perm", ()) == _DIRECTIONS_LAST:
            reshape = self._only_reader(transpose.outputs[0], "Reshape")
            if reshape is not None:
                after = self._graph.shape(reshape.outputs[0])
                if layout(len(after)) == tuple(range(len(after))):
                    self._done.update((transpose.name, reshape.name))
                    self._emit_reshape(op, joined, self._out(reshape.outputs[0]))
                    return
        apart = self._scratch(op, "apart", shape)
        self._emit_reshape(op, joined, apart)
        stored = [_DIRECTIONS_LAST.index(axis) for axis in layout(len(shape))]
        order = self._file.integers(f"{op.name}/order", stored)
        self._file.operator("TRANSPOSE", [apart, order], [self._out(op.outputs[0])], "Transpose")

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
        constants = [self._file.constant(f"{op.name}/{role}", value) for role, value in (("weight", weight), ("bias", bias))]
        operands = [self._index[op.inputs[0]], *constants]
        values = {"fusedActivationFunction": activation, "keepNumDims": True}
        self._file.operator("FULLY_CONNECTED", operands, [self._out(name)], "FullyConnected", **values)

    def concat(self, op: Operator) -> None:
        if op.weights:
            raise UnsupportedError(f"concatenation with constants ({op.name})")
        axis = self._stored_axis(op, op.integer("axis", 1))
        operands, out = [self._index[name] for name in op.inputs], self._out(op.outputs[0])
        self._file.operator("CONCATENATION", operands, [out], "Concatenation", axis=axis)

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
        alpha = op.number("alpha", 1e-4) / size  # ONNX divides by the size, TFLite does not
        values = {"radius": size // 2, "bias": op.number("bias", 1.0), "alpha": alpha, "beta": op.number("beta", 0.75)}
        x, out = self._index[op.inputs[0]], self._out(op.outputs[0])
        self._file.operator("LOCAL_RESPONSE_NORMALIZATION", [x], [out], "LocalResponseNormalization", **values)

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
