"""Graphs made of graphs: without what frameworks leave out whatever their backend, and with another batch."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

from edgeplan.errors import ParamsError
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


#: Operators whose attributes and constants say nothing of how many images there are.
_FREE = frozenset(
    {"Conv", "Gemm", "BatchNormalization", "LRN", "Add", "Mul", "MaxPool", "AveragePool", "GlobalAveragePool"}
) | frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Upsample"})
#: Operators along an axis, which must not be that of the images.
_ALONG_AXIS = frozenset({"Concat", "Split", "Softmax"})


def batched(graph: Graph, name: str, batch: int) -> Graph:
    """Return a graph for one image, for several."""
    fixed = sorted({op.op_type for op in graph.operators if not _is_free(op, graph)})
    made = {tensor for op in graph.operators for tensor in op.outputs} | set(graph.inputs)
    if fixed or any(graph.shape(tensor)[:1] != (1,) for tensor in made):
        what = f"operators {', '.join(fixed)}" if fixed else "more than one image"
        raise ParamsError(f"network {graph.name!r} has {what}", next_step="build it for a batch")
    tensors = {
        key: replace(tensor, shape=(batch, *tensor.shape[1:])) if key in made else tensor
        for key, tensor in graph.tensors.items()
    }
    operators = tuple(
        replace(op, attributes={**op.attributes, "shape": (batch, *op.integers("shape", ())[1:])})
        if op.op_type == "Reshape"
        else op
        for op in graph.operators
    )
    return replace(graph, name=name, operators=operators, tensors=MappingProxyType(tensors))


def _is_free(op: Operator, graph: Graph) -> bool:
    if op.op_type in _ALONG_AXIS:
        return op.integer("axis", 0) % len(graph.shape(op.outputs[0])) != 0
    if op.op_type == "Flatten":
        return op.integer("axis", 1) % len(graph.shape(op.inputs[0])) != 0
    if op.op_type == "Resize":
        return "sizes" not in op.attributes
    if op.op_type == "Transpose":
        return op.integers("perm", (1,))[0] == 0
    return op.op_type in _FREE or (op.op_type == "Reshape" and op.integers("shape", ())[:1] == (1,))
