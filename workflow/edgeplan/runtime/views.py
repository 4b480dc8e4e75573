"""Products of activations that read and write parts of tensors where they lie, without copies before and behind.

Attention cuts heads out of an activation by a Reshape and a Transpose, and joins them again behind. All that is the same
memory in another order of axes, which a product takes by strides.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from edgeplan.graph.ir import Graph, Operator, Shape

_IMAGE_RANK = 4  # such activations may lie in another layout than row-major
_LEAST_RANK = 3


@dataclass(frozen=True, slots=True)
class Viewed:
    """A product with what it takes over.

    Attributes:
        members: operators that need not run.
        reads: activations that it reads, the left one first.
        written: activation that it writes.
        settings: of its step: `read_0`, `read_1` and `written`, each the sizes and then the strides, in elements, of the
            operand's axes in the activation; left out for what is no view.
    """

    members: frozenset[str]
    reads: tuple[str, str]
    written: str
    settings: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _View:
    members: tuple[str, ...]
    tensor: str
    axes: tuple[int, ...]


def views(graph: Graph, kept: Collection[str]) -> Mapping[str, Viewed]:
    """The products that read or write views, by name.

    Args:
        graph: the graph.
        kept: operators that are not to be taken over.
    """
    found: dict[str, Viewed] = {}
    taken = set(kept)
    for op in graph.operators:
        if op.op_type != "MatMul" or len(op.inputs) != 2 or op.inputs[0] == op.inputs[1]:
            continue
        ranks = {len(graph.shape(name)) for name in (*op.inputs, *op.outputs)}
        if len(ranks) > 1 or min(ranks) < _LEAST_RANK:
            continue
        sides = [*(_cut(graph, name) for name in op.inputs), _joined(graph, op.outputs[0])]
        free = [view if view and taken.isdisjoint(view.members) else None for view in sides]
        if not any(free):
            continue
        members = frozenset(member for view in free if view for member in view.members)
        left, right, written = (
            view.tensor if view else name for view, name in zip(free, (*op.inputs, *op.outputs), strict=True)
        )
        keys = ("read_0", "read_1", "written")
        settings = {key: view.axes for key, view in zip(keys, free, strict=True) if view}
        found[op.name] = Viewed(members, (left, right), written, settings)
        taken |= members
    return found


def _strides(shape: Shape) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _private(graph: Graph, tensor: str) -> bool:
    """Tell whether one operator alone reads an activation."""
    return len(graph.consumers.get(tensor, ())) == 1 and tensor not in graph.outputs


def _cut(graph: Graph, tensor: str) -> _View | None:
    """Return a product's input as a view of the tensor behind a Transpose, or a Reshape before that."""
    swap = graph.producer.get(tensor)
    if swap is None or swap.op_type != "Transpose" or not _private(graph, tensor):
        return None
    members: tuple[str, ...] = (swap.name,)
    source, shape = swap.inputs[0], graph.shape(swap.inputs[0])
    split = graph.producer.get(source)
    if split is not None and split.op_type == "Reshape" and len(split.inputs) == 1 and _private(graph, source):
        members, source = (split.name, swap.name), split.inputs[0]
    if len(graph.shape(source)) == _IMAGE_RANK:
        return None
    strides, order = _strides(shape), _order(swap)
    return _View(members, source, (*(shape[axis] for axis in order), *(strides[axis] for axis in order)))


def _joined(graph: Graph, tensor: str) -> _View | None:
    """Return a product's output as a view of the tensor that a Transpose behind it, or a Reshape behind that, writes."""
    swap = graph.consumers.get(tensor, (None,))[0]
    if swap is None or swap.op_type != "Transpose" or not _private(graph, tensor):
        return None
    members: tuple[str, ...] = (swap.name,)
    written = swap.outputs[0]
    shape, order = graph.shape(written), _order(swap)
    join = graph.consumers.get(written, (None,))[0]
    if join is not None and join.op_type == "Reshape" and _private(graph, written):
        members, written = (swap.name, join.name), join.outputs[0]
    if len(graph.shape(written)) == _IMAGE_RANK:
        return None
    strides = dict(zip(order, _strides(shape), strict=True))
    return _View(members, written, (*graph.shape(tensor), *(strides[axis] for axis in range(len(shape)))))


def _order(swap: Operator) -> tuple[int, ...]:
    return swap.integers("perm", ())
