"""Which integers a model's inputs may hold: those that pick places of an axis stay below its size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from edgeplan.graph.ir import Graph, Operator, Shape

#: Operators that hand integers on as they are; of a Gather the data, of a Where both sides, of a Scatter all but
#: the places.
_HANDED_ON: Mapping[str, slice] = {
    **dict.fromkeys(
        (
            "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Identity", "Cast", "Slice", "Split", "Expand", "Tile",
            "Gather", "GatherElements", "GatherND", "Pad", "DepthToSpace", "SpaceToDepth", "Trilu",
        ),
        slice(0, 1),
    ),
    **dict.fromkeys(("Concat", "Max", "Min"), slice(None)),
    **dict.fromkeys(("ScatterElements", "ScatterND"), slice(0, None, 2)),
    "Where": slice(1, None),
}  # fmt: skip

#: Operators whose second operand are places of the first one.
PICKING = frozenset({"Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND"})


def index_limits(graph: Graph) -> Mapping[str, int]:
    """Return what the values of inputs stay below that indices are taken from: the least size of an axis that they pick from.

    Negative indices may reach as far down.
    """
    found: dict[str, int] = {}
    for op in graph.operators:
        if op.op_type not in PICKING or "indices" in op.attributes:
            continue
        data, indices = op.operands[:2]
        size = min(_indexed(op, graph.shape(data), graph.shape(indices)))
        for name in _sources(graph, indices):
            found[name] = min(found.get(name, size), size)
    return found


def _indexed(op: Operator, shape: Shape, indices: Shape) -> Shape:
    """Return the sizes of the axes that an operator picks places of."""
    if op.op_type in ("GatherND", "ScatterND"):
        batch = op.integer("batch_dims", 0)
        return shape[batch : batch + indices[-1]]
    return (shape[op.integer("axis", 0)],)


def _sources(graph: Graph, tensor: str) -> Iterator[str]:
    """Yield the inputs whose values a tensor holds."""
    seen, waiting = {tensor}, [tensor]
    while waiting:
        name = waiting.pop()
        if name in graph.inputs:
            yield name
        producer = graph.producer.get(name)
        more = producer.operands[_HANDED_ON[producer.op_type]] if producer and producer.op_type in _HANDED_ON else ()
        waiting += [one for one in more if one not in seen]
        seen.update(more)
