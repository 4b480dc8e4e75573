"""Small networks that ONNX Runtime's own tool quantises, as exporters do it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from model_file_runs import made, node, write
from onnxruntime import quantization

SHAPE = (1, 3, 16, 16)
Array = npt.NDArray[np.float32]


class _Images(quantization.CalibrationDataReader):
    def __init__(self, name: str, shape: tuple[int, ...]) -> None:
        self._name, self._images = name, iter(images(shape, 4))

    def get_next(self) -> dict[str, Array] | None:  # type: ignore[override]
        image = next(self._images, None)
        return None if image is None else {self._name: image}


def images(shape: tuple[int, ...] = SHAPE, count: int = 1, seed: int = 1) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(shape).astype(np.float32) for _ in range(count)]


def network(path: Path) -> Path:
    """A network of convolutions, a sum, a concatenation, pools, an activation and a layer, in float32."""
    rng = np.random.default_rng(0)
    weights = {
        name: (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)
        for name, shape in {"a": (8, 3, 3, 3), "b": (8, 8, 3, 3), "c": (8, 8, 1, 1), "d": (8, 1, 3, 3), "k": (10, 24)}.items()
    }
    weights |= {name: rng.standard_normal(size).astype(np.float32) for name, size in (("ab", 8), ("bb", 8), ("kb", 10))}
    nodes = [
        node("Conv", "x a ab", "1", name="conv1", pads=[1] * 4),
        node("Relu", "1", "2", name="relu1"),
        node("MaxPool", "2", "3", name="pool", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "3 b bb", "4", name="conv2", pads=[1] * 4),
        node("Add", "3 4", "5", name="add"),
        node("Sigmoid", "5", "6", name="sigmoid"),
        node("Conv", "5 c", "7", name="conv3"),
        node("Conv", "7 d", "8", name="conv4", group=8, pads=[1] * 4),
        node("LeakyRelu", "8", "9", name="leaky", alpha=0.1),
        node("Concat", "6 9 5", "10", name="concat", axis=1),
        node("GlobalAveragePool", "10", "11", name="gap"),
        node("Flatten", "11", "12", name="flat"),
        node("Gemm", "12 k kb", name="layer", transB=1),
    ]
    return write(made(nodes, {"x": SHAPE}, weights), path)


def deep(path: Path) -> Path:
    """Blocks of convolutions one after the other, which magnify what was rounded to another byte."""
    rng, nodes, weights = np.random.default_rng(0), list[onnx.NodeProto](), dict[str, Array]()

    def conv(x: str, shape: tuple[int, ...], *, group: int = 1) -> str:
        name, size = f"w{len(nodes)}", np.prod(shape[1:])
        weights[name] = (rng.standard_normal(shape) * np.sqrt(2 / size)).astype(np.float32)
        weights[f"b{name}"] = (rng.standard_normal(shape[0]) * 0.05).astype(np.float32)
        nodes.append(node("Conv", f"{x} {name} b{name}", f"c{name}", pads=[shape[-1] // 2] * 4, group=group))
        return f"c{name}"

    def relu(x: str) -> str:
        nodes.append(node("Relu", x, f"{x}r"))
        return f"{x}r"

    last = relu(conv("x", (16, 3, 3, 3)))
    for block in range(10):
        inner = relu(conv(relu(conv(last, (32, 16, 1, 1))), (32, 1, 3, 3), group=32))
        nodes.append(node("Add", f"{conv(inner, (16, 32, 1, 1))} {last}", f"a{block}"))
        last = f"a{block}"
    conv(last, (2, 16, 1, 1))
    nodes[-1].output[0] = "y"
    return write(made(nodes, {"x": SHAPE}, weights), path)


def quantised(folder: Path, form: str, *, network: Callable[[Path], Path] = network, **more: Any) -> Path:
    """A network in eight bits: as `qdq`, `operators` (QLinearConv ...) or `dynamic` (ConvInteger, MatMulInteger ...)."""
    given, path = network(folder / "float.onnx"), folder / f"{form}.onnx"
    logging.disable(logging.WARNING)  # it advises to optimise the model before
    try:
        if form == "dynamic":
            quantization.quantize_dynamic(given, path, **more)
        else:
            kind = quantization.QuantFormat.QDQ if form == "qdq" else quantization.QuantFormat.QOperator
            options = {"activation_type": quantization.QuantType.QUInt8, "weight_type": quantization.QuantType.QInt8} | more
            name = onnx.load(given).graph.input[0].name
            quantization.quantize_static(given, path, _Images(name, SHAPE), quant_format=kind, **options)
    finally:
        logging.disable(logging.NOTSET)
    return path
