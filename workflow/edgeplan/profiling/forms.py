"""Refuses forms of operators that the runtime would compute otherwise than ONNX says, before anything is measured.

`runtime.lowering` names what oneDNN lacks, by operator and shape. These forms pass it: the graph holds all that tells them
apart, the steps made of it do not. They are no matter to predictions of latency, so a model is not refused when it is read.
"""

from __future__ import annotations

from collections.abc import Iterator

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.operators.base import Problem
from edgeplan.graph.operators.registry import SPECS
from edgeplan.runtime.constants import PLAIN_TAGS


def require_exact(graph: Graph, source: str) -> None:
    """Refuse operators that the runtime would compute otherwise than ONNX says.

    Args:
        graph: the graph that is to be lowered, as `load_onnx` has passed it.
        source: where the graph comes from, for messages.
    """
    found = list(_problems(graph))
    if found:
        names = ", ".join(dict.fromkeys(name for name, _, _ in found))
        raise ModelError(
            "the oneDNN runtime does not compute as ONNX says: " + "; ".join(what for _, what, _ in found),
            where=f"{source}, {names}",
            next_step="; ".join(dict.fromkeys(step for _, _, step in found)),
        )


def _problems(graph: Graph) -> Iterator[tuple[str, str, str]]:
    """Yield problems of a graph: where, what, and what to do about it."""
    for op in graph.operators:
        check = SPECS[op.op_type].inexact
        if problem := (check and check(graph, op)) or _ranks(graph, op):
            yield f"node {op.name!r}", f"{op.name} ({op.op_type}) {problem[0]}", problem[1]
    for name in graph.outputs:
        if name not in graph.producer:
            yield f"output {name!r}", f"{name}, which no operator writes", "leave it out of the outputs"


def _ranks(graph: Graph, op: Operator) -> Problem:
    ranks = {len(graph.shape(name)) for name in (*op.inputs, *op.outputs)}
    if odd := ranks - {0, *PLAIN_TAGS}:  # a number is described as of one axis
        return f"of {max(odd)} axes", f"reshape it to {min(PLAIN_TAGS)} to {max(PLAIN_TAGS)} axes"
    return None
