"""Maps an engine's report to the original graph: which operators run in which node.

Engines name some operators of each node and lose others (folded batch normalisations, fused sums and activations). An
operator nobody names runs where its data flow says: with its only consumer if that one absorbs inputs, else with a producer
that claims it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.kinds import kind


def complete_members(
    graph: Graph, named: Mapping[str, Iterable[str]], claims: Callable[[str, Operator], bool]
) -> dict[str, tuple[str, ...]]:
    """Assign every operator of the graph to one node; return node -> its operators in topological order.

    To begin with are the operators that nodes certainly hold by name; `claims` tells whether a node that holds a producer of an
    unnamed operator also runs that. Operators that no node claims are left out (the engine removed them).
    """
    owner = {op: node for node, ops in named.items() for op in ops}
    for op in reversed(graph.operators):  # a lost convolution in front of a named batch normalisation
        if op.name not in owner:
            after = graph.successors(op)
            if len(after) == 1 and after[0].name in owner and _absorbed(kind(graph, op), kind(graph, after[0])):
                owner[op.name] = owner[after[0].name]
    for op in graph.operators:  # a sum or activation known only as an attribute of its producer's node
        if op.name in owner:
            continue
        before = [p for p in graph.predecessors(op) if p.name in owner]
        for producer in reversed(before):
            node = owner[producer.name]
            # a node fuses one operator of a kind behind its anchor: a second sum belongs to another node
            held = {kind(graph, graph.by_name[name]) for name, its in owner.items() if its == node}
            if kind(graph, op) not in held and claims(node, op):
                owner[op.name] = owner[producer.name]
                break
    members: dict[str, list[str]] = {node: [] for node in named}
    for op in graph.operators:
        if op.name in owner:
            members[owner[op.name]].append(op.name)
    # a node all of whose operators went to another (two nodes for one operator) still says what it belongs to
    return {node: tuple(ops) or tuple(named[node]) for node, ops in members.items()}


def _absorbed(what: str, after: str) -> bool:
    """Tell whether an engine folds a kind into a node that is named after a later operator: no product is ever left out."""
    return what in ("conv", "dwconv", "fc", "matmul") or what in _ABSORBED_BY.get(after, ())


_ABSORBED_BY = {"bn": ("bn",), "reshape": ("reshape", "transpose"), "transpose": ("reshape",)}
