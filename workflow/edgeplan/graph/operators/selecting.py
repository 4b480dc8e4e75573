"""These operators select elements of an axis, or of a matrix, by order or by place."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from types import MappingProxyType
from typing import TYPE_CHECKING

from edgeplan.graph import blocks
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import AGAIN, ANY, COPY, NUMBERS, OperatorSpec, Problem, axis_of
from edgeplan.graph.parts import Chain, Part, moved, part
from edgeplan.graph.steps import Setting

if TYPE_CHECKING:
    import onnx

_MATRIX = _OUTPUTS = 2


def _top_form(node: onnx.NodeProto, _: Mapping[str, onnx.TensorProto], __: AbstractSet[str], ___: str) -> onnx.NodeProto:
    """Both outputs have names: without one it would be lost which of them the other is."""
    given = [*node.output, ""][:_OUTPUTS]
    del node.output[:]
    node.output.extend(name or f"{node.name}:{told}" for name, told in zip(given, ("values", "indices"), strict=True))
    return node


def _check_top(graph: Graph, op: Operator) -> Problem:
    shape, counts, axis = graph.shape(op.inputs[0]), op.integers("K", ()), op.integer("axis", -1)
    fits = -len(shape) <= axis < len(shape) and len(op.outputs) == _OUTPUTS
    fits = fits and len(counts) == 1 and 0 < counts[0] <= shape[axis]
    return None if fits else (f"of {counts} along axis {axis} of {shape}", AGAIN)


def _top(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Sort the best first, whether that is asked for or not; of equal ones the first."""
    shape, dtype = shapes[op.inputs[0]], graph.tensors[op.inputs[0]].dtype
    block = blocks.selected(shape, axis_of(op, len(shape), -1), op.integers("K", ())[0], dtype)
    kernel = "highest" if op.integer("largest", 1) else "lowest"
    return (part(op, "compiled", (), {"kernel": f"{kernel}_{dtype}", "block": block}),)


def _check_triangle(graph: Graph, op: Operator) -> Problem:
    rank, diagonals = len(graph.shape(op.inputs[0])), op.integers("k", (0,))
    fits = rank >= _MATRIX and len(diagonals) == 1
    return None if fits else (f"of {rank} axes, of diagonals {diagonals}", AGAIN)


def _triangle(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Keep one side of a diagonal, and write zeros elsewhere."""
    shape, dtype = shapes[op.inputs[0]], graph.tensors[op.inputs[0]].dtype
    chain, upper = Chain(op, shapes), op.integer("upper", 1)
    diagonal, most = op.integers("k", (0,))[0], shape[-2] + shape[-1]
    diagonal = min(max(diagonal, -most), most) + (not upper)
    table: dict[str, Setting] = {"form": "triangle", "rows": shape[-2], "columns": shape[-1], "diagonal": diagonal}
    kernel = f"{'upper' if upper else 'lower'}_{moved(dtype)}"
    return chain.finished(chain.kernel(kernel, op.inputs, shape, blocks.triangle(shape, dtype), table))


_MOVES = ("concat", "split", "transpose")
SPECS = (
    OperatorSpec(
        ("TopK",), "topk", _top, (), COPY, MappingProxyType({"topk": _MOVES}), ("", "K"), frozenset({"K"}), 10,
        moves=True, form=_top_form, check=_check_top, elements=NUMBERS,
    ),
    OperatorSpec(
        ("Trilu",), "trilu", _triangle, (), COPY, MappingProxyType({"trilu": _MOVES}), ("", "k"), frozenset({"k"}),
        moves=True, check=_check_triangle, elements=ANY,
    ),
)  # fmt: skip
