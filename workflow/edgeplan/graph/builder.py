"""A small builder: each method appends one operator, infers its output shape, and returns the output's name."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Literal

from edgeplan.graph.ir import Attribute, Graph, Operator, Shape, Tensor


def conv_output_size(size: int, kernel: int, stride: int, pad_total: int, dilation: int = 1, *, ceil: bool = False) -> int:
    """Output height or width of a convolution or pooling window (ONNX `Conv`, `MaxPool`)."""
    span = size + pad_total - dilation * (kernel - 1) - 1
    return (-(-span // stride) if ceil else span // stride) + 1


#: Height and width, or one number for both.
Size = int | tuple[int, int]
#: Padding of both sides of height and width, or top, left, bottom and right.
Padding = Size | tuple[int, int, int, int]


class GraphBuilder:
    """A builder makes a `Graph` operator by operator.

    Operators are named `<op_type lower>_<n>` unless a name is given; each output tensor carries its operator's name (with a
    suffix when there are several), so engine reports can be mapped back.
    """

    def __init__(self, name: str, input_shape: Shape, input_name: str = "input") -> None:
        self.name = name
        self._operators: list[Operator] = []
        self._tensors: dict[str, Tensor] = {input_name: Tensor(input_name, tuple(input_shape))}
        self._inputs = [input_name]
        self.input = input_name

    def shape(self, tensor: str) -> Shape:
        """Return the shape of a tensor built so far."""
        return self._tensors[tensor].shape

    def channels(self, tensor: str) -> int:
        """Return the size of the channel axis (axis 1)."""
        return self.shape(tensor)[1]

    def count(self, *op_types: str) -> int:
        """Count the operators added of these ONNX types."""
        return sum(op.op_type in op_types for op in self._operators)

    def _op(
        self, op_type: str, inputs: Sequence[str], shapes: Sequence[Shape], *,
        weights: Mapping[str, Shape] = MappingProxyType({}), attributes: Mapping[str, Attribute] = MappingProxyType({}),
        name: str = "",
    ) -> tuple[str, ...]:  # fmt: skip
        name = name or f"{op_type.lower()}_{len(self._operators)}"
        outputs = (name,) if len(shapes) == 1 else tuple(f"{name}_{i}" for i in range(len(shapes)))
        weight_names = tuple(f"{name}.{suffix}" for suffix in weights)
        for weight, shape in zip(weight_names, weights.values(), strict=True):
            self._tensors[weight] = Tensor(weight, shape)
        for output, shape in zip(outputs, shapes, strict=True):
            self._tensors[output] = Tensor(output, tuple(shape))
        self._operators.append(
            Operator(name, op_type, tuple(inputs), outputs, weight_names, MappingProxyType(dict(attributes)))
        )
        return outputs

    def conv(
        self, x: str, out_channels: int, kernel: Size, stride: int = 1, *, groups: int = 1, pad: Padding | None = None,
        dilation: int = 1, bias: bool = False, name: str = "",
    ) -> str:  # fmt: skip
        """2-D convolution; `pad=None` keeps the size at stride 1 ("same" for odd kernels)."""
        n, cin, h, w = self.shape(x)
        kh, kw = _pair(kernel)
        top, left, bottom, right = _sides((dilation * (kh - 1) // 2, dilation * (kw - 1) // 2) if pad is None else pad)
        height = conv_output_size(h, kh, stride, top + bottom, dilation)
        width = conv_output_size(w, kw, stride, left + right, dilation)
        weights = {"weight": (out_channels, cin // groups, kh, kw)} | _bias(out_channels, bias)
        attributes: dict[str, Attribute] = {
            "kernel_shape": (kh, kw), "strides": (stride, stride), "pads": (top, left, bottom, right),
            "dilations": (dilation, dilation), "group": groups,
        }  # fmt: skip
        shape = (n, out_channels, height, width)
        return self._op("Conv", [x], [shape], weights=weights, attributes=attributes, name=name)[0]

    def dwconv(self, x: str, kernel: int, stride: int = 1, *, name: str = "") -> str:
        """Depthwise convolution (multiplier 1, "same" padding)."""
        return self.conv(x, self.channels(x), kernel, stride, groups=self.channels(x), name=name)

    def bn(self, x: str, *, name: str = "") -> str:
        """Add a batch normalisation at inference."""
        c = (self.channels(x),)
        weights = {"scale": c, "bias": c, "mean": c, "variance": c}
        return self._op("BatchNormalization", [x], [self.shape(x)], weights=weights, attributes={"epsilon": 1e-5}, name=name)[0]

    def activation(self, x: str, which: str, *, name: str = "") -> str:
        """Return one of relu, relu6, leakyrelu (slope 0.1), hswish, hsigmoid, sigmoid, tanh; `""` adds nothing."""
        if not which:
            return x
        op_type, attributes = _ACTIVATIONS[which]
        return self._op(op_type, [x], [self.shape(x)], attributes=attributes, name=name)[0]

    def relu(self, x: str, *, name: str = "") -> str:
        """Add a rectified linear unit."""
        return self.activation(x, "relu", name=name)

    def _binary(self, op_type: str, a: str, b: str, name: str) -> str:
        shape = tuple(max(p, q) for p, q in zip(self.shape(a), self.shape(b), strict=True))
        return self._op(op_type, [a, b], [shape], name=name)[0]

    def add(self, a: str, b: str, *, name: str = "") -> str:
        """Element-wise sum of two tensors of the same rank (axes of size 1 broadcast)."""
        return self._binary("Add", a, b, name)

    def mul(self, a: str, b: str) -> str:
        """Element-wise product of two tensors of the same rank (axes of size 1 broadcast)."""
        return self._binary("Mul", a, b, "")

    def _pool(self, op_type: str, x: str, kernel: Size, stride: Size, pad: Padding, ceil: bool, name: str) -> str:
        n, c, h, w = self.shape(x)
        (kh, kw), (sh, sw) = _pair(kernel), _pair(stride)
        top, left, bottom, right = _sides(pad)
        height = conv_output_size(h, kh, sh, top + bottom, ceil=ceil)
        width = conv_output_size(w, kw, sw, left + right, ceil=ceil)
        attributes: dict[str, Attribute] = {
            "kernel_shape": (kh, kw), "strides": (sh, sw), "pads": (top, left, bottom, right), "ceil_mode": int(ceil),
        }  # fmt: skip
        return self._op(op_type, [x], [(n, c, height, width)], attributes=attributes, name=name)[0]

    def maxpool(self, x: str, kernel: Size, stride: Size, pad: Padding = 0, *, ceil: bool = False, name: str = "") -> str:
        """Add a max pooling over windows."""
        return self._pool("MaxPool", x, kernel, stride, pad, ceil, name)

    def avgpool(self, x: str, kernel: Size, stride: Size, pad: Padding = 0, *, ceil: bool = False) -> str:
        """Average pooling (padding not counted)."""
        return self._pool("AveragePool", x, kernel, stride, pad, ceil, "")

    def gap(self, x: str, *, name: str = "") -> str:
        """Global average pooling to 1 x 1."""
        n, c = self.shape(x)[:2]
        return self._op("GlobalAveragePool", [x], [(n, c, 1, 1)], name=name)[0]

    def flatten(self, x: str, *, name: str = "") -> str:
        """Flatten all axes but the first."""
        n, *rest = self.shape(x)
        return self._op("Flatten", [x], [(n, math.prod(rest))], attributes={"axis": 1}, name=name)[0]

    def fc(self, x: str, out_features: int, *, bias: bool = True, name: str = "") -> str:
        """Fully connected layer on a 2-D input, as `Gemm` with transB."""
        n, cin = self.shape(x)
        weights = {"weight": (out_features, cin)} | _bias(out_features, bias)
        return self._op("Gemm", [x], [(n, out_features)], weights=weights, attributes={"transB": 1}, name=name)[0]

    def concat(self, xs: Sequence[str]) -> str:
        """Add a concatenation over channels."""
        n, _, *rest = self.shape(xs[0])
        out = (n, sum(self.channels(x) for x in xs), *rest)
        return self._op("Concat", xs, [out], attributes={"axis": 1})[0]

    def split(self, x: str, sizes: Sequence[int], *, name: str = "") -> tuple[str, ...]:
        """Split over channels into parts of the given sizes."""
        n, _, *rest = self.shape(x)
        return self._op("Split", [x], [(n, s, *rest) for s in sizes], attributes={"axis": 1, "split": tuple(sizes)}, name=name)

    def reshape(self, x: str, shape: Shape, *, name: str = "") -> str:
        """Return the reshape to a static shape."""
        return self._op("Reshape", [x], [tuple(shape)], attributes={"shape": tuple(shape)}, name=name)[0]

    def transpose(self, x: str, perm: Sequence[int], *, name: str = "") -> str:
        """Add a transposition that permutes axes."""
        old = self.shape(x)
        return self._op("Transpose", [x], [tuple(old[p] for p in perm)], attributes={"perm": tuple(perm)}, name=name)[0]

    def squeeze(self, x: str, axes: Sequence[int]) -> str:
        """Drop axes of size 1 (axes from 0)."""
        out = tuple(size for axis, size in enumerate(self.shape(x)) if axis not in axes)
        return self._op("Squeeze", [x], [out], attributes={"axes": tuple(axes)})[0]

    def upsample(self, x: str, factor: int = 2, *, mode: Literal["nearest", "linear"] = "nearest") -> str:
        """Enlarge an image `factor` times in both directions (`Resize`): repeat each pixel, or interpolate between centres."""
        n, c, h, w = self.shape(x)
        attributes: dict[str, Attribute] = {"scales": (1.0, 1.0, float(factor), float(factor)), "mode": mode}
        if mode == "nearest":
            attributes |= {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
        else:
            attributes["coordinate_transformation_mode"] = "half_pixel"
        return self._op("Resize", [x], [(n, c, h * factor, w * factor)], attributes=attributes)[0]

    def lstm(self, x: str, hidden: int, *, bidirectional: bool = False, name: str = "") -> str:
        """LSTM over a sequence (steps, batch, features), with biases and zero initial states.

        Gates are in ONNX order (input, output, forget, cell). The result has shape (steps, directions, batch, hidden).
        """
        steps, batch, features = self.shape(x)
        directions, rows = 2 if bidirectional else 1, 4 * hidden
        weights: dict[str, Shape] = {
            "input_weight": (directions, rows, features), "recurrence_weight": (directions, rows, hidden),
            "bias": (directions, 2 * rows),
        }  # fmt: skip
        attributes: dict[str, Attribute] = {"hidden_size": hidden, "direction": "forward"}
        attributes |= {"direction": "bidirectional"} if bidirectional else {}
        out = (steps, directions, batch, hidden)
        return self._op("LSTM", [x], [out], weights=weights, attributes=attributes, name=name)[0]

    def channel_shuffle(self, x: str, groups: int) -> str:
        """ShuffleNet's channel shuffle: reshape, transpose, reshape."""
        n, c, h, w = self.shape(x)
        name = f"shuffle_{len(self._operators)}"
        y = self.reshape(x, (n, groups, c // groups, h, w), name=f"{name}.split")
        y = self.transpose(y, (0, 2, 1, 3, 4), name=f"{name}.swap")
        return self.reshape(y, (n, c, h, w), name=f"{name}.join")

    def lrn(self, x: str, size: int = 5) -> str:
        """Add a local response normalisation (AlexNet)."""
        attributes: dict[str, Attribute] = {"size": size, "alpha": 1e-4, "beta": 0.75, "bias": 1.0}
        return self._op("LRN", [x], [self.shape(x)], attributes=attributes)[0]

    def softmax(self, x: str) -> str:
        """Return the softmax over the last axis."""
        return self._op("Softmax", [x], [self.shape(x)], attributes={"axis": -1})[0]

    def conv_bn(
        self, x: str, out_channels: int, kernel: Size, stride: int = 1, *, groups: int = 1, pad: Padding | None = None,
        act: str = "relu",
    ) -> str:  # fmt: skip
        """Conv, batch normalisation and, unless `act` is empty, an activation."""
        return self.activation(self.bn(self.conv(x, out_channels, kernel, stride, groups=groups, pad=pad)), act)

    def conv_act(
        self, x: str, out_channels: int, kernel: Size, stride: int = 1, *, groups: int = 1, pad: Padding | None = None,
        act: str = "relu",
    ) -> str:  # fmt: skip
        """Conv with a bias, and an activation."""
        return self.activation(self.conv(x, out_channels, kernel, stride, groups=groups, pad=pad, bias=True), act)

    def build(self, *outputs: str) -> Graph:
        """Return the finished graph; its outputs are the named tensors."""
        return Graph(
            self.name, tuple(self._operators), tuple(self._inputs), tuple(outputs), MappingProxyType(dict(self._tensors))
        )


def _bias(size: int, wanted: bool) -> dict[str, Shape]:
    return {"bias": (size,)} if wanted else {}


def _pair(size: Size) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _sides(pad: Padding) -> tuple[int, int, int, int]:
    if isinstance(pad, tuple) and len(pad) == 4:  # two sides an axis, two axes
        return pad
    height, width = _pair(pad)
    return height, width, height, width


_ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, Attribute]]] = MappingProxyType(
    {
        "relu": ("Relu", {}),
        "relu6": ("Clip", {"min": 0.0, "max": 6.0}),
        "hswish": ("HardSwish", {}),
        "hsigmoid": ("HardSigmoid", {"alpha": 1 / 6, "beta": 0.5}),
        "sigmoid": ("Sigmoid", {}),
        "leakyrelu": ("LeakyRelu", {"alpha": 0.1}),
        "tanh": ("Tanh", {}),
    }
)
