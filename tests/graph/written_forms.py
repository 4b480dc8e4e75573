"""Small models of one operator each, in the forms that exporters write it in: the table of `test_forms.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from model_file_runs import made
from onnx import TensorProto, helper

Array = npt.NDArray[Any]
IMAGE = (1, 6, 8, 10)
_TRUE = 0.4
_random = np.random.default_rng(7)


@dataclass(frozen=True)
class Form:
    """A small model; the node whose form matters is called `odd`."""

    nodes: tuple[onnx.NodeProto, ...]
    inputs: Mapping[str, Sequence[int]]
    constants: Mapping[str, Array]
    opset: int = 17
    outputs: Sequence[str] = ("y",)
    types: Mapping[str, int] = field(default_factory=dict)  # of inputs and outputs that are not of float32

    def model(self) -> onnx.ModelProto:
        inputs = {name: (self.types.get(name, TensorProto.FLOAT), shape) for name, shape in self.inputs.items()}
        found = made(self.nodes, inputs, self.constants, output=" ".join(self.outputs), opset=self.opset)
        for written in found.graph.output:
            written.type.tensor_type.elem_type = self.types.get(written.name, TensorProto.FLOAT)
        return found


def drawn_inputs(model: onnx.ModelProto, seed: int = 1, *, least: int = -3) -> dict[str, Array]:
    """Seeded inputs: numbers of both signs, whole ones from the least one on, truth."""
    rng, found = np.random.default_rng(seed), {}
    for read in model.graph.input:
        kind = read.type.tensor_type
        dtype, shape = helper.tensor_dtype_to_np_dtype(kind.elem_type), [d.dim_value for d in kind.shape.dim]
        if dtype.kind == "f":
            drawn = rng.standard_normal(shape)
        else:
            drawn = rng.random(shape) < _TRUE if dtype.kind == "b" else rng.integers(least, 3, shape)
        found[read.name] = np.asarray(drawn).astype(dtype)
    return found


def node(op_type: str, reads: str, writes: str = "y", name: str = "odd", **attributes: Any) -> onnx.NodeProto:
    """A node; `-` stands for an absent input or output."""
    inputs, outputs = (["" if n == "-" else n for n in names.split()] for names in (reads, writes))
    return helper.make_node(op_type, inputs, outputs, name=name, **attributes)


def value(given: Any) -> Array:
    """A constant: random of a shape (a tuple), or the numbers themselves; arrays of integers keep their type."""
    if isinstance(given, np.ndarray) and given.dtype.kind in "iu":
        return given
    if isinstance(given, tuple):
        return np.asarray(_random.random(given, dtype=np.float32) - np.float32(0.5))
    kinds = {"i": np.int64, "b": np.bool_}
    return np.asarray(given, dtype=kinds.get(np.asarray(given).dtype.kind, np.float32))


def one(
    op_type: str,
    reads: str = "x",
    inputs: Mapping[str, Sequence[int]] | Sequence[int] = IMAGE,
    constants: Mapping[str, Any] | None = None,
    *,
    opset: int = 17,
    writes: str = "y",
    types: Mapping[str, int] | None = None,
    **attributes: Any,
) -> Form:
    given = inputs if isinstance(inputs, Mapping) else {"x": inputs}
    values = {name: value(v) for name, v in (constants or {}).items()}
    outputs = tuple(name for name in writes.split() if name != "-")
    return Form((node(op_type, reads, writes, **attributes),), given, values, opset, outputs, types or {})


def behind(first: onnx.NodeProto, form: Form, **constants: Any) -> Form:
    """A form whose first node follows another one, and may be fused into it."""
    values = {**form.constants, **{name: value(v) for name, v in constants.items()}}
    return Form((first, *form.nodes), form.inputs, values, form.opset, form.outputs)


_SQUARE = (6, 6, 1, 1)

#: What ONNX's own tests of operators, which are run, too, do not have: old opsets, and forms that have code of their own.
EQUAL: dict[str, Form] = {
    # one axis that is not of size 1 from `axis` on, and several, which are joined
    **{
        f"softmax of opset {opset}, axis {axis} of {shape}": one("Softmax", "x", shape, opset=opset, axis=axis)
        for opset, axis, shape in ((7, 1, (3, 7)), (11, -1, (2, 3, 5)), (12, 3, IMAGE), (11, 1, (1, 5, 1, 1)), (12, -2, IMAGE))
    },
    "softmax of opset 11, default axis": one("Softmax", "x", (2, 1, 5), opset=11),
    "clip of opset 6": one("Clip", opset=6, min=-0.1, max=0.2),
    "clip without bounds": one("Clip"),
    "mean over the image": one("ReduceMean", axes=[-1, 2], keepdims=0),
    "split of opset 11": one("Split", opset=11, writes="y q", axis=1, split=[2, 4]),
    "split of opset 18, unevenly": one("Split", opset=18, writes="y q r", axis=-2, num_outputs=3),
    "unsqueeze of opset 11": one("Unsqueeze", "x", (6, 8), opset=11, axes=[0, 3]),
    "batch normalisation of opset 9": one(
        "BatchNormalization", "x s b m v", (2, 6, 8, 10), {**dict.fromkeys("sbm", (6,)), "v": np.arange(6) / 4 + 0.5}, opset=9
    ),
    "sum of a lower rank behind a convolution": behind(
        node("Conv", "x w", "h", "first"), one("Add", "z h", {"x": IMAGE, "z": (8, 10)}), w=_SQUARE
    ),
    "gemm with a computed C": one("Gemm", "x w z", {"x": (4, 7), "z": (4, 4)}, {"w": (7, 4)}, beta=2.0),
    "gemm of itself": one("Gemm", "x x x", (5, 5), alpha=0.5, beta=0.25),
    "AveragePool, padding counted, rounded up, dilated": one(
        "AveragePool", "x", (1, 3, 12, 12), opset=19, kernel_shape=[3, 3], strides=[2, 2], dilations=[2, 2], pads=[1] * 4,
        ceil_mode=1, count_include_pad=1,
    ),
    "mean over no axes": one("ReduceMean", keepdims=1, noop_with_empty_axes=1, opset=18),
    "transpose of 8 axes": one("Transpose", "x", (2, 3, 2, 3, 2, 2, 3, 2), perm=[7, 3, 5, 1, 4, 2, 0, 6]),
    "nearest, tf_half_pixel_for_nn": one(
        "Resize", "x - s", (1, 3, 4, 6), {"s": [1.0, 1.0, 1.25, 1.75]}, opset=19, mode="nearest",
        coordinate_transformation_mode="tf_half_pixel_for_nn",
    ),
    "sizes behind empty tensors": one("Resize", "x e e s", (1, 3, 4, 6), {"e": value((0,)), "s": [1, 3, 8, 6]}, mode="nearest"),
    "linear of the channels": one("Resize", "x - - s", (1, 4, 3, 3), {"s": [1, 6, 3, 3]}, mode="linear"),
    "linear along a line": one("Resize", "x - - s", (2, 6, 20), {"s": [2, 6, 31]}, mode="linear"),
    "sizes of axes counted from behind": one("Resize", "x - - s", (1, 3, 4, 6), {"s": [9, 5]}, opset=18, axes=[-1, -2]),
    "scales of chosen axes": one("Resize", "x - s", (1, 3, 4, 6), {"s": [1.5, 2.0]}, opset=18, mode="linear", axes=[3, 2]),
    **{
        f"{mode} of opset 10 by {scales}": one("Resize", "x s", (1, 3, 4, 6), {"s": [1.0, 1.0, *scales]}, mode=mode, opset=10)
        for mode, scales in (("nearest", (0.6, 1.0)), ("nearest", (1.5, 2.5)), ("linear", (0.5, 2.0)))
    },
    "Upsample of opset 7": one("Upsample", "x", (1, 3, 4, 6), opset=7, mode="nearest", scales=[1.0, 1, 2, 1.5]),
    "Upsample of opset 9": one("Upsample", "x s", (1, 3, 4, 6), {"s": [1.0, 1, 2, 1.5]}, opset=9, mode="linear"),
    "pixel shuffle between convolutions": Form(
        (
            node("Conv", "x w", "h", "c"), node("Reshape", "h s", "a", "p"),
            node("Transpose", "a", "b", perm=[0, 1, 4, 2, 5, 3]), node("Reshape", "b t", "k", "q"),
            node("Conv", "k u", "y", "d"),
        ),
        {"x": (1, 8, 3, 3)},
        {
            "w": value((8, 8, 1, 1)), "u": value((3, 2, 1, 1)), "s": value([1, 2, 2, 2, 3, 3]), "t": value([1, 2, 6, 6]),
        },
    ),
}  # fmt: skip

#: Forms that the runtime lacks, and what the message says.
REFUSED: dict[str, tuple[Form, str]] = {
    "nearest of opset 10, one axis enlarged and one shrunk": (
        one("Resize", "x s", (1, 3, 4, 6), {"s": [1.0, 1.0, 1.5, 0.7]}, opset=10),
        "shrinks one axis and enlarges another",
    ),
    "relu of 11 axes": (one("Relu", "x", (1, 2) + (1,) * 9), "of 11 axes"),
    "dilated with automatic padding": (
        one("MaxPool", kernel_shape=[3, 3], dilations=[2, 2], strides=[2, 2], auto_pad="SAME_UPPER"), "auto_pad",
    ),
    **{
        f"{op_type} with a window that starts in the padding, {counted}": (
            one(op_type, "x", (1, 3, 8, 9), kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1, **counted),
            "nothing but padding",
        )
        for op_type, counted in (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1}))
    },
    "indices of maxima": (Form((node("MaxPool", "x", "y q", kernel_shape=[2, 2]),), {"x": IMAGE}, {}), "not float32"),
    "GRU of shorter sequences": (
        one(
            "GRU", "x w r - n", (4, 2, 3), {"w": (1, 15, 3), "r": (1, 15, 5), "n": np.array([4, 3], np.int32)}, hidden_size=5
        ),
        "sequences that end early",
    ),
}  # fmt: skip
