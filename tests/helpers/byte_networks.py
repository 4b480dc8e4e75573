"""Random networks between bytes, as QDQ: each tensor is rounded to bytes by a scale of what it holds, as calibration does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
_OPERATORS = 6
_BYTES = {np.uint8: TensorProto.UINT8, np.int8: TensorProto.INT8}


class _Drawing:
    """A network being drawn; each activation is known by the values that it holds for one input."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.values: dict[str, Array] = {}  # of activations behind DequantizeLinear

    def constant(self, value: npt.ArrayLike) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def node(self, op_type: str, *reads: str, **attributes: Any) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(reads), [name], name=name, **attributes))
        return name

    def rounded(self, tensor: str, values: Array) -> str:
        """Bytes of an activation and numbers of these: 30 % asymmetric."""
        dtype = (np.uint8, np.int8)[int(self.rng.integers(2))]
        low, high = min(0.0, float(values.min())), max(1e-3, float(values.max()))
        if self.rng.random() < 0.3:
            scale, zero = (high - low) / 255, round(-low / (high - low) * 255) - (128 if dtype == np.int8 else 0)
        else:
            scale, zero = max(high, -low) / 127, 0 if dtype == np.int8 else 128
        by = self.constant(np.float32(scale)), self.constant(np.array(zero, dtype))
        numbers = self.node("DequantizeLinear", self.node("QuantizeLinear", tensor, *by), *by)
        bounds = np.iinfo(dtype)
        self.values[numbers] = ((np.rint(values / scale) + zero).clip(bounds.min, bounds.max) - zero) * scale
        return numbers

    def weight(self, shape: tuple[int, ...], axis: int) -> str:
        """A weight of bytes, 30 % by channel, some unsigned about 128."""
        dtype = (np.int8, np.uint8)[int(self.rng.random() < 0.2)]
        several, channels = self.rng.random() < 0.3, shape[axis]
        scale = (1 + self.rng.random(channels if several else 1)) / 127 / np.sqrt(np.prod(shape) / channels)
        zeros = np.full(channels if several else (), 128 if dtype == np.uint8 else 0, dtype)
        values = self.rng.integers(-127, 128, shape) + (128 if dtype == np.uint8 else 0)
        by = self.constant(scale.astype(np.float32) if several else np.float32(scale[0])), self.constant(zeros)
        return self.node("DequantizeLinear", self.constant(values.astype(dtype)), *by, **({"axis": axis} if several else {}))

    def step(self) -> None:
        """One more operator on what there is."""
        images = [name for name, values in self.values.items() if values.ndim == 4]
        tensor = images[-1 - int(self.rng.integers(min(2, len(images))))]
        channels = self.values[tensor].shape[1]
        kind = self.rng.choice(["Conv", "Conv", "Conv", "depthwise", "Add", "MaxPool", "Concat", "Sigmoid", "Mul"])
        other = next((n for n in images[::-1] if n != tensor and self.values[n].shape == self.values[tensor].shape), "")
        if kind in ("Conv", "depthwise"):
            out, group = (channels, channels) if kind == "depthwise" else (int(self.rng.choice([3, 8, 16, 20])), 1)
            size = int(self.rng.choice([1, 3]))
            bias = self.constant((self.rng.standard_normal(out) / 10).astype(np.float32))
            reads = [tensor, self.weight((out, channels // group, size, size), 0), bias]
            found = self.node("Conv", *reads, pads=[size // 2] * 4, group=group, strides=[int(self.rng.choice([1, 1, 2]))] * 2)
            if self.rng.random() < 0.5:
                found = self.node(str(self.rng.choice(["Relu", "HardSwish", "LeakyRelu"])), found)
        elif kind in ("Add", "Mul", "Concat") and other:
            found = self.node(kind, tensor, other, **({"axis": 1} if kind == "Concat" else {}))
        elif kind == "MaxPool":
            found = self.node(kind, tensor, kernel_shape=[3, 3], pads=[1] * 4)
        else:
            found = self.node("Sigmoid", tensor)
        self.rounded(found, self.computed(found))

    def computed(self, tensor: str) -> Array:
        (values,) = self.session(tensor).run(None, {"x": self.given})
        return np.asarray(values)

    def session(self, *outputs: str) -> ort.InferenceSession:
        """ONNX Runtime, without optimisations, on what has been drawn."""
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level, options.intra_op_num_threads = 3, 1
        model = self.model(*outputs).SerializeToString()
        return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def model(self, *outputs: str) -> onnx.ModelProto:
        body = helper.make_graph(
            self.nodes,
            "network",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.given.shape)],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
            [numpy_helper.from_array(value, name) for name, value in self.constants.items()],
        )
        return helper.make_model(body, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def begin(self) -> None:
        self.given = self.rng.standard_normal((1, int(self.rng.choice([3, 8])), 9, 8)).astype(np.float32)
        self.rounded("x", self.given)


def network(seed: int, path: Path) -> tuple[Array, list[Array], list[float]]:
    """Write a random network, and return an input, its outputs by ONNX Runtime without optimisations, and their scales."""
    drawing = _Drawing(np.random.default_rng(seed))
    drawing.begin()
    for _ in range(_OPERATORS):
        drawing.step()
    last = list(drawing.values)[-1]
    mean = drawing.node("GlobalAveragePool", last)
    pooled = drawing.rounded(mean, drawing.computed(mean))
    flat = drawing.node("Flatten", pooled)
    channels = drawing.values[pooled].shape[1]
    layer = drawing.node("MatMul", flat, drawing.weight((channels, 10), 1))
    outputs = [drawing.rounded(layer, drawing.computed(layer)), last]
    onnx.save(drawing.model(*outputs), path)
    by = {node.output[0]: node.input[1] for node in drawing.nodes if node.op_type == "DequantizeLinear"}
    scales = [float(drawing.constants[by[name]]) for name in outputs]
    return drawing.given, drawing.session(*outputs).run(None, {"x": drawing.given}), scales
