"""Operators between numbers and bytes that stand for them: each byte, or integer, is (value - zero point) x scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from edgeplan.graph import blocks
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators import base
from edgeplan.graph.operators.base import AGAIN, Beside, OperatorSpec, Part, Problem, refuse
from edgeplan.graph.shapes import FLOAT32
from edgeplan.support.lazy import lazily

if TYPE_CHECKING:
    import onnx
else:
    onnx = lazily("onnx")

_SCALE, _ZERO = 1, 2
_STORED = base.BYTES | {"int32"}


def _form(node: onnx.NodeProto, beside: Beside) -> onnx.NodeProto:
    """Scales are positive numbers, zero points are there, and one scale for all has no axis."""
    if not base.input_of(node, _ZERO):
        refuse(node, beside.source, "without a zero point", "edgeplan prepare writes one")
    scale = beside.constants.get(node.input[_SCALE])
    if scale is None:
        return node
    check_scale(scale, node, beside.source)
    if list(scale.dims) not in ([], [1]) or base.attributes_of(node).get("block_size"):
        return node
    plain = base.copied(node)
    del plain.attribute[:]
    plain.attribute.extend(a for a in node.attribute if a.name != "axis")
    return plain


def check_scale(scale: onnx.TensorProto, node: onnx.NodeProto, source: str) -> None:
    """Refuse scales that are not positive and finite, as far as the model's file itself holds them."""
    if scale.data_location == onnx.TensorProto.EXTERNAL:
        return
    values = np.ravel(onnx.numpy_helper.to_array(scale))
    if odd := [float(value) for value in values if not (np.isfinite(value) and value > 0)]:
        refuse(node, source, f"by the scale {odd[0]}", "quantise the model again: scales are positive numbers")


def _axis(graph: Graph, op: Operator) -> int:
    rank = len(graph.shape(op.operands[0]))
    return op.integer("axis", 1) % max(rank, 1)


def _blocked(shape: Shape, axis: int, size: int) -> Shape:
    """Return the shape of scales of whole blocks along an axis; none fits blocks that are not whole."""
    return (*shape[:axis], shape[axis] // size, *shape[axis + 1 :]) if shape[axis] % size == 0 else ()


def _check(graph: Graph, op: Operator) -> Problem:
    shape, scale, zero = (graph.shape(name) for name in op.operands)
    (whole,), axis = (shape[_axis(graph, op) :][:1] or (1,)), _axis(graph, op)
    if scale != zero and not (scale in ((), (1,)) and zero in ((), (1,))):
        return f"with scales {scale} and zero points {zero}", AGAIN
    if (size := op.integer("block_size", 0)) and (size < 0 or scale != _blocked(shape, axis, size) or scale != zero):
        return f"with scales {scale} of blocks of {size} along axis {axis} of {shape}", base.ELSEWHERE
    if not size and scale not in ((), (1,)) and scale != (whole,):
        return f"with {scale[0] if scale else 1} scales along axis {axis} of {shape}", AGAIN
    types = [graph.tensors[name].dtype for name in (*op.operands, *op.outputs)]
    numbers, integers = (types[:1], types[2:]) if op.op_type == "QuantizeLinear" else (types[3:], [types[0], types[2]])
    if len(set(integers)) > 1:
        return f"of {integers[0]} with zero points of {integers[1]}", AGAIN
    known = {*numbers, types[1]} == {FLOAT32} and set(integers) <= _STORED
    return None if known else (f"of {' and '.join(types)}", base.ELSEWHERE)


def _lower(graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return one kernel, whose scales and zero points are broadcast; of blocks along an axis that is parted into two."""
    out, axis, size = graph.tensors[op.outputs[0]], _axis(graph, op), op.integer("block_size", 0)
    before, whole, behind = out.shape[:axis], out.shape[axis : axis + 1], out.shape[axis + 1 :]
    shape = (*before, whole[0] // size, size, *behind) if size else out.shape
    scale, by_channel = graph.shape(op.operands[_SCALE]), graph.tensors[op.operands[_SCALE]].elements > 1
    own = (*scale, *[1] * len(behind)) if by_channel else ()
    scale = (*before, scale[axis], 1, *behind) if size else own
    shapes = (shape, scale, scale)
    operands = [(one, graph.tensors[name].dtype) for one, name in zip(shapes, op.operands, strict=True)]
    kernel = f"quantised_to_{out.dtype}_{FLOAT32}" if op.op_type == "QuantizeLinear" else f"dequantised_{operands[0][1]}"
    return (base.kernel_part(op, kernel, blocks.element_wise(shape, operands, out.dtype)),)


SPECS = tuple(
    OperatorSpec(
        (name,), name.lower(), _lower, (), base.PAIR, ordered=True, form=_form, check=_check, elements=_STORED | {FLOAT32}
    )
    for name in ("QuantizeLinear", "DequantizeLinear")
)
