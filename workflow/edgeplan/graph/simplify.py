"""The optimisations every framework makes whatever its backend (nn-Meter, section 2.2), made before a graph is split or costed.

Operators nothing reads are dropped, and of several operators that compute the same value one is kept.
"""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from edgeplan.graph.ir import Graph, Operator


def simplify(graph: Graph) -> Graph:
    """Return the graph without dead operators and common subexpressions. Operators that own weights are never merged."""
    live: set[str] = set(graph.outputs)
    kept: list[Operator] = []
    for op in reversed(graph.operators):
        if any(o in live for o in op.outputs):
            live.update(op.inputs)
            kept.append(op)
    same: dict[str, str] = {}  # output of a dropped twin -> output of the operator that is kept
    seen: dict[object, Operator] = {}
    operators: list[Operator] = []
    for original in reversed(kept):
        inputs = tuple(same.get(i, i) for i in original.inputs)
        op = original if inputs == original.inputs else replace(original, inputs=inputs)
        key = graph.value_key(op, inputs)
        twin = None if op.weights or any(o in graph.outputs for o in op.outputs) else seen.get(key)
        if twin is None:
            seen.setdefault(key, op)
            operators.append(op)
        else:
            same |= dict(zip(op.outputs, twin.outputs, strict=True))
    if len(operators) == len(graph.operators):
        return graph
    names = {n for op in operators for n in (*op.inputs, *op.outputs, *op.weights)} | {*graph.inputs, *graph.outputs}
    names |= {*graph.constants, *graph.constants.values()}
    tensors = MappingProxyType({name: tensor for name, tensor in graph.tensors.items() if name in names})
    return replace(graph, operators=tuple(operators), tensors=tensors)
