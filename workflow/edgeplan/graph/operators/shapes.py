"""Operators that change the shape alone, or the order of axes."""

from __future__ import annotations

from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.operators.base import AGAIN, ANY, COPY, NONE, OperatorSpec, Problem
from edgeplan.graph.parts import Part, part

_MOST_AXES = 10  # a permutation is written with one digit for each axis


def _check(graph: Graph, op: Operator) -> Problem:
    before, after = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    return None if before.elements == after.elements else (f"of {before.shape} to {after.shape}", AGAIN)


def _lower(_graph: Graph, op: Operator, _shapes: dict[str, Shape]) -> tuple[Part, ...]:
    return (part(op, "reshape", (), {}),)


def _check_transpose(graph: Graph, op: Operator) -> Problem:
    rank = len(graph.shape(op.inputs[0]))
    permutation = op.integers("perm", tuple(reversed(range(rank))))
    if sorted(permutation) != list(range(rank)):
        return f"of {rank} axes by {permutation}", AGAIN
    return None if rank <= _MOST_AXES else (f"of {rank} axes: known are up to {_MOST_AXES}", "join axes before it")


def _transpose(_graph: Graph, op: Operator, shapes: dict[str, Shape]) -> tuple[Part, ...]:
    axes = tuple(reversed(range(len(shapes[op.inputs[0]]))))
    return (part(op, "transpose", (), {"permutation": op.integers("perm", axes)}),)


def _shape(name: str, role: str = "") -> OperatorSpec:
    constants = ("", role) if role else ()
    return OperatorSpec(
        (name,), "reshape", _lower, (), NONE, constants=constants, integers=frozenset({role}), check=_check, elements=ANY
    )


SPECS = (
    _shape("Flatten"),
    _shape("Reshape", "shape"),
    _shape("Squeeze", "axes"),
    _shape("Unsqueeze", "axes"),
    OperatorSpec(
        ("Transpose",), "transpose", _transpose, (), COPY, moves=True, check=_check_transpose, bandwidth_bound=True,
    ),
)  # fmt: skip
