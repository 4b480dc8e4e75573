"""Models between bytes, as QDQ: single layers and lines; and each of their kernels run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from hypothesis import strategies as st
from model_file_runs import each_way, write
from model_file_runs import made as model_of
from onnx import helper
from onnx.reference import ReferenceEvaluator

from edgeplan.chapters.cold_start.api import read_model
from edgeplan.graph.onnx.prepare import Preparation, prepare_file
from edgeplan.graph.steps import Lowered
from edgeplan.runtime.dnnl import Dnnl
from edgeplan.runtime.layouts import HOMES

Array = npt.NDArray[Any]
TYPES = ("uint8", "int8")


class Drawing:
    """A model being written."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng, self.nodes = rng, list[onnx.NodeProto]()
        self.constants, self.inputs = dict[str, Array](), dict[str, Array]()

    def constant(self, value: npt.ArrayLike) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(value)
        return name

    def scaling(self, scale: float, dtype: str, zero: int) -> tuple[str, str]:
        return self.constant(np.float32(scale)), self.constant(np.array(zero, dtype))

    def any_scaling(self, scale: float) -> tuple[str, str]:
        """A scale near one, and a zero point that may lie anywhere."""
        dtype = str(self.rng.choice(TYPES))
        bounds = np.iinfo(dtype)
        return self.scaling(scale * (0.7 + 0.6 * self.rng.random()), dtype, int(self.rng.integers(bounds.min, bounds.max + 1)))

    def given(self, value: Array) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = value
        return name

    def bytes_by(self, by: tuple[str, str], shape: Sequence[int], *, extreme: bool = False) -> str:
        """An input of bytes: any, or only the least and the largest."""
        bounds = np.iinfo(self.constants[by[1]].dtype)
        drawn = self.rng.integers(bounds.min, bounds.max + 1, shape)
        value = self.rng.choice([bounds.min, bounds.max], shape) if extreme else drawn
        return self.given(np.asarray(value, bounds.dtype))

    def node(self, op_type: str, *reads: str, **attributes: Any) -> str:
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, [*reads], [name], name=name, **attributes))
        return name

    def model(self, *outputs: str) -> onnx.ModelProto:
        inputs = {name: (helper.np_dtype_to_tensor_dtype(given.dtype), given.shape) for name, given in self.inputs.items()}
        model = model_of(self.nodes, inputs, self.constants, output=" ".join(outputs), opset=21)
        zeros = {made.output[0]: made.input[2] for made in self.nodes if made.op_type == "QuantizeLinear"}
        for written in model.graph.output:
            if written.name in zeros:
                kind = self.constants[zeros[written.name]].dtype
                written.type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(kind)
        return onnx.shape_inference.infer_shapes(model) if any(made.op_type == "Mish" for made in self.nodes) else model

    def wanted(self, *outputs: str) -> list[Array]:
        """What ONNX's reference says of outputs."""
        return [np.asarray(value) for value in ReferenceEvaluator(self.model(*outputs)).run(None, self.inputs)]


def computed(
    dnnl: Dnnl, model: onnx.ModelProto, inputs: dict[str, Array], folder: Path, homes: Sequence[str] = HOMES
) -> Iterator[tuple[Lowered, list[Array], str]]:
    """Run a model by each kernel that is offered under each layout; the steps, the outputs, and what ran them."""
    path = prepare_file(write(model, folder / "given.onnx"), Preparation(), folder / "ready.onnx")
    graph, lowered = read_model(path)
    for how, found in each_way(dnnl, path, inputs, homes, None):
        yield lowered, [found[name] for name in graph.outputs], how


class Layer(NamedTuple):
    """A layer's form: Conv, Gemm or MatMul of a shape to so many channels.

    Bytes are read and written as the types `source` and `written` ("": numbers), with zero points or without, weights by a
    scale for each channel or one. `behind` is an operator behind it, or ""; `transposed`: a Gemm's weights are (out, in).
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


@st.composite
def layers(draw: st.DrawFn) -> Layer:
    """Any form."""

    def one(*options: Any) -> Any:
        return draw(st.sampled_from(options))

    kind = one("Conv", "Gemm", "MatMul")
    groups = one(1, 2, 8) if kind == "Conv" else 1
    inner = groups * one(1, 2, 3, 4) if groups > 1 else one(1, 3, 8, 16, 17, 33, 128)
    shape = (one(1, 2), inner, one(4, 7, 9), one(3, 8)) if kind == "Conv" else (one(1, 3, 5), inner)
    return Layer(
        kind,
        (2, *shape) if kind == "MatMul" and draw(st.booleans()) else shape,
        groups * one(1, 2, 5) if groups > 1 else one(1, 5, 8, 16, 19, 40),
        one((1, 1), (3, 3), (2, 3)),
        groups,
        one(1, 2),
        one(1, 2) if min(shape[-2:]) > 4 else 1,
        one((0, 0, 0, 0), (1, 1, 1, 1), (1, 0, 0, 1)),
        one(*TYPES),
        one(*TYPES, ""),
        draw(st.booleans()),
        draw(st.booleans()),
        one(*TYPES),
        draw(st.booleans()) and kind != "MatMul",
        one("", "Relu", "Clip", "HardSwish", "Sigmoid", "LeakyRelu"),
        draw(st.booleans()),
    )


class Made(NamedTuple):
    """A model of one layer, what it is given, what it writes by ONNX's reference, and the scale of that."""

    model: onnx.ModelProto
    inputs: dict[str, Array]
    wanted: Array
    step: float


def made(layer: Layer, seed: int = 0, *, extreme: bool = False) -> Made:
    """A model of one layer, which reads bytes, all of them the largest ones where that is asked for."""
    drawing, rng = Drawing(np.random.default_rng(seed)), np.random.default_rng(seed)
    source, low = np.iinfo(layer.source), -127 if layer.weights == "int8" else 1
    size, axis = (layer.shape[-1], layer.channels), 1
    if layer.kind == "Conv":
        size, axis = (layer.channels, layer.shape[1] // layer.groups, *layer.window), 0  # type: ignore[assignment]
    elif layer.kind == "Gemm" and layer.transposed:
        size, axis = size[::-1], 0
    x, w = rng.integers(source.min, source.max + 1, layer.shape), rng.integers(low, low + 255, size)
    zero, of_written = (3 if layer.source == "int8" else 125) * layer.zero, (7 if layer.written == "int8" else 130) * layer.zero
    length = w.size // layer.channels
    scales = (0.02 / np.sqrt(length) * (0.5 + rng.random(layer.channels if layer.by_channel else 1))).astype(np.float32)
    step = 0.01
    if extreme:
        x, w, zero, of_written = np.full_like(x, source.max), np.full_like(w, low + 254), source.min, 0
        step = 0.02 * float(scales.max()) * 127 * 255 * length / 200
    by_weight = scales if layer.by_channel else scales[0]
    zeros = np.full(np.shape(by_weight), 0 if layer.weights == "int8" else 128, layer.weights)
    reads = [
        drawing.node("DequantizeLinear", drawing.given(x.astype(layer.source)), *drawing.scaling(0.02, layer.source, zero)),
        drawing.node("DequantizeLinear", *map(drawing.constant, (w.astype(layer.weights), by_weight, zeros)), axis=axis),
    ]
    if layer.bias:
        values = rng.integers(-500, 500, layer.channels).astype(np.int32), np.zeros(layer.channels, np.float32) + 0.02 * scales
        reads.append(drawing.node("DequantizeLinear", *map(drawing.constant, (values[0], np.float32(values[1]))), axis=0))
    attributes: dict[str, Any] = {"transB": int(layer.transposed)} if layer.kind == "Gemm" else {}
    if layer.kind == "Conv":
        attributes = {"group": layer.groups, "strides": [layer.stride] * 2, "dilations": [layer.dilation] * 2}
        attributes |= {"pads": layer.pads, "kernel_shape": layer.window}
    last = drawing.node(layer.kind, *reads, **attributes)
    if layer.behind:
        bounds = [drawing.constant(np.float32(value)) for value in (0, 1)] if layer.behind == "Clip" else []
        last = drawing.node(layer.behind, last, *bounds)
    if layer.written:
        last = drawing.node("QuantizeLinear", last, *drawing.scaling(step, layer.written, of_written))
    (wanted,) = drawing.wanted(last)
    return Made(drawing.model(last), drawing.inputs, wanted, step if layer.written else 0.0)
