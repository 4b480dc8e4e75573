"""Quantised operators as preparation writes them: numbers of bytes, what is computed from these, and bytes of the result.

`QLinearConv` and the like become DequantizeLinear, the operator and QuantizeLinear, and constants become the numbers that they
stand for. Sums of products of bytes (`MatMulInteger`) are exact up to 2^24 and rounded to single precision beyond.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from edgeplan.graph.onnx.rewriting import Writer
from edgeplan.graph.onnx.stored import read_as_weights
from edgeplan.graph.operators.base import attributes_of, input_of, refuse
from edgeplan.graph.operators.quantising import check_scale

Array = npt.NDArray[Any]

_MICROSOFT = "com.microsoft"
_OWN_DOMAINS = ("", "ai.onnx")
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


class _Operand(NamedTuple):
    """An operand is bytes with a scale and a zero point; "" for none."""

    values: str
    scale: str
    zero: str


class _Rewriting:
    """A rewriting writes the nodes that stand for one node."""

    def __init__(self, node: onnx.NodeProto, write: Writer, source: str) -> None:
        self.node, self.write, self.source = node, write, source
        self.attributes = attributes_of(node)

    def operand(self, values: int, scale: int, zero: int) -> _Operand:
        found = _Operand(*(input_of(self.node, place) for place in (values, scale, zero)))
        if not found.values or not found.scale:
            refuse(self.node, self.source, "without a scale", "quantise the model again")
        return found

    def numbers(self, given: _Operand, axis: int = 0) -> str:
        """Write the numbers that bytes stand for; of several scales each is of one place along an axis."""
        several = any(self.write.size(name) > 1 for name in (given.scale, given.zero) if name)
        scale = given.scale
        if several and self.write.size(scale) == 1 and (one := self.write.value(scale)) is not None:
            count = self.write.size(given.zero)  # one scale, and a zero point for each channel
            scale = self.write.constant(np.full(count, one.ravel()[0], np.float32))
        along: dict[str, Any] = {"axis": axis} if several else {}
        return self.write.node("DequantizeLinear", [given.values, scale, given.zero], **along)

    def result(self, numbers: str, scale: int, zero: int) -> None:
        """Write the node's output: the bytes of numbers."""
        given = [numbers, input_of(self.node, scale), input_of(self.node, zero)]
        self.write.node("QuantizeLinear", given, self.node.output[0])

    def kept(self, *dropped: str) -> dict[str, Any]:
        """Return the attributes but some, which only say that channels come first."""
        if self.attributes.get("channels_last"):
            refuse(self.node, self.source, "with channels last", "quantise the model as QDQ, with channels first")
        return {key: value for key, value in self.attributes.items() if key not in ("channels_last", *dropped)}

    def product(self, first: str, second: str, *factors: float) -> str:
        """Return the name of the product of two scales, and of numbers."""
        a, b = self.write.value(first), self.write.value(second)
        number = np.float32(np.prod(factors)) if factors else np.float32(1)
        if a is None or b is None:
            refuse(self.node, self.source, "of a bias with computed scales", "quantise the model as QDQ")
        return self.write.constant(np.asarray((a * b).ravel() * number, np.float32))


def _convolution(of: _Rewriting) -> None:
    reads = [of.numbers(of.operand(0, 1, 2)), of.numbers(of.operand(3, 4, 5))]
    if bias := input_of(of.node, 8):
        scale = of.product(of.node.input[1], of.node.input[4])
        reads.append(of.numbers(_Operand(bias, scale, "")))
    of.result(of.write.node("Conv", reads, **of.kept()), 6, 7)


def _matmul(of: _Rewriting) -> None:
    reads = [of.numbers(of.operand(0, 1, 2), -2), of.numbers(of.operand(3, 4, 5), -1)]
    of.result(of.write.node("MatMul", reads), 6, 7)


def _gemm(of: _Rewriting) -> None:
    reads = [of.numbers(of.operand(0, 1, 2)), of.numbers(of.operand(3, 4, 5), 0 if of.attributes.get("transB") else 1)]
    if bias := input_of(of.node, 6):
        scale = of.product(of.node.input[1], of.node.input[4], of.attributes.get("alpha", 1.0))
        reads.append(of.numbers(_Operand(bias, scale, "")))
    if input_of(of.node, 7):
        of.result(of.write.node("Gemm", reads, **of.kept()), 7, 8)
    else:
        of.write.node("Gemm", reads, of.node.output[0], **of.kept())


def _pair(op_type: str) -> Callable[[_Rewriting], None]:
    def written(of: _Rewriting) -> None:
        reads = [of.numbers(of.operand(0, 1, 2)), of.numbers(of.operand(3, 4, 5))]
        of.result(of.write.node(op_type, reads), 6, 7)

    return written


def _single(op_type: str) -> Callable[[_Rewriting], None]:
    def written(of: _Rewriting) -> None:
        of.result(of.write.node(op_type, [of.numbers(of.operand(0, 1, 2))], **of.kept()), 3, 4)

    return written


def _concat(of: _Rewriting) -> None:
    reads = [of.numbers(of.operand(place, place + 1, place + 2)) for place in range(2, len(of.node.input), 3)]
    of.result(of.write.node("Concat", reads, **of.kept()), 0, 1)


def _integers(op_type: str, axis: int) -> Callable[[_Rewriting], None]:
    """Products of whole numbers: bytes less their zero points."""

    def written(of: _Rewriting) -> None:
        one = of.write.constant(np.array(1, np.float32))
        reads = [_Operand(of.node.input[place], one, input_of(of.node, 2 + place)) for place in (0, 1)]
        numbers = [of.numbers(reads[0], -2), of.numbers(reads[1], axis)]
        product = of.write.node(op_type, numbers, **of.kept())
        of.write.node("Cast", [product], of.node.output[0], to=TensorProto.INT32)

    return written


def _integers_to_float(of: _Rewriting) -> None:
    reads = [of.numbers(of.operand(0, 2, 4), -2), of.numbers(of.operand(1, 3, 5), -1)]
    _biased(of, of.write.node("MatMul", reads), input_of(of.node, 6))


def _dynamic_matmul(of: _Rewriting) -> None:
    given = _Operand(*_quantised(of.write, of.node.input[0]))
    reads = [of.numbers(given), of.numbers(of.operand(1, 2, 3), -1)]
    _biased(of, of.write.node("MatMul", reads), input_of(of.node, 4))


def _dynamic_lstm(of: _Rewriting) -> None:
    """Write an LSTM on the numbers of its weights and of the bytes that it reads; its states are not rounded."""
    reads = [of.numbers(_Operand(*_quantised(of.write, of.node.input[0])))]
    reads += [_turned_matrix(of, values, scale) for values, scale in ((1, 8), (2, 10))]
    of.write.nodes("LSTM", [*reads, *of.node.input[3:8]], of.node.output, **of.attributes)


def _turned_matrix(of: _Rewriting, values: int, scale: int) -> str:
    """Write the numbers of weights (directions, inputs, columns), of a scale for each direction or column, as LSTM has them."""
    names = [input_of(of.node, place) for place in (values, scale, scale + 1)]
    given, scales, *zeros = (of.write.value(name) for name in names if name)
    if given is None or scales is None or any(zero is None for zero in zeros):
        refuse(of.node, of.source, "with computed weights", "quantise the model again")
    check_scale(of.write.constants[names[1]], of.node, of.source)
    shift = zeros[0] if zeros and zeros[0] is not None else np.zeros(scales.shape, given.dtype)
    sides = [side.reshape(-1, 1, side.shape[-1] if side.ndim == 2 else 1) for side in (scales, shift)]  # of columns
    if given.ndim != 3 or any(a not in (1, b) for side in sides for a, b in zip(side.shape, given.shape, strict=True)):
        refuse(of.node, of.source, f"with scales {scales.shape} for weights {given.shape}", "quantise the model again")
    numbers = (given.astype(np.int32) - sides[1].astype(np.int32)).astype(np.float32) * sides[0]
    return of.write.constant(numbers.transpose(0, 2, 1))


def _biased(of: _Rewriting, numbers: str, bias: str) -> None:
    if bias:
        of.write.node("Add", [numbers, bias], of.node.output[0])
    else:
        of.write.node("Identity", [numbers], of.node.output[0])


def _dynamic(of: _Rewriting) -> None:
    _quantised(of.write, of.node.input[0], *of.node.output)


def _quantised(write: Writer, numbers: str, written: str = "", scale: str = "", zero: str = "") -> tuple[str, str, str]:
    """Write bytes of numbers whose least and largest decide the scale, 1 where all are 0; their names, scale and zero point."""
    none, largest = write.constant(np.array(0, np.float32)), write.constant(np.array(_LARGEST_BYTE, np.float32))
    low = write.node("Min", [write.node("ReduceMin", [numbers], keepdims=0), none])
    high = write.node("Max", [write.node("ReduceMax", [numbers], keepdims=0), none])
    apart = write.node("Sub", [high, low])
    one, share = write.constant(np.array(1, np.float32)), write.node("Div", [apart, largest])
    scale = write.node("Where", [write.node("Equal", [apart, none]), one, share], scale)
    place = write.node("Round", [write.node("Div", [write.node("Neg", [low]), scale])])
    zero = write.node("Cast", [place], zero, to=TensorProto.UINT8)
    return write.node("QuantizeLinear", [numbers, scale, zero], written), scale, zero


#: How each operator is written; those of Microsoft's domain by its name before theirs.
_WRITTEN: Mapping[tuple[str, str], Callable[[_Rewriting], None]] = MappingProxyType(
    {
        ("", "QLinearConv"): _convolution,
        ("", "QLinearMatMul"): _matmul,
        ("", "ConvInteger"): _integers("Conv", 0),
        ("", "MatMulInteger"): _integers("MatMul", -1),
        ("", "DynamicQuantizeLinear"): _dynamic,
        (_MICROSOFT, "QLinearAdd"): _pair("Add"),
        (_MICROSOFT, "QLinearMul"): _pair("Mul"),
        (_MICROSOFT, "QLinearConcat"): _concat,
        (_MICROSOFT, "QLinearGlobalAveragePool"): _single("GlobalAveragePool"),
        (_MICROSOFT, "QLinearAveragePool"): _single("AveragePool"),
        (_MICROSOFT, "QLinearSigmoid"): _single("Sigmoid"),
        (_MICROSOFT, "QLinearLeakyRelu"): _single("LeakyRelu"),
        (_MICROSOFT, "QGemm"): _gemm,
        (_MICROSOFT, "MatMulIntegerToFloat"): _integers_to_float,
        (_MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_matmul,
        (_MICROSOFT, "DynamicQuantizeLSTM"): _dynamic_lstm,
    }
)
_BETWEEN = frozenset({"QuantizeLinear", "DequantizeLinear"})


def is_quantised(model: onnx.ModelProto) -> bool:
    """Tell whether a model holds operators on quantised numbers, or reads bytes."""
    kinds = {value.type.tensor_type.elem_type for value in model.graph.input}
    return bool(kinds & _BYTES) or any(node.op_type in _BETWEEN or _way(node) for node in model.graph.node)


def rounds_to_bytes(model: onnx.ModelProto) -> bool:
    """Tell whether a model rounds what it computes to bytes: numbers that lie half-way between two may become either."""
    return any(node.op_type == "QuantizeLinear" or (_way(node) and "Integer" not in node.op_type) for node in model.graph.node)


def _way(node: onnx.NodeProto) -> Callable[[_Rewriting], None] | None:
    return _WRITTEN.get(("" if node.domain in _OWN_DOMAINS else node.domain, node.op_type))


def plain_operators(model: onnx.ModelProto, source: str) -> None:
    """Write quantised operators of a model as plain ones between QuantizeLinear and DequantizeLinear."""
    if not is_quantised(model):
        return
    write = Writer(model.graph)
    for node in model.graph.node:
        if way := _way(node):
            write.name = node.name or node.output[0]
            way(_Rewriting(node, write, source))
        elif node.op_type in _BETWEEN and node.domain == _MICROSOFT:
            write.node(node.op_type, node.input, node.output[0], **attributes_of(node))
        else:
            write.keep(node)
    write.finish()


def plain_constants(model: onnx.ModelProto, types: Mapping[str, int], source: str) -> None:
    """Compute what is quantised of constants, write zero points that are left out, and casts around what picks bytes.

    Weights stay bytes, where they are int8 without their zero points (`stored`). `types` are known element types of tensors.
    """
    write = Writer(model.graph)
    weights = read_as_weights(model.graph, write.constants)
    opset = max(one.version for one in model.opset_import if one.domain in _OWN_DOMAINS)
    for node in model.graph.node:
        write.name = node.name or node.output[0]
        if node.op_type not in _BETWEEN:
            _around(node, write, types)
        elif node.output[0] in weights and (stored := _stored(node, write, opset, source)) is not None:
            write.keep(stored)
        elif (found := _computed(node, write, source)) is not None:
            write.constant(found, node.output[0])
        else:
            write.keep(_with_zero(node, write, types))
    write.finish()


def _around(node: onnx.NodeProto, write: Writer, types: Mapping[str, int]) -> None:
    """Keep a node, on the numbers of its bytes where it picks these."""
    kind = types.get(node.input[0], 0) if node.input else 0
    if node.op_type not in _ON_VALUES or kind not in _BYTES:
        write.keep(node)
        return
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    for place in range(len(node.input))[_ON_VALUES[node.op_type]]:
        if node.input[place]:
            plain.input[place] = write.node("Cast", [node.input[place]], to=TensorProto.FLOAT)
    plain.output[0] = write.new()
    write.keep(plain)
    write.node("Cast", [plain.output[0]], node.output[0], to=kind)


def _with_zero(node: onnx.NodeProto, write: Writer, types: Mapping[str, int]) -> onnx.NodeProto:
    if input_of(node, 2):
        return node
    own = TensorProto.UINT8 if node.op_type == "QuantizeLinear" else types.get(node.input[0], TensorProto.UINT8)
    kind = attributes_of(node).get("output_dtype") or own
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    several, count = write.size(node.input[1]) > 1, write.size(node.input[1])
    plain = onnx.NodeProto()
    plain.CopyFrom(node)
    del plain.input[2:]
    plain.input.append(write.constant(np.zeros(count if several else (), dtype)))
    return plain


def _require_type(node: onnx.NodeProto, dtype: np.dtype[Any], shift: Array, source: str) -> None:
    """Refuse zero points of another type than what they are of."""
    if shift.dtype != dtype:
        refuse(node, source, f"of {dtype} with zero points of {shift.dtype}", "quantise the model again")


def _stored(node: onnx.NodeProto, write: Writer, opset: int, source: str) -> onnx.NodeProto | None:
    """Return the node that makes numbers of a weight's bytes, without a zero point; None where they would be no int8."""
    names = [name for name in node.input if name]
    kinds, attributes = [write.kind(name) for name in names], attributes_of(node)
    if node.op_type != "DequantizeLinear" or not all(kinds) or attributes.get("block_size"):
        return None
    if kinds[0] not in _BYTES or kinds[1] != TensorProto.FLOAT:
        return None
    check_scale(write.constants[names[1]], node, source)
    scale, *zero = (np.asarray(write.value(name)) for name in names[1:])
    axis, shape, stored = int(attributes.get("axis", 1)), tuple(write.constants[names[0]].dims), names[0]
    _along(node, scale, shape, axis, 0, source)
    if zero:
        _require_type(node, helper.tensor_dtype_to_np_dtype(kinds[0]), zero[0], source)
    shifts = [_along(node, shift, shape, axis, 0, source).astype(np.int32) for shift in zero]
    if kinds[0] != TensorProto.INT8 or any(shift.any() for shift in shifts):  # others are not looked at: they may be large
        apart = np.asarray(write.value(stored)).astype(np.int32) - sum(shifts)
        if apart.min(initial=0) < _SIGNED.min or apart.max(initial=0) > _SIGNED.max:
            return None
        stored = write.constant(apart.astype(np.int8))
    reads = [stored, names[1]]
    along = {"axis": axis} if scale.size > 1 else {}
    if along and opset < _OF_ONE_AXIS:
        return None
    return helper.make_node("DequantizeLinear", reads, node.output, name=node.name or node.output[0], **along)


def _computed(node: onnx.NodeProto, write: Writer, source: str) -> Array | None:
    """Compute what a node makes of constants; None where they are none, or of types that are refused by name."""
    names = [name for name in node.input if name]
    values = [write.value(name) for name in names]
    kinds = [write.kind(name) for name in names]
    read = _STORED if node.op_type == "DequantizeLinear" else {TensorProto.FLOAT}
    if any(value is None for value in values) or kinds[0] not in read:
        return None
    if kinds[1] != TensorProto.FLOAT:
        refuse(node, source, f"by scales of {np.asarray(values[1]).dtype}", "quantise the model again: scales are of float32")
    given, scale, *zero = (np.asarray(value) for value in values)
    check_scale(write.constants[names[1]], node, source)
    attributes = attributes_of(node)
    own = kinds[0] if node.op_type == "DequantizeLinear" else attributes.get("output_dtype") or TensorProto.UINT8
    shift = zero[0] if zero else np.zeros(scale.shape, helper.tensor_dtype_to_np_dtype(own))
    if node.op_type == "DequantizeLinear":
        _require_type(node, given.dtype, shift, source)
    if node.op_type == "QuantizeLinear" and shift.dtype not in (np.int8, np.uint8):
        return None
    axis, block = int(attributes.get("axis", 1)), int(attributes.get("block_size", 0))
    scale, shift = (_along(node, side, given.shape, axis, block, source) for side in (scale, shift))
    if node.op_type == "DequantizeLinear":
        return np.asarray((given.astype(np.int32) - shift.astype(np.int32)).astype(np.float32) * scale)
    bounds = np.iinfo(shift.dtype)
    return np.asarray((np.rint(given / scale) + shift).clip(bounds.min, bounds.max).astype(shift.dtype))


def _along(node: onnx.NodeProto, values: Array, shape: Sequence[int], axis: int, block: int, source: str) -> Array:
    """Return scales or zero points in a shape that is broadcast to that of what they are of."""
    if block > 0 and -len(shape) <= axis < len(shape) == values.ndim:
        values = np.repeat(values, block, axis)[tuple(slice(size) for size in shape)]
        if values.shape == tuple(shape):
            return values
    if values.size == 1:
        return values.reshape(())
    if values.ndim != 1 or not -len(shape) <= axis < len(shape) or len(values) != shape[axis]:
        refuse(node, source, f"with scales {values.shape} along axis {axis} of {tuple(shape)}", "quantise the model again")
    return values.reshape([-1 if place == axis % len(shape) else 1 for place in range(len(shape))])
