"""Verifies fusion rules against what an engine itself says it fuses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from edgeplan.engines.base import EngineNode
from edgeplan.graph.fusion_rules import FusionRules
from edgeplan.graph.ir import Graph
from edgeplan.graph.kernels import split_members
from edgeplan.graph.kinds import kind

COLUMNS = (
    "pair",
    "connection",
    "edges",
    "fused_by_engine",
    "fused_by_rules",
    "true_positive",
    "precision",
    "recall",
    "bn_folding",
    "reshaping",
)
_FOLDING_INTO = ("conv", "dwconv", "fc")


def verify(rules: FusionRules, graphs: Iterable[Graph], executed: Callable[[Graph], Sequence[EngineNode]]) -> pd.DataFrame:
    """Return precision and recall of the rules, over the edges of graphs.

    An edge counts as fused when its two ends run in one node (of the engine), or belong to one kernel (by the rules). An
    operator that the engine dropped because it repeats another runs where that one does.

    Args:
        rules: the rules to judge.
        graphs: models; a generator keeps only one in memory.
        executed: the nodes the engine runs for a graph.

    Returns:
        One row for each pair of kinds and connection (`single`, `multi-inbound`, `multi-outbound`), with the columns `COLUMNS`.
        Precision is missing where the rules fuse no such edge, recall where the engine fuses none. Two groups are left out of
        the averages (see `averages`): `bn_folding` marks batch normalisations behind a convolution or fully connected layer,
        `reshaping` edges with a reshape at an end, of which a report may say anything since a reshape moves no data.
    """
    counts: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for graph in graphs:
        by_engine = _engine_owners(graph, executed(graph))
        by_rules = {
            name: index for index, (members, twins) in enumerate(split_members(graph, rules)) for name in (*members, *twins)
        }
        for key, first, after in _edges(graph):
            theirs = first in by_engine and by_engine[first] == by_engine.get(after)
            ours = by_rules[first] == by_rules[after]
            for slot, value in enumerate((True, theirs, ours, theirs and ours)):
                counts[key][slot] += value
    rows = []
    for (pair, connection), (edges, fused, predicted, right) in sorted(counts.items()):
        kinds = pair.split("_")
        precision, recall = (right / predicted if predicted else None), (right / fused if fused else None)
        folding = kinds[1] == "bn" and kinds[0] in _FOLDING_INTO
        rows.append((pair, connection, edges, fused, predicted, right, precision, recall, folding, "reshape" in kinds))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"precision": float, "recall": float})


def averages(verification: pd.DataFrame) -> tuple[float, float]:
    """Return precision and recall, macro-averaged over pairs and connections, batch-norm folding and reshapes apart.

    Precision is averaged over the pairs that the rules fuse somewhere, recall over those that the engine fuses somewhere: a
    pair that only the rules fuse counts with precision 0, one that only the engine fuses with recall 0.
    """
    seen = verification[~verification.bn_folding & ~verification.reshaping]
    claimed, real = seen[seen.fused_by_rules > 0], seen[seen.fused_by_engine > 0]
    return (
        float(claimed.precision.mean()) if len(claimed) else 1.0,
        float(real.recall.mean()) if len(real) else 1.0,
    )


def _engine_owners(graph: Graph, nodes: Sequence[EngineNode]) -> dict[str, int]:
    owners = {name: index for index, node in enumerate(nodes) for name in node.members}
    first: dict[tuple[object, ...], str] = {}
    origin: dict[str, str] = {}
    for op in graph.operators:
        if op.weights:
            continue
        key = (op.op_type, tuple(origin.get(i, i) for i in op.inputs), tuple(sorted(op.attributes.items())))
        twin = first.setdefault(key, op.name)
        if twin != op.name:
            origin.update(zip(op.outputs, graph.by_name[twin].outputs, strict=True))
            for one, other in ((op.name, twin), (twin, op.name)):
                if one not in owners and other in owners:
                    owners[one] = owners[other]
    return owners


def _edges(graph: Graph) -> Iterable[tuple[tuple[str, str], str, str]]:
    """Yield ((pair, connection), first, next) of every edge; one that is multi-inbound and multi-outbound is the latter."""
    for op in graph.operators:
        before = graph.predecessors(op)
        for producer in before:
            readers = graph.successors(producer)
            connection = "multi-outbound" if len(readers) > 1 else "multi-inbound" if len(op.inputs) > 1 else "single"
            yield (f"{kind(graph, producer)}_{kind(graph, op)}", connection), producer.name, op.name
