"""How products of matrices, sums of different ranks and means become steps."""

from __future__ import annotations

import math
from collections.abc import Mapping

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.kinds import mean_axes
from edgeplan.runtime.parts import Chain, Part, part
from edgeplan.runtime.steps import Setting

_MATRIX_RANK = 2
_RANKS_OF_A_LAYER = (2, 3)  # of 4 it would be flattened


def product(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """A fully connected layer where the operand behind is a matrix of weights, else a product of two operands."""
    chain = Chain(op, shapes)
    left, right, *third = op.operands
    beta = op.number("beta", 1.0)
    layer = left in op.inputs and right in op.weights and len(shapes[right]) == _MATRIX_RANK
    if not layer:
        found = _product(chain, op, shapes)
        return chain.finished(_plus(chain, op, shapes, found, third[0], beta) if third else found)
    if op.integer("transA", 0):
        left = _transposed(chain, left, shapes)
    if len(shapes[left]) not in _RANKS_OF_A_LAYER:
        left = chain.reshaped(left, (math.prod(shapes[left][:-1]), shapes[left][-1]))
    transposed = op.integer("transB", 0)
    columns = shapes[right][0 if transposed else 1]
    biased = bool(third) and third[0] in op.weights and _is_bias(shapes[third[0]], columns)
    settings: dict[str, Setting] = {"transposed": transposed, "alpha": op.number("alpha", 1.0), "beta": beta}
    weights = {"weight": right} | ({"bias": third[0]} if biased else {})
    found = chain.step("fc", [left], (*shapes[left][:-1], columns), settings, weights)
    return chain.finished(found if biased or not third else _plus(chain, op, shapes, found, third[0], beta))


def _is_bias(shape: Shape, columns: int) -> bool:
    """Whether a third operand is one value for each column, or one for all."""
    return math.prod(shape) == 1 or (shape[-1:] == (columns,) and math.prod(shape) == columns)


def _transposed(chain: Chain, tensor: str, shapes: Mapping[str, Shape]) -> str:
    return chain.step("transpose", [tensor], shapes[tensor][::-1], {"permutation": (1, 0)})


def _product(chain: Chain, op: Operator, shapes: Mapping[str, Shape]) -> str:
    """A product of two activations, or of one and a constant that is no matrix behind it."""
    reads: list[str] = []
    weights: dict[str, str] = {}
    settings: dict[str, Setting] = {}
    rank = max(_MATRIX_RANK, *(len(shapes[name]) for name in op.operands[:2]))
    sides: list[Shape] = []
    for name, role, transposing in zip(op.operands, ("left", "right"), ("transA", "transB"), strict=False):
        shape = shapes[name]
        if len(shape) == 1:
            shape = (1, *shape) if role == "left" else (*shape, 1)
        if transposed := op.integer(transposing, 0):
            shape = shape[::-1]
        shape = (1,) * (rank - len(shape)) + shape
        sides.append(shape)
        if name in op.weights:
            weights[role] = name
            settings |= {"shape": shape, "transposed": transposed}
        else:
            reads.append(chain.reshaped(_transposed(chain, name, shapes) if transposed else name, shape))
    batch = tuple(max(a, b) for a, b in zip(sides[0][:-2], sides[1][:-2], strict=True))
    shape = (*batch, sides[0][-2], sides[1][-1])
    found = chain.step("matmul", reads, shape, settings, weights)
    alpha = op.number("alpha", 1.0)
    return found if alpha == 1 else _scaled(chain, found, shapes, alpha)


def _scaled(chain: Chain, tensor: str, shapes: Mapping[str, Shape], factor: float) -> str:
    return chain.step("eltwise", [tensor], shapes[tensor], {"algorithm": "linear", "alpha": factor, "beta": 0.0})


def _plus(chain: Chain, op: Operator, shapes: Mapping[str, Shape], found: str, third: str, beta: float) -> str:
    """A product of two axes and the third operand of a Gemm."""
    settings: dict[str, Setting] = {"algorithm": "add"}
    if third in op.weights:
        settings |= {"beta": beta} if beta != 1 else {}
        return chain.step("binary", [found], shapes[found], settings, {"operand": third})
    third = chain.raised(third, len(shapes[found]))
    third = third if beta == 1 else _scaled(chain, third, shapes, beta)
    return chain.step("binary", [found, third], shapes[found], settings)


def binary(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """A sum or product; the first operand of its primitive is the one that is not broadcast, an activation."""
    out = shapes[op.outputs[0]]
    settings: dict[str, Setting] = {"algorithm": op.op_type.lower()}
    if all(len(shapes[name]) == len(out) for name in op.inputs) and any(shapes[name] == out for name in op.inputs):
        whole = part(op, "binary", ("operand",), settings)
        if shapes[whole.inputs[0]] != out:
            whole.inputs.reverse()
        return (whole,)
    chain = Chain(op, shapes)
    reads = [chain.raised(name, len(out)) for name in op.inputs]
    reads.sort(key=lambda name: shapes[name] != out)
    for axis, (size, wanted) in enumerate(zip(shapes[reads[0]], out, strict=True)):
        if size != wanted:
            repeat: dict[str, Setting] = {
                "form": "nearest",
                "coordinates": "asymmetric",
                "rounding": "floor",
                "scale": float(wanted),
            }
            reads[0] = chain.mixed(reads[0], axis, wanted, repeat)
    return chain.finished(chain.step("binary", reads, out, settings, dict(zip(("operand",), op.weights, strict=False))))


def mean(graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """A mean over any axes: those that lie side by side in one go."""
    chain, tensor = Chain(op, shapes), op.inputs[0]
    groups: list[list[int]] = []
    for axis in mean_axes(graph, op):
        if groups and groups[-1][-1] == axis - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    for axes in reversed(groups):  # those before keep their places
        shape = shapes[tensor]
        first, behind = axes[0], shape[axes[-1] + 1 :]
        joined = chain.reshaped(tensor, (*shape[:first], math.prod(shape[first : axes[-1] + 1]), *behind))
        tensor = chain.mixed(joined, first, 1, {"form": "mean"})
    return chain.finished(tensor)
