"""Operators that do not fit what they read, or that no kernel stands for, are refused: no number is made up for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx_models import IMAGE, W, conv, integers, model, node, refused, weight

from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import make_kernel
from edgeplan.graph.kinds import operator_macs
from edgeplan.graph.onnx.read import from_onnx


def _config(graph: Graph) -> Any:
    return make_kernel(graph, [graph.operators[0].name]).config


def test_a_convolution_over_a_line_folds_into_one_over_an_image() -> None:
    line = from_onnx(model([conv(pads=[2, 1], strides=[2])], [weight("w", 6, 4, 5)], (1, 4, 32)))
    image = from_onnx(model([conv(pads=[2, 0, 1, 0], strides=[2, 1])], [weight("w", 6, 4, 5, 1)], (1, 4, 32, 1)))
    assert line.shape("y") == image.shape("y")[:3] == (1, 6, 16)
    assert _config(line) == _config(image)


@pytest.mark.parametrize(
    "given",
    [
        model([conv()], [weight("w", 6, 4, 3, 3, 3, 3)], (1, 4, 8, 8, 8, 8)),
        model([node("MaxPool", ["x"], ["y"], kernel_shape=[2, 2, 2, 2])], shape=(1, 4, 8, 8, 8, 8)),
        model([node("GlobalAveragePool", ["x"], ["y"])], shape=(1, 4, 8, 8, 8, 8)),
    ],
)
def test_windows_over_four_axes_are_refused(given: onnx.ModelProto) -> None:
    refused(given, "over 4 spatial axes")


def test_windows_over_volumes_are_a_kind_of_their_own() -> None:
    given = model([conv(strides=[1, 2, 3], pads=[0, 1, 2, 1, 1, 0])], [weight("w", 6, 4, 1, 3, 5)], (1, 4, 8, 9, 10))
    graph = from_onnx(given)
    config = make_kernel(graph, [op.name for op in graph.operators]).config
    assert (config.kind, config.kernel_h, config.kernel_w, config.stride_w, config.pad_left) == ("conv3d", 1, 15, 6, 3)
    assert operator_macs(graph, graph.operators[0]) == graph.tensors["y"].elements * 4 * 15


_FIVES = [weight(name, 5) for name in ("s", "b", "m", "v")]
_GATES, _RECURRENCE = weight("w", 1, 12, 4), weight("r", 1, 12, 3)


def _norm(**attributes: Any) -> onnx.NodeProto:
    return node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"], **attributes)


def _lstm(**attributes: Any) -> onnx.NodeProto:
    return node("LSTM", ["x", "w", "r"], ["y"], hidden_size=3, **attributes)


def _unary(op_type: str, **attributes: Any) -> onnx.NodeProto:
    return node(op_type, ["x"], ["y"], **attributes)


def _binary(op_type: str, *reads: str, **attributes: Any) -> onnx.NodeProto:
    return node(op_type, reads or ["x", "w"], ["y"], **attributes)


@pytest.mark.parametrize(
    ("given", "constants", "shape", "said"),
    [
        (conv(), [weight("w", 6, 5, 3, 3)], IMAGE, r"a weight \(6, 5, 3, 3\) for 4 channels in 1 group"),
        (conv(group=2), [W], IMAGE, "for 4 channels in 2 groups"),
        (conv(group=2), [weight("w", 5, 2, 3, 3)], IMAGE, "for 4 channels in 2 groups"),
        (conv(group=0), [W], IMAGE, "impossible group 0"),
        (conv(kernel_shape=[5, 5]), [W], IMAGE, r"for a window \(5, 5\)"),
        (conv(strides=[0, 1]), [W], IMAGE, "impossible strides"),
        (conv(strides=[1]), [W], IMAGE, "Conv: Attribute strides has incorrect size"),
        (conv(pads=[1, 1]), [W], IMAGE, "Conv: Attribute pads has incorrect size"),
        (conv(pads=[-1, 0, 0, 0]), [W], IMAGE, "impossible pads"),
        (conv(auto_pad="SAMF"), [W], IMAGE, "auto_pad 'SAMF'"),
        (conv(auto_pad="VALID", pads=[1, 1, 1, 1]), [W], IMAGE, "auto_pad 'VALID' and pads"),
        (conv(), [weight("w", 6, 4, 9, 9)], IMAGE, "no static shape"),
        (_binary("Conv", "x", "w", "b"), [W, weight("b", 5)], IMAGE, r"a bias \(5,\) for 6 channels"),
        (_unary("MaxPool"), [], IMAGE, "'kernel_shape' is missing"),
        (_binary("Gemm"), [weight("w", 9, 3)], (1, 8), "Gemm"),
        (_binary("Gemm", transB=1), [weight("w", 8, 3)], (1, 8), "Gemm"),
        (_binary("Gemm", "x", "w", "b"), [weight("w", 8, 3), weight("b", 4)], (1, 8), r"a bias \(4,\)"),
        (_binary("Gemm", transA=1), [weight("w", 8, 3)], (1, 8), "Gemm"),
        (_binary("Gemm", "w", "x"), [weight("w", 3, 9)], (8, 8), "Gemm"),
        (_binary("Gemm", "x", "w", "b"), [weight("w", 8, 3), weight("b", 2, 1)], (1, 8), r"a bias \(2, 1\)"),
        (_binary("MatMul"), [weight("w", 9, 3)], (1, 8), "MatMul"),
        (_binary("MatMul", "w", "x"), [weight("w", 8, 9)], (8, 8), "MatMul"),
        (_binary("MatMul"), [weight("w", 8, 3)], (9,), "MatMul"),
        (_binary("MatMul"), [weight("w", 8, 3)], (), "MatMul"),
        (_norm(), _FIVES, IMAGE, "BatchNormalization"),
        (_norm(training_mode=1), _FIVES, (1, 5, 8, 8), "in training mode"),
        (_lstm(), [weight("w", 1, 12, 5), _RECURRENCE], (5, 2, 4), "LSTM with weights"),
        (_lstm(), [_GATES, weight("r", 1, 12, 4)], (5, 2, 4), "LSTM with weights"),
        (_lstm(direction="upward"), [_GATES, _RECURRENCE], (5, 2, 4), "unknown direction 'upward'"),
        (_binary("Reshape", "x", "s"), [integers("s", 1, 255)], IMAGE, r"Reshape of \(1, 4, 8, 8\) to \(1, 255\)"),
        (_binary("Reshape", "x", "s"), [weight("s", 2)], IMAGE, "shape is 2 numbers of type float32"),
        (node("Split", ["x", "s"], ["y", "z"], axis=1), [integers("s", -2, 6)], IMAGE, "no static shape"),
        (_unary("Transpose", perm=[0, 1, 2]), [], IMAGE, "Transpose of 4 axes by"),
        (_binary("Concat", axis=1), [weight("w", 1, 4, 8, 9)], IMAGE, "Concat"),
        (_unary("Softmax", axis=4), [], IMAGE, "axis"),
        (_binary("Concat", "x", "x", axis=1 << 32), [], IMAGE, "along axis 4294967296"),
        (_unary("ReduceMean", axes=[4]), [], IMAGE, "axis|axes"),
        (_unary("LRN", size=0), [], IMAGE, "over 0 channels"),
        (_binary("Clip"), [weight("w", 0)], IMAGE, "min is 0 numbers"),
        (_binary("Add"), [weight("w", 1, kind=np.float16)], IMAGE, "inconsistent type"),
        (_binary("Add"), [weight("w", 5)], IMAGE, "Incompatible dimensions"),
        (_binary("Resize", "x", "", "w", mode="nearesu"), [weight("w", 4)], IMAGE, "unknown mode 'nearesu'"),
        (_unary("Relu", alpha=1.0), [], IMAGE, "Unrecognized attribute: alpha"),
    ],
)
def test_operators_that_do_not_fit_are_refused(
    given: onnx.NodeProto, constants: list[TensorProto], shape: Sequence[int], said: str
) -> None:
    refused(model([given], constants, shape), said)


def test_an_output_without_a_name() -> None:
    refused(model([node("Relu", ["x"], [""]), node("Relu", ["x"], ["y"])]), "empty string")


def test_weights_and_shapes_that_the_model_computes_are_refused() -> None:
    refused(model([conv()], more=[("w", (6, 4, 3, 3))]), "whose W is no initialiser")
    refused(model([node("Clip", ["x", "", "w"], ["y"])], more=[("w", ())]), "whose max is no constant")


def test_declared_shapes_that_contradict_the_operators() -> None:
    stale = refused(model([conv()], [W], output=(1, 6, 7, 6)), r"differ in dimension 2: \(6\) vs \(7\)")
    assert "'c'" in stale.where
    assert "value_info" in stale.next_step
    inner = model([conv("x", "a"), node("Relu", ["a"], ["y"])], [W])
    inner.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, (1, 9, 6, 6)))
    refused(inner, "differ in dimension 1")


def test_padding_by_a_mode_wins_over_pads_of_zero() -> None:
    graph = from_onnx(model([conv(auto_pad="SAME_UPPER", pads=[0, 0, 0, 0])], [W]))
    assert graph.shape("y") == (1, 6, 8, 8)
    assert (_config(graph).pad_top, _config(graph).pad_bottom) == (1, 1)


def test_a_transposition_without_axes_reverses_them() -> None:
    graph = from_onnx(model([node("Transpose", ["x"], ["y"])], shape=(1, 2, 3, 4)))
    assert graph.shape("y") == (4, 3, 2, 1)
    assert _config(graph).permutation == "3210"
