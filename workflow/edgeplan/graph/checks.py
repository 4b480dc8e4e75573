"""What kernels, costs and predictors take for granted of a graph: shapes are known, and operators fit the tensors they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from edgeplan.errors import ModelError
from edgeplan.graph.ir import Graph, Operator, Shape
from edgeplan.graph.onnx.constants import MOST_BYTES
from edgeplan.graph.onnx.shapes import no_static_shape

#: Ranks of the activations over which windows slide: a line or an image; a kernel's configuration has no third axis.
_SPATIAL_RANKS = (3, 4)
_MOST_AXES = 10  # a permutation is written with one digit for each axis
_AGAIN = "correct the node, or export the model again: no engine runs this"


def check_graph(graph: Graph, source: str) -> None:
    """Hold a graph that came from outside against what is taken for granted of it.

    Args:
        graph: the graph; its operators are sorted.
        source: where it comes from, for messages.

    Raises:
        ModelError: a shape is not known, an operator does not fit what it reads, or is of a form that no kernel stands for.
    """
    known = set(graph.inputs)
    for op in graph.operators:
        where = f"{source}, operator {op.name!r}"
        for name in (*op.inputs, *op.weights, *op.outputs):
            tensor = graph.tensors.get(name)
            if tensor is None or any(size < 1 for size in tensor.shape):
                raise no_static_shape(name, tensor, where)
        known.update(op.outputs)
        if lost := next((name for name in op.inputs if name not in known), None):
            raise ModelError(f"tensor {lost!r} is computed in training alone", where=where, next_step="export it for inference")
        check = _CHECKS.get(op.op_type)
        if problem := _axis(graph, op) or (check and check(graph, op)):
            what, next_step = problem
            raise ModelError(f"{op.op_type} {what}", where=where, next_step=next_step)
    total = sum(tensor.size_bytes for tensor in graph.tensors.values())
    if total > MOST_BYTES:
        raise ModelError(
            f"the tensors of the model take {total / 1e12:.0f} TB",
            where=source,
            next_step="check the shapes and export it again",
        )


#: What is wrong, and what to do about it; None if nothing is.
_Problem = tuple[str, str] | None


def _axis(graph: Graph, op: Operator) -> _Problem:
    rank, axis = len(graph.shape(op.inputs[0])), op.integer("axis", 0)
    behind = op.op_type == "Flatten"  # which may join no axis
    return None if -rank <= axis < rank + behind or not axis else (f"along axis {axis} of {rank}", _AGAIN)


def _spatial(graph: Graph, op: Operator) -> _Problem:
    axes = len(graph.shape(op.inputs[0])) - 2
    if axes + 2 in _SPATIAL_RANKS:
        return None
    return f"over {axes} spatial axes: kernels have one or two", "leave the operator to another tool, or export an image model"


def _window(graph: Graph, op: Operator) -> _Problem:
    axes = len(graph.shape(op.inputs[0])) - 2
    for key, length in (("kernel_shape", axes), ("strides", axes), ("dilations", axes), ("pads", 2 * axes)):
        if key in op.attributes and len(op.integers(key, ())) != length:
            return f"with {key} {op.integers(key, ())} over {axes} spatial axes", _AGAIN
    return _spatial(graph, op)


def _conv(graph: Graph, op: Operator) -> _Problem:
    if problem := _window(graph, op):
        return problem
    channels, groups = graph.shape(op.inputs[0])[1], op.integer("group", 1)
    weight = graph.shape(op.weights[0])
    if len(weight) != len(graph.shape(op.inputs[0])) or weight[1] * groups != channels or weight[0] % groups:
        return f"with a weight {weight} for {channels} channels in {groups} group{'s' * (groups > 1)}", _AGAIN
    if weight[2:] != op.integers("kernel_shape", weight[2:]):
        return f"with a weight {weight} for a window {op.integers('kernel_shape', ())}", _AGAIN
    if len(op.weights) > 1 and graph.shape(op.weights[1]) != weight[:1]:
        return f"with a bias {graph.shape(op.weights[1])} for {weight[0]} channels", _AGAIN
    return None


def _mean(graph: Graph, op: Operator) -> _Problem:
    rank, axes = len(graph.shape(op.inputs[0])), op.integers("axes", ())
    return None if all(-rank <= axis < rank for axis in axes) else (f"over axes {axes} of {rank}", _AGAIN)


def _gemm(graph: Graph, op: Operator) -> _Problem:
    first, second, *bias = (graph.shape(name) for name in op.operands)
    rows = first[::-1] if op.integer("transA", 0) else first
    weight = second[::-1] if op.integer("transB", 0) else second
    if len(rows) != 2 or len(weight) != 2 or weight[0] != rows[1]:  # noqa: PLR2004  matrices
        return f"with a weight {second} for an input {first}", _AGAIN
    if bias and not _broadcasts(bias[0], (rows[0], weight[1])):
        return f"with a bias {bias[0]} for an output {(rows[0], weight[1])}", _AGAIN
    return None


def _matmul(graph: Graph, op: Operator) -> _Problem:
    first, second = (graph.shape(name) for name in op.operands)
    if not first or not second:
        return "of a number", _AGAIN
    return None if first[-1] == second[-2:][0] else (f"with a weight {second} for {first[-1]} channels", _AGAIN)


def _norm(graph: Graph, op: Operator) -> _Problem:
    channels = graph.shape(op.inputs[0])[1:2]
    odd = [graph.shape(name) for name in op.weights if graph.shape(name) != channels]
    return (f"with a weight {odd[0]} for {channels} channels", _AGAIN) if odd else None


def _lstm(graph: Graph, op: Operator) -> _Problem:
    before, after = graph.shape(op.inputs[0]), graph.shape(op.outputs[0])
    if len(before) != 3 or len(after) != 4:  # noqa: PLR2004  steps, batch, features; steps, directions, batch, hidden
        return f"of an input {before}", _AGAIN
    directions, hidden = after[1], after[3]
    wanted = ((directions, 4 * hidden, before[2]), (directions, 4 * hidden, hidden), (directions, 8 * hidden))
    found = tuple(graph.shape(name) for name in op.weights)
    if directions != (2 if op.attributes.get("direction") == "bidirectional" else 1) or found != wanted[: len(found)]:
        return f"with weights {found} for an input {before} and an output {after}", _AGAIN
    return None


def _reshape(graph: Graph, op: Operator) -> _Problem:
    before, after = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    return None if before.elements == after.elements else (f"of {before.shape} to {after.shape}", _AGAIN)


def _transpose(graph: Graph, op: Operator) -> _Problem:
    rank, permutation = len(graph.shape(op.inputs[0])), op.integers("perm", ())
    if sorted(permutation) != list(range(rank)):
        return f"of {rank} axes by {permutation}", _AGAIN
    return None if rank <= _MOST_AXES else (f"of {rank} axes: known are up to {_MOST_AXES}", "join axes before it")


def _lrn(_graph: Graph, op: Operator) -> _Problem:
    return None if op.integer("size", 0) > 0 else (f"over {op.integer('size', 0)} channels", _AGAIN)


def _broadcasts(shape: Shape, to: Shape) -> bool:
    ends = zip(reversed(shape), reversed(to), strict=False)
    return len(shape) <= len(to) and all(a in (1, b) for a, b in ends)


_CHECKS: Mapping[str, Callable[[Graph, Operator], _Problem]] = MappingProxyType(
    {
        "Conv": _conv,
        "MaxPool": _window,
        "AveragePool": _window,
        "GlobalAveragePool": _spatial,
        "Resize": _spatial,
        "ReduceMean": _mean,
        "Gemm": _gemm,
        "MatMul": _matmul,
        "BatchNormalization": _norm,
        "LSTM": _lstm,
        **dict.fromkeys(("Reshape", "Flatten", "Squeeze", "Unsqueeze"), _reshape),
        "Transpose": _transpose,
        "LRN": _lrn,
    }
)
