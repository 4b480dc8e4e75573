"""Draws sizes, and writes layers as one of several exporters does; shapes of all tensors are known while a model is written."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgeplan.graph.onnx.write import IR_VERSION
from edgeplan.workloads.exported import ExportBuilder
from edgeplan.workloads.sequences import gelu, gelu_by_tanh

_EPSILON = 1e-5
#: What a model may have at most, so that it takes some 30 ms on a core: multiply-adds, elements written, bytes of weights.
_MOST = (600_000_000, 20_000_000, 120_000_000)


class TooLargeError(Exception):
    """The sizes that were drawn make a model that is too large."""


class Net(ExportBuilder):
    """A net is a model that draws its sizes while it is written.

    Attributes:
        exporter: `torch`, `tensorflow` or `paddle`: how layers, padding and norms are written.
        rng: what draws.
        batch: examples at once, 1 to 16.
        share: of what a model may have at most: it is too large beyond.
    """

    def __init__(self, name: str, rng: np.random.Generator, opset: int, batch: int, share: float = 1.0) -> None:
        super().__init__(name, opset)
        self.rng, self.batch, self.share, self._counted = rng, batch, share, [0, 0, 0]
        self.exporter = self.choose("torch", "torch", "tensorflow", "paddle")
        self._same = self.choose("Pad", "SAME_UPPER") if self.exporter == "tensorflow" else "pads"
        self._types: dict[str, onnx.TypeProto] = {}

    def choose(self, *values: Any) -> Any:
        """Draw one of some values."""
        return values[int(self.rng.integers(len(values)))]

    def chance(self, share: float) -> bool:
        """Draw whether something is so, in this share of cases."""
        return bool(self.rng.random() < share)

    def size(self, least: int, most: int, step: int = 1) -> int:
        """Draw a multiple of a step, uniform by its logarithm."""
        drawn = least * math.exp(math.log(most / least) * float(self.rng.random()))
        return max(step, round(drawn / step) * step)

    def shape(self, x: str) -> tuple[int, ...]:
        """Return the shape of a tensor."""
        return tuple(dim.dim_value for dim in self._types[x].tensor_type.shape.dim)

    def kind(self, x: str) -> int:
        """Return the element type of a tensor, by ONNX's number."""
        return int(self._types[x].tensor_type.elem_type)

    def input(self, name: str, shape: Sequence[int], kind: int = TensorProto.FLOAT) -> str:
        """Declare an input; integers are read as ids, 0 and 1 of which are always valid."""
        self._types[name] = helper.make_tensor_type_proto(kind, list(shape))
        return super().input(name, shape, kind)

    def weight(self, name: str, shape: Sequence[int], spread: float, centre: float = 0.0) -> str:
        """Declare a float32 weight whose values are uniform in centre ± spread."""
        self._types[name] = helper.make_tensor_type_proto(TensorProto.FLOAT, list(shape))
        self._count(0, 0, 4 * math.prod(shape))
        return super().weight(name, shape, spread, centre)

    def _count(self, *more: int) -> None:
        self._counted = [one + other for one, other in zip(self._counted, more, strict=True)]
        if any(one > self.share * most for one, most in zip(self._counted, _MOST, strict=True)):
            raise TooLargeError

    def drawn(self, *shape: int, spread: float = 0.1, centre: float = 0.0) -> str:
        """Declare a weight that is named by its place, as torch names what it has folded."""
        return self.weight(f"onnx::weight_{len(self._weights)}", shape, spread, centre)

    def constant(self, name: str, values: Any, kind: type[np.generic] = np.float32) -> str:
        """Add a constant of given values."""
        held = np.asarray(values, kind)
        self._types[name] = helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(held.dtype), held.shape)
        return super().constant(name, values, kind)

    def nodes(self, op_type: str, inputs: Sequence[str], outputs: int, scope: str = "", **attributes: Any) -> tuple[str, ...]:
        """Add a node; return the names of its outputs."""
        made = super().nodes(op_type, inputs, outputs, scope, **attributes)
        given = {name: self._types[name] for name in inputs if name}
        known = {one.name: one for one in self._graph.initializer if one.name in given and one.raw_data}
        opsets, schema = [helper.make_opsetid("", self.opset)], onnx.defs.get_schema(op_type, self.opset)
        self._types |= onnx.shape_inference.infer_node_outputs(
            schema, self._graph.node[-1], given, known, opset_imports=opsets, ir_version=IR_VERSION
        )
        written, macs = sum(math.prod(self.shape(one)) for one in made), 0
        if op_type in ("MatMul", "Gemm"):
            macs = written * self.shape(inputs[0])[-1]
        elif op_type in ("Conv", "ConvTranspose"):
            steps = math.prod(self.shape(inputs[0] if op_type == "ConvTranspose" else made[0]))
            macs = steps * math.prod(self.shape(inputs[1])[1:])
        elif op_type in ("LSTM", "GRU", "RNN"):
            macs = math.prod(self.shape(inputs[0])[:2]) * sum(math.prod(self.shape(one)) for one in inputs[1:3])
        self._count(macs, written, 0)
        return made

    def transpose(self, x: str, *order: int) -> str:
        """Return a tensor with its axes in this order."""
        return self.node("Transpose", [x], perm=list(order))

    def joined(self, parts: Sequence[str], axis: int) -> str:
        """Return tensors joined along an axis."""
        return self.node("Concat", parts, axis=axis)

    def cut(self, x: str, axis: int, start: int, end: int, step: int = 1) -> str:
        """Return a slice of one axis."""
        return self.node("Slice", [x, *(self.integers((value,)) for value in (start, end, axis, step))])

    def split(self, x: str, axis: int, parts: int) -> tuple[str, ...]:
        """Return parts of the same size."""
        sizes = self.integers((self.shape(x)[axis] // parts,) * parts)
        return self.nodes("Split", [x, sizes], parts, axis=axis)

    def take(self, x: str, axis: int, place: int) -> str:
        """Return what lies at one place of an axis, which goes."""
        return self.node("Gather", [x, self.constant(f"place_{place}", place, np.int64)], axis=axis)

    def reduce(self, op_type: str, x: str, *axes: int, keep: int = 1) -> str:
        """Return a reduction, whose axes are an input from opset 18 on, of sums from 13 on."""
        if self.opset >= 18 or op_type == "ReduceSum":
            return self.node(op_type, [x, self.integers(axes)], keepdims=keep)
        return self.node(op_type, [x], axes=list(axes), keepdims=keep)

    def clip(self, x: str, least: float, most: float) -> str:
        """Return values within two bounds."""
        return self.node("Clip", [x, *(self.constant(f"number_{one!r}", one) for one in (least, most))])

    def act(self, x: str, kind: str) -> str:
        """Return an activation; of several nodes where the opset or the exporter knows no operator of it."""
        written: dict[str, Callable[[], str]] = {
            "": lambda: x,
            "Relu6": lambda: self.clip(x, 0.0, 6.0),
            "Silu": lambda: self.node("Mul", [x, self.node("Sigmoid", [x])]),
            "Mish": lambda: self.node("Mul", [x, self.node("Tanh", [self.node("Softplus", [x])])]),
            "Gelu": lambda: gelu(self, x),
            "GeluTanh": lambda: gelu_by_tanh(self, x),
            "HardSigmoid": lambda: self.node("HardSigmoid", [x], alpha=1 / 6),
            "LeakyRelu": lambda: self.node("LeakyRelu", [x], alpha=0.1),
            "PRelu": lambda: self.node("PRelu", [x, self.drawn(self.shape(x)[1], 1, 1, centre=0.25)]),
        }
        if kind == "HardSwish" and (self.opset < 14 or self.exporter == "paddle"):
            return self.scalar("Div", self.node("Mul", [x, self.clip(self.scalar("Add", x, 3.0), 0.0, 6.0)]), 6.0)
        return written.get(kind, lambda: self.node(kind, [x]))()

    def dense(self, x: str, outputs: int, act: str = "", *, bias: bool = True) -> str:
        """Return a fully connected layer: Gemm of rows as torch writes it, else MatMul and Add."""
        rank, inputs = len(self.shape(x)), self.shape(x)[-1]
        spread = math.sqrt(3 / inputs)
        if rank == 2 and bias and self.exporter == "torch":
            y = self.node("Gemm", [x, self.drawn(outputs, inputs, spread=spread), self.drawn(outputs)], transB=1)
        else:
            y = self.node("MatMul", [x, self.drawn(inputs, outputs, spread=spread)])
            terms = [y, self.drawn(outputs)] if bias else []
            y = self.node("Add", terms[:: -1 if self.exporter == "torch" else 1]) if bias else y
        return self.act(y, act)

    def norm(self, x: str, kind: str = "layer") -> str:
        """Return a normalisation of the last axis: `layer`, by its operator where torch has it, or `rms`."""
        width = self.shape(x)[-1]
        scale = self.drawn(width, spread=0.25, centre=1.0)
        if kind == "layer" and self.opset >= 17 and self.exporter == "torch":
            return self.node("LayerNormalization", [x, scale, self.drawn(width)], axis=-1, epsilon=_EPSILON)
        y = self.node("Sub", [x, self.reduce("ReduceMean", x, -1)]) if kind == "layer" else x
        variance = self.reduce("ReduceMean", self.scalar("Pow", y, 2.0), -1)
        root = self.node("Sqrt", [self.scalar("Add", variance, _EPSILON)])
        if kind == "layer":
            y = self.node("Mul", [self.node("Div", [y, root]), scale])
            return self.node("Add", [y, self.drawn(width)])
        return self.node("Mul", [scale, self.node("Mul", [x, self.scalar("Div", root, 1.0, first=True)])])

    def conv(
        self, x: str, outputs: int, kernel: int, stride: int = 1, act: str = "", *, groups: int = 1, dilation: int = 1,
        normed: bool = False, pads: tuple[int, int] | None = None,
    ) -> str:  # fmt: skip
        """Return a convolution of (batch, channels, extents ...) with what its framework leaves behind it.

        Batches are normed in training, which torch folds and others leave as an operator; pads, before and
        after each axis, are by default half the kernel, or as SAME in TensorFlow.
        """
        extents, inputs, span = self.shape(x)[2:], self.shape(x)[1], dilation * (kernel - 1)
        axes, ends = len(extents), [pads or (span // 2, span // 2)] * (len(self.shape(x)) - 2)
        if pads is None and self.exporter == "tensorflow":
            lacking = [max((math.ceil(n / stride) - 1) * stride + span + 1 - n, 0) for n in extents]
            ends = [(one // 2, one - one // 2) for one in lacking]
        spread = math.sqrt((6 if act else 3) / (inputs // groups * kernel**axes))
        weights = self.drawn(outputs, inputs // groups, *(kernel,) * axes, spread=spread)
        given = [weights] if normed and self.exporter != "torch" else [weights, self.drawn(outputs)]
        padding: dict[str, Any] = {"pads": [one[side] for side in (0, 1) for one in ends]}
        if pads is None and self._same == "SAME_UPPER" and stride > 1 and dilation == 1:
            padding = {"auto_pad": self._same}
        elif self._same == "Pad" and stride > 1 and any(map(any, ends)):
            x, padding = self.pad(x, ends), {}
        sizes: dict[str, Any] = {"kernel_shape": [kernel] * axes, "strides": [stride] * axes, "dilations": [dilation] * axes}
        y = self.node("Conv", [x, *given], group=groups, **sizes, **padding)
        if len(given) == 1:
            scales = [self.drawn(outputs, spread=0.25, centre=centre) for centre in (1.0, 0.0, 0.0, 1.0)]
            y = self.node("BatchNormalization", [y, *scales], epsilon=1e-3)
        return self.act(y, act)

    def pad(self, x: str, ends: Sequence[tuple[int, int]], mode: str = "constant") -> str:
        """Return what is padded before and after each axis behind the channels."""
        before, after = zip((0, 0), (0, 0), *ends, strict=True)
        return self.node("Pad", [x, self.integers([*before, *after])], mode=mode)

    def upwards(self, x: str, outputs: int, kernel: int, stride: int, act: str = "") -> str:
        """Return a transposed convolution that multiplies extents by the stride."""
        axes, inputs = len(self.shape(x)) - 2, self.shape(x)[1]
        weights = self.drawn(inputs, outputs, *(kernel,) * axes, spread=math.sqrt(3 * stride**axes / inputs / kernel**axes))
        over = kernel - stride
        sizes: dict[str, Any] = {"kernel_shape": [kernel] * axes, "strides": [stride] * axes, "dilations": [1] * axes}
        pads = [over // 2] * axes + [over - over // 2] * axes
        return self.act(self.node("ConvTranspose", [x, weights, self.drawn(outputs)], group=1, pads=pads, **sizes), act)

    def resized(self, x: str, mode: str = "nearest") -> str:
        """Return what is twice as large on all axes behind the channels."""
        scales = self.constant(f"scales_2_{len(self.shape(x))}", [1.0, 1.0, *[2.0] * (len(self.shape(x)) - 2)])
        nearest: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        return self.node("Resize", [x, "", scales], mode=mode, **(nearest if mode == "nearest" else {}))

    def image(self, name: str, batch: int, channels: int, height: int, width: int) -> str:
        """Declare an image: channels last as TensorFlow takes it, then transposed; else channels first."""
        if self.exporter != "tensorflow":
            return self.input(name, (batch, channels, height, width))
        return self.transpose(self.input(name, (batch, height, width, channels)), 0, 3, 1, 2)

    def pooled(self, x: str) -> str:
        """Return means over all axes behind the channels, as rows."""
        axes = range(2, len(self.shape(x)))
        if self.exporter == "tensorflow" or self.chance(0.2):
            return self.reduce("ReduceMean", x, *axes, keep=0)
        return self.node("Flatten", [self.node("GlobalAveragePool", [x])], axis=1)
