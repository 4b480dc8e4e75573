"""Products of matrices: fully connected layers, and products of any two operands."""

from __future__ import annotations

import math
from collections.abc import Mapping

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import AGAIN, HEAVY, OperatorSpec, Problem, broadcasts
from edgeplan.graph.parts import Chain, Part
from edgeplan.graph.steps import Setting

_MATRIX_RANK = 2
_RANKS_OF_A_LAYER = (2, 3)  # of 4 it would be flattened
_FULLY_CONNECTED_RANKS = (2, 3, 4)  # further axes would fold into the one that is multiplied


def is_fully_connected(graph: Graph, op: Operator) -> bool:
    """Tell whether a `Gemm` or `MatMul` multiplies an activation of two to four axes, as it is, by a matrix of weights."""
    left, right = op.operands[:2]
    ranks = len(graph.shape(left)) in _FULLY_CONNECTED_RANKS and len(graph.shape(right)) == _MATRIX_RANK
    return ranks and left in op.inputs and right in op.weights and not op.integer("transA", 0)


def _kind(graph: Graph, op: Operator) -> str:
    return "fc" if is_fully_connected(graph, op) else "matmul"


def _check_gemm(graph: Graph, op: Operator) -> Problem:
    first, second, *bias = (graph.shape(name) for name in op.operands)
    rows = first[::-1] if op.integer("transA", 0) else first
    weight = second[::-1] if op.integer("transB", 0) else second
    if len(rows) != 2 or len(weight) != 2 or weight[0] != rows[1]:  # matrices
        return f"with a weight {second} for an input {first}", AGAIN
    if bias and not broadcasts(bias[0], (rows[0], weight[1])):
        return f"with a bias {bias[0]} for an output {(rows[0], weight[1])}", AGAIN
    return None


def _check_matmul(graph: Graph, op: Operator) -> Problem:
    first, second = (graph.shape(name) for name in op.operands)
    if not first or not second:
        return "of a number", AGAIN
    return None if first[-1] == second[-2:][0] else (f"with a weight {second} for {first[-1]} channels", AGAIN)


def _macs(graph: Graph, op: Operator) -> int:
    """As many for each output as are summed over."""
    return graph.shape(op.operands[0])[0 if op.integer("transA", 0) else -1] * graph.tensors[op.outputs[0]].elements


def _lower(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    """Return a fully connected layer where the operand behind is a matrix of weights, else a product of two operands."""
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
    """Tell whether a third operand is one value for each column, or one for all."""
    return math.prod(shape) == 1 or (shape[-1:] == (columns,) and math.prod(shape) == columns)


def _transposed(chain: Chain, tensor: str, shapes: Mapping[str, Shape]) -> str:
    return chain.step("transpose", [tensor], shapes[tensor][::-1], {"permutation": (1, 0)})


def _product(chain: Chain, op: Operator, shapes: Mapping[str, Shape]) -> str:
    """Return a product of two activations, or of one and a constant that is no matrix behind it."""
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
    return found if alpha == 1 else chain.linear(found, alpha)


def _plus(chain: Chain, op: Operator, shapes: Mapping[str, Shape], found: str, third: str, beta: float) -> str:
    """Return a product of two axes and the third operand of a Gemm."""
    settings: dict[str, Setting] = {"algorithm": "add"}
    if third in op.weights:
        settings |= {"beta": beta} if beta != 1 else {}
        return chain.step("binary", [found], shapes[found], settings, {"operand": third})
    third = chain.raised(third, len(shapes[found]))
    third = third if beta == 1 else chain.linear(third, beta)
    return chain.step("binary", [found, third], shapes[found], settings)


SPECS = (
    OperatorSpec(("Gemm",), _kind, _lower, ("fc", "matmul"), HEAVY, ordered=True, moves=True, check=_check_gemm, macs=_macs),
    OperatorSpec(
        ("MatMul",),
        _kind,
        _lower,
        ("fc", "matmul"),
        HEAVY,
        ordered=True,
        moves=True,
        check=_check_matmul,
        macs=_macs,
    ),
)
