"""Quantised operators as preparation writes them: numbers of bytes, what is computed from these, and bytes of the result.

`QLinearConv` and the like become DequantizeLinear, the operator and QuantizeLinear, and constants become the numbers that they
stand for. Sums of products of bytes (`MatMulInteger`) are exact up to 2^24 and rounded to single precision beyond.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from edgeplan.graph.onnx.rewriting import MICROSOFT, Array, Known, Rewriting, Way, operator_key, opset_of
from edgeplan.graph.onnx.stored import read_as_weights
from edgeplan.graph.operators.base import copied
from edgeplan.graph.operators.quantising import check_scale

_LARGEST_BYTE = 255
_SIGNED = np.iinfo(np.int8)
#: From this opset on DequantizeLinear has scales along an axis.
_OF_ONE_AXIS = 13
_BYTES = frozenset({TensorProto.INT8, TensorProto.UINT8})
_STORED = _BYTES | {TensorProto.INT32}
#: Operators that pick or move bytes, and do the same to the numbers of their values: where their operands of bytes stand.
_ON_VALUES: Mapping[str, slice] = MappingProxyType(
    {
        **dict.fromkeys(("MaxPool", "GlobalMaxPool", "Relu", "Resize"), slice(0, 1)),
        **dict.fromkeys(("Max", "Min", "Clip"), slice(None)),
    }
)


_QUANTISE, _AS_QDQ = "quantise the model again", "quantise the model as QDQ"


def _dequantised(of: Rewriting, values: str, scale: str, zero: str = "", axis: int = 0) -> str:
    """Write the numbers that bytes stand for; of several scales each is of one place along an axis."""
    several = any(of.size(name) > 1 for name in (scale, zero) if name)
    if several and of.size(scale) == 1 and (one := of.value(scale)) is not None:
        count = of.size(zero)  # one scale, and a zero point for each channel
        scale = of.constant(np.full(count, one.ravel()[0], np.float32))
    along: dict[str, Any] = {"axis": axis} if several else {}
    return of.do("DequantizeLinear", values, scale, zero, **along)


def _numbers(of: Rewriting, values: int, scale: int, zero: int, axis: int = 0) -> str:
    if not of.read(values) or not of.read(scale):
        of.refuse("without a scale", _QUANTISE)
    return _dequantised(of, of.read(values), of.read(scale), of.read(zero), axis)


def _bytes(of: Rewriting, numbers: str, scale: int, zero: int) -> None:
    of.do("QuantizeLinear", numbers, of.read(scale), of.read(zero), into=of.node.output[0])


def _kept(of: Rewriting) -> dict[str, Any]:
    if of.get("channels_last", 0):
        of.refuse("with channels last", f"{_AS_QDQ}, with channels first")
    return {key: value for key, value in of.attributes.items() if key != "channels_last"}


def _with_bias(of: Rewriting, reads: list[str], bias: int, *factors: float) -> list[str]:
    """Return operands, and the numbers of a bias if there is one: its scale is the product of theirs, and of factors."""
    if not of.read(bias):
        return reads
    a, b = (of.value(of.node.input[place]) for place in (1, 4))
    if a is None or b is None:
        of.refuse("of a bias with computed scales", _AS_QDQ)
    scale = of.constant(np.asarray((a * b).ravel() * np.float32(np.prod(factors)), np.float32))
    return [*reads, _dequantised(of, of.read(bias), scale)]


def _convolution(of: Rewriting) -> None:
    reads = _with_bias(of, [_numbers(of, 0, 1, 2), _numbers(of, 3, 4, 5)], 8)
    _bytes(of, of.do("Conv", *reads, **_kept(of)), 6, 7)


def _gemm(of: Rewriting) -> None:
    reads = [_numbers(of, 0, 1, 2), _numbers(of, 3, 4, 5, 0 if of.get("transB", 0) else 1)]
    reads = _with_bias(of, reads, 6, of.get("alpha", 1.0))
    if of.read(7):
        _bytes(of, of.do("Gemm", *reads, **_kept(of)), 7, 8)
    else:
        of.do("Gemm", *reads, into=of.node.output[0], **_kept(of))


def _pair(op_type: str) -> Way:
    return lambda of: _bytes(of, of.do(op_type, _numbers(of, 0, 1, 2), _numbers(of, 3, 4, 5)), 6, 7)


def _single(op_type: str) -> Way:
    return lambda of: _bytes(of, of.do(op_type, _numbers(of, 0, 1, 2), **_kept(of)), 3, 4)


def _concat(of: Rewriting) -> None:
    reads = [_numbers(of, place, place + 1, place + 2) for place in range(2, len(of.node.input), 3)]
    _bytes(of, of.do("Concat", *reads, **_kept(of)), 0, 1)


def _integers(op_type: str, axis: int) -> Way:
    """Products of whole numbers: bytes less their zero points."""

    def written(of: Rewriting) -> None:
        one = of.number(1)
        numbers = [_dequantised(of, of.read(place), one, of.read(2 + place), to) for place, to in ((0, -2), (1, axis))]
        of.do("Cast", of.do(op_type, *numbers, **_kept(of)), into=of.node.output[0], to=TensorProto.INT32)

    return written


def _dynamic_matmul(of: Rewriting) -> None:
    given = _dequantised(of, *_quantised(of))
    _biased(of, of.do("MatMul", given, _numbers(of, 1, 2, 3, -1)), of.read(4))


def _dynamic_lstm(of: Rewriting) -> None:
    """Write an LSTM on the numbers of its weights and of the bytes that it reads; its states are not rounded."""
    reads = [_dequantised(of, *_quantised(of)), _turned_matrix(of, 1, 8), _turned_matrix(of, 2, 10), *of.node.input[3:8]]
    of.keep(helper.make_node("LSTM", reads, of.node.output, name=of.new(), **of.attributes))


def _turned_matrix(of: Rewriting, values: int, scale: int) -> str:
    """Write the numbers of weights (directions, inputs, columns), of a scale for each direction or column, as LSTM has them."""
    names = [of.read(place) for place in (values, scale, scale + 1)]
    given, scales, *zeros = (of.value(name) for name in names if name)
    if given is None or scales is None or any(zero is None for zero in zeros):
        of.refuse("with computed weights", _QUANTISE)
    check_scale(of.constants[names[1]], of.node, of.source)
    shift = zeros[0] if zeros and zeros[0] is not None else np.zeros(scales.shape, given.dtype)
    sides = [side.reshape(-1, 1, side.shape[-1] if side.ndim == 2 else 1) for side in (scales, shift)]  # of columns
    if given.ndim != 3 or any(a not in (1, b) for side in sides for a, b in zip(side.shape, given.shape, strict=True)):
        of.refuse(f"with scales {scales.shape} for weights {given.shape}", _QUANTISE)
    numbers = (given.astype(np.int32) - sides[1].astype(np.int32)).astype(np.float32) * sides[0]
    return of.constant(numbers.transpose(0, 2, 1))


def _biased(of: Rewriting, numbers: str, bias: str) -> None:
    of.do(*(("Add", numbers, bias) if bias else ("Identity", numbers)), into=of.node.output[0])


def _quantised(of: Rewriting, written: str = "", scale: str = "", zero: str = "") -> tuple[str, str, str]:
    """Write bytes of the input, whose least and largest decide the scale, 1 where all are 0; the names of all."""
    numbers = of.node.input[0]
    none, largest = of.number(0), of.number(_LARGEST_BYTE)
    low = of.do("Min", of.do("ReduceMin", numbers, keepdims=0), none)
    high = of.do("Max", of.do("ReduceMax", numbers, keepdims=0), none)
    apart = of.do("Sub", high, low)
    one, share = of.number(1), of.do("Div", apart, largest)
    scale = of.do("Where", of.do("Equal", apart, none), one, share, into=scale)
    place = of.do("Round", of.do("Div", of.do("Neg", low), scale))
    zero = of.do("Cast", place, into=zero, to=TensorProto.UINT8)
    return of.do("QuantizeLinear", numbers, scale, zero, into=written), scale, zero


def _of_own_domain(of: Rewriting) -> None:
    of.do(of.node.op_type, *of.node.input, into=of.node.output[0], **of.attributes)


_BETWEEN = frozenset({"QuantizeLinear", "DequantizeLinear"})
#: How each operator is written; those of Microsoft's domain by its name before theirs.
_WRITTEN: Mapping[tuple[str, str], Way] = MappingProxyType(
    {
        ("", "QLinearConv"): _convolution,
        ("", "QLinearMatMul"): lambda of: _bytes(
            of, of.do("MatMul", _numbers(of, 0, 1, 2, -2), _numbers(of, 3, 4, 5, -1)), 6, 7
        ),
        ("", "ConvInteger"): _integers("Conv", 0),
        ("", "MatMulInteger"): _integers("MatMul", -1),
        ("", "DynamicQuantizeLinear"): lambda of: _quantised(of, *of.node.output),
        (MICROSOFT, "QLinearAdd"): _pair("Add"),
        (MICROSOFT, "QLinearMul"): _pair("Mul"),
        (MICROSOFT, "QLinearConcat"): _concat,
        (MICROSOFT, "QLinearGlobalAveragePool"): _single("GlobalAveragePool"),
        (MICROSOFT, "QLinearAveragePool"): _single("AveragePool"),
        (MICROSOFT, "QLinearSigmoid"): _single("Sigmoid"),
        (MICROSOFT, "QLinearLeakyRelu"): _single("LeakyRelu"),
        (MICROSOFT, "QGemm"): _gemm,
        (MICROSOFT, "MatMulIntegerToFloat"): lambda of: _biased(
            of, of.do("MatMul", _numbers(of, 0, 2, 4, -2), _numbers(of, 1, 3, 5, -1)), of.read(6)
        ),
        (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_matmul,
        (MICROSOFT, "DynamicQuantizeLSTM"): _dynamic_lstm,
        **dict.fromkeys(((MICROSOFT, name) for name in _BETWEEN), _of_own_domain),
    }
)


def is_quantised(model: onnx.ModelProto) -> bool:
    """Tell whether a model holds operators on quantised numbers, or reads bytes."""
    kinds = {value.type.tensor_type.elem_type for value in model.graph.input}
    return bool(kinds & _BYTES) or any(
        node.op_type in _BETWEEN or _WRITTEN.get(operator_key(node)) for node in model.graph.node
    )


def rounds_to_bytes(model: onnx.ModelProto) -> bool:
    """Tell whether a model rounds what it computes to bytes: numbers that lie half-way between two may become either."""
    return any(
        node.op_type == "QuantizeLinear"
        or (node.op_type != "DequantizeLinear" and "Integer" not in node.op_type and operator_key(node) in _WRITTEN)
        for node in model.graph.node
    )


def plain_operators(model: onnx.ModelProto, source: str) -> None:
    """Write quantised operators of a model as plain ones between QuantizeLinear and DequantizeLinear."""
    Rewriting(model.graph, source).run(lambda node: _WRITTEN.get(operator_key(node)))


def plain_constants(model: onnx.ModelProto, known: Known, source: str) -> None:
    """Compute what is quantised of constants, write zero points that are left out, and casts around what picks bytes.

    Weights stay bytes, where they are int8 without their zero points (`stored`).
    """
    rewriting = Rewriting(model.graph, source, opset_of(model), known)
    weights = read_as_weights(model.graph, rewriting.constants)

    def between(of: Rewriting) -> None:
        if of.node.output[0] in weights and (stored := _stored(of)) is not None:
            of.keep(stored)
        elif (found := _computed(of)) is not None:
            of.constant(found, of.node.output[0])
        else:
            of.keep(_with_zero(of))

    ways: Mapping[str, Way] = dict.fromkeys(_BETWEEN, between) | dict.fromkeys(_ON_VALUES, _around)
    rewriting.run(lambda node: ways.get(node.op_type))


def _around(of: Rewriting) -> None:
    """Keep a node, on the numbers of its bytes where it picks these."""
    node, kind = of.node, of.known.get(of.read(0), (0, None))[0]
    if kind not in _BYTES:
        of.keep()
        return
    plain = copied(node)
    for place in range(len(node.input))[_ON_VALUES[node.op_type]]:
        if node.input[place]:
            plain.input[place] = of.do("Cast", node.input[place], to=TensorProto.FLOAT)
    plain.output[0] = of.new()
    of.keep(plain)
    of.do("Cast", plain.output[0], into=node.output[0], to=kind)


def _with_zero(of: Rewriting) -> onnx.NodeProto:
    node = of.node
    if of.read(2):
        return node
    own = TensorProto.UINT8
    if node.op_type != "QuantizeLinear":
        own = of.known.get(node.input[0], (own, None))[0]
    dtype = helper.tensor_dtype_to_np_dtype(of.get("output_dtype", 0) or own)
    count, plain = of.size(node.input[1]), copied(node)
    del plain.input[2:]
    plain.input.append(of.constant(np.zeros(count if count > 1 else (), dtype)))
    return plain


def _require_type(of: Rewriting, dtype: np.dtype[Any], shift: Array) -> None:
    if shift.dtype != dtype:
        of.refuse(f"of {dtype} with zero points of {shift.dtype}", _QUANTISE)


def _stored(of: Rewriting) -> onnx.NodeProto | None:
    """Return the node that makes numbers of a weight's bytes, without a zero point; None where they would be no int8."""
    names = [name for name in of.node.input if name]
    kinds = [of.kind(name) for name in names]
    if of.node.op_type != "DequantizeLinear" or not all(kinds) or of.get("block_size", 0):
        return None
    if kinds[0] not in _BYTES or kinds[1] != TensorProto.FLOAT:
        return None
    check_scale(of.constants[names[1]], of.node, of.source)
    scale, *zero = (np.asarray(of.value(name)) for name in names[1:])
    axis, shape, stored = int(of.get("axis", 1)), tuple(of.constants[names[0]].dims), names[0]
    _along(of, scale, shape, axis)
    if zero:
        _require_type(of, helper.tensor_dtype_to_np_dtype(kinds[0]), zero[0])
    shifts = [_along(of, shift, shape, axis).astype(np.int32) for shift in zero]
    if kinds[0] != TensorProto.INT8 or any(shift.any() for shift in shifts):  # others are not looked at: they may be large
        apart = np.asarray(of.value(stored)).astype(np.int32) - sum(shifts)
        if apart.min(initial=0) < _SIGNED.min or apart.max(initial=0) > _SIGNED.max:
            return None
        stored = of.constant(apart.astype(np.int8))
    along = {"axis": axis} if scale.size > 1 else {}
    if along and of.opset < _OF_ONE_AXIS:
        return None
    return helper.make_node("DequantizeLinear", [stored, names[1]], of.node.output, name=of.name, **along)


def _computed(of: Rewriting) -> Array | None:
    """Compute what a node makes of constants; None where they are none, or of types that are refused by name."""
    names, back = [name for name in of.node.input if name], of.node.op_type == "DequantizeLinear"
    values, kinds = [of.value(name) for name in names], [of.kind(name) for name in names]
    if any(value is None for value in values) or kinds[0] not in (_STORED if back else {TensorProto.FLOAT}):
        return None
    given, scale, *zero = (np.asarray(value) for value in values)
    if kinds[1] != TensorProto.FLOAT:
        of.refuse(f"by scales of {scale.dtype}", f"{_QUANTISE}: scales are of float32")
    check_scale(of.constants[names[1]], of.node, of.source)
    own = kinds[0] if back else of.get("output_dtype", 0) or TensorProto.UINT8
    shift = zero[0] if zero else np.zeros(scale.shape, helper.tensor_dtype_to_np_dtype(own))
    if back:
        _require_type(of, given.dtype, shift)
    elif shift.dtype not in (np.int8, np.uint8):
        return None
    axis, block = int(of.get("axis", 1)), int(of.get("block_size", 0))
    scale, shift = (_along(of, side, given.shape, axis, block) for side in (scale, shift))
    if back:
        return np.asarray((given.astype(np.int32) - shift.astype(np.int32)).astype(np.float32) * scale)
    bounds = np.iinfo(shift.dtype)
    return np.asarray((np.rint(given / scale) + shift).clip(bounds.min, bounds.max).astype(shift.dtype))


def _along(of: Rewriting, values: Array, shape: Sequence[int], axis: int, block: int = 0) -> Array:
    """Return scales or zero points in a shape that is broadcast to that of what they are of."""
    if block > 0 and -len(shape) <= axis < len(shape) == values.ndim:
        values = np.repeat(values, block, axis)[tuple(slice(size) for size in shape)]
        if values.shape == tuple(shape):
            return values
    if values.size == 1:
        return values.reshape(())
    if values.ndim != 1 or not -len(shape) <= axis < len(shape) or len(values) != shape[axis]:
        of.refuse(f"with scales {values.shape} along axis {axis} of {tuple(shape)}", _QUANTISE)
    return values.reshape([-1 if place == axis % len(shape) else 1 for place in range(len(shape))])
