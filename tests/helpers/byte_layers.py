"""Models of one or several layers between bytes, as QDQ: random forms from a seed, and what ONNX's reference says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = npt.NDArray[Any]
_TYPES = {"uint8": np.uint8, "int8": np.int8}


class Layer(NamedTuple):
    """A layer's form.

    Attributes:
        kind: Conv, Gemm or MatMul.
        shape: of what it reads.
        channels: that it writes.
        window: of a convolution.
        groups, stride, dilation, pads: of a convolution.
        source, written: types of the bytes read and written; "" for numbers.
        zero: whether bytes have zero points.
        by_channel: whether each channel has a scale.
        weights: type of the weights' bytes.
        bias: whether there is one.
        behind: operator behind it, "" for none.
        transposed: whether a Gemm's weights are (out, in).
    """

    kind: str = "Conv"
    shape: tuple[int, ...] = (1, 8, 9, 7)
    channels: int = 16
    window: tuple[int, int] = (3, 3)
    groups: int = 1
    stride: int = 1
    dilation: int = 1
    pads: tuple[int, int, int, int] = (1, 1, 1, 1)
    source: str = "uint8"
    written: str = "uint8"
    zero: bool = True
    by_channel: bool = True
    weights: str = "int8"
    bias: bool = True
    behind: str = ""
    transposed: bool = True


def drawn(rng: np.random.Generator) -> Layer:
    """A random form: 30 % asymmetric, 30 % by channel."""

    def one(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    kind = one("Conv", "Conv", "Gemm", "MatMul")
    groups = one(1, 1, 2, 8) if kind == "Conv" else 1
    inner = groups * one(1, 1, 2, 3, 4) if groups > 1 else one(1, 3, 8, 16, 17, 33)
    shape = (one(1, 1, 2), inner, one(4, 7, 9), one(3, 8)) if kind == "Conv" else (one(1, 3, 5), inner)
    if kind == "MatMul" and rng.random() < 0.5:
        shape = (2, *shape)
    return Layer(
        kind,
        shape,
        groups * one(1, 1, 2, 5) if groups > 1 else one(1, 5, 8, 16, 19, 40),
        one((1, 1), (3, 3), (2, 3)),
        groups,
        one(1, 1, 2),
        one(1, 1, 2) if min(shape[-2:]) > 4 else 1,
        one((0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 0, 1)),
        one("uint8", "uint8", "int8"),
        one("uint8", "uint8", "int8", ""),
        bool(rng.random() < 0.3),
        bool(rng.random() < 0.3),
        one("int8", "int8", "uint8"),
        bool(rng.random() < 0.7) and kind != "MatMul",
        one("", "", "Relu", "Clip", "HardSwish", "Sigmoid", "LeakyRelu"),
        bool(rng.random() < 0.5),
    )


def _model(nodes: list[onnx.NodeProto], constants: dict[str, Array], x: Array, written: str) -> onnx.ModelProto:
    body = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)],
        [helper.make_tensor_value_info("y", helper.np_dtype_to_tensor_dtype(np.dtype(written)), None)],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


class Made(NamedTuple):
    """A model's file, what it is given, what it writes by ONNX's reference, and the scale of that."""

    path: Path
    inputs: dict[str, Array]
    wanted: Array
    step: float


def made(layer: Layer, folder: Path, seed: int = 0, extreme: bool = False) -> Made:
    """Write a model of one layer, which reads bytes.

    Args:
        layer: its form.
        folder: where its file goes.
        seed: of weights, scales and inputs.
        extreme: whether all bytes are the largest ones.
    """
    rng = np.random.default_rng(seed)
    source = np.iinfo(_TYPES[layer.source])
    x = rng.integers(source.min, source.max + 1, layer.shape).astype(_TYPES[layer.source])
    if layer.kind == "Conv":
        inner = layer.shape[1] // layer.groups
        size, axis = (layer.channels, inner, *layer.window), 0
    else:
        inner = layer.shape[-1]
        wide = layer.kind == "Gemm" and layer.transposed
        size, axis = ((layer.channels, inner), 0) if wide else ((inner, layer.channels), 1)
    low = -127 if layer.weights == "int8" else 1
    w = rng.integers(low, low + 255, size)
    zero = 3 if layer.source == "int8" else 125
    if extreme:
        x, w, zero = np.full_like(x, source.max), np.full_like(w, low + 254), 0 if layer.source == "uint8" else -128
    length = w.size // layer.channels
    scales = (0.02 / np.sqrt(length) * (0.5 + rng.random(layer.channels if layer.by_channel else 1))).astype(np.float32)
    constants: dict[str, Array] = {
        "xs": np.float32(0.02) * np.ones((), np.float32),
        "xz": np.array(zero if layer.zero or extreme else 0, _TYPES[layer.source]),
        "w": w.astype(_TYPES[layer.weights]),
        "ws": scales if layer.by_channel else scales[0],
        "wz": np.full(scales.shape if layer.by_channel else (), 0 if layer.weights == "int8" else 128, _TYPES[layer.weights]),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"], name="numbers"),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], name="weights", axis=axis),
    ]
    attributes: dict[str, Any] = {}
    if layer.kind == "Conv":
        attributes = {
            "group": layer.groups, "strides": [layer.stride] * 2, "dilations": [layer.dilation] * 2, "pads": layer.pads,
            "kernel_shape": layer.window,
        }  # fmt: skip
    elif layer.kind == "Gemm":
        attributes = {"transB": int(layer.transposed)}
    reads = ["xf", "wf"]
    if layer.bias:
        constants |= {
            "b": rng.integers(-500, 500, layer.channels).astype(np.int32),
            "bs": np.broadcast_to(np.float32(0.02) * scales, (layer.channels,)).copy(),
        }
        nodes.append(helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"], name="bias", axis=0))
        reads.append("bf")
    nodes.append(helper.make_node(layer.kind, reads, ["c"], name="layer", **attributes))
    last = "c"
    if layer.behind:
        more = {"low": np.float32(0), "high": np.float32(1)} if layer.behind == "Clip" else {}
        constants |= {name: np.asarray(value) for name, value in more.items()}
        nodes.append(helper.make_node(layer.behind, [last, *more], ["d"], name="behind"))
        last = "d"
    step = 0.02 * float(scales.max()) * 127 * 255 * length / 200 if extreme else 0.01
    if layer.written:
        constants |= {
            "ys": np.array(step, np.float32),
            "yz": np.array((7 if layer.written == "int8" else 130) if layer.zero and not extreme else 0, _TYPES[layer.written]),
        }
        nodes.append(helper.make_node("QuantizeLinear", [last, "ys", "yz"], ["y"], name="bytes"))
    else:
        nodes[-1].output[0] = "y"
    model = _model(nodes, constants, x, layer.written or "float32")
    path = folder / "layer.onnx"
    onnx.save(model, path)
    (wanted,) = ReferenceEvaluator(model).run(None, {"x": x})
    return Made(path, {"x": x}, wanted, step if layer.written else 0.0)
