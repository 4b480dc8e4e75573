"""Steps that are computed in eight bits: convolutions and fully connected layers between numbers that bytes stand for.

A step takes the place of DequantizeLinear, the layer, activations behind it and QuantizeLinear, and reads and writes the bytes.
Its weights are int8 without zero points, one scale for each channel or for all (`graph.onnx.stored`). The library sums up
products of bytes exactly in 32 bits, multiplies by the scales, adds the bias and rounds once, half-way cases to even. The
largest number of a window is that of the largest byte, so MaxPool is computed before numbers are made of what it reads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from edgeplan.graph import blocks
from edgeplan.graph.element_types import FLOAT32
from edgeplan.graph.ir import Graph, Operator, Shape, StoredWeight, Tensor
from edgeplan.graph.operators.activations import activation
from edgeplan.graph.operators.base import BYTES
from edgeplan.graph.operators.compiled import compiled
from edgeplan.graph.operators.registry import SPECS
from edgeplan.graph.parts import INNER, Part
from edgeplan.graph.steps import INT8_CONV, INT8_FC, INT8_POOL, PostOp, Setting

_LAYERS = {"Conv": INT8_CONV, "Gemm": INT8_FC, "MatMul": INT8_FC}
#: Axes of the activations of convolutions whose kernels the library generates for bytes.
_IMAGE_RANK = 4


class ByteStep(NamedTuple):
    """A byte step is what a layer and its neighbours become.

    Attributes:
        part: the step.
        post_ops: what it does between its bias and its rounding.
        numbers: the operator that makes numbers of the bytes that it reads.
        last: the operator at whose place it runs.
        behind: a step that makes numbers of what the first one writes, if that does not.
        inner: what the first one writes for that.
    """

    part: Part
    post_ops: list[PostOp]
    numbers: Operator
    last: Operator
    behind: Part | None = None
    inner: Tensor | None = None


def byte_steps(graph: Graph, shapes: Mapping[str, Shape]) -> tuple[Mapping[str, ByteStep], frozenset[str]]:
    """Return the steps of a graph that can be computed in eight bits, by their last operator, and all operators that they run.

    Operators that make numbers of bytes for others, too, are not among the latter.

    Args:
        graph: the graph.
        shapes: of all its tensors.
    """
    found = {op.name: _byte_step(graph, shapes, op) or _largest_bytes(graph, shapes, op) for op in graph.operators}
    layers = {name: step for name, step in found.items() if step is not None}
    taken = {member for step in layers.values() for member in step.part.members}
    for step in layers.values():
        made = step.numbers
        readers = graph.consumers[made.outputs[0]]
        if made.name not in taken and made.outputs[0] not in graph.outputs and all(op.name in taken for op in readers):
            step.part.members.insert(0, made.name)  # the first that reads the numbers stands for it
            taken.add(made.name)
    return {step.last.name: step for step in layers.values()}, frozenset(taken)


def _byte_step(graph: Graph, shapes: Mapping[str, Shape], op: Operator) -> ByteStep | None:
    kind = _LAYERS.get(op.op_type, "")
    stored = graph.stored.get(op.weights[0]) if kind and op.weights and len(op.inputs) == 1 else None
    flat = _flattened(graph, op)
    numbers = graph.producer.get((flat or op).inputs[0]) if op.inputs else None
    if stored is None or stored.scale is None or numbers is None or not _is_by_one_scale(graph, numbers, "DequantizeLinear"):
        return None
    part, *more = SPECS[op.op_type].lower(graph, op, dict(shapes))
    if more or not _fits(shapes, kind, part, stored):
        return None
    behind, posts = _activations(graph, op)
    members = [*([flat.name] if flat else []), op.name, *(follower.name for follower in behind)]
    last = behind[-1] if behind else op
    weights = {"weight": stored.values.name, "weight_scale": stored.scale.name}
    weights |= {"bias": part.weights["bias"]} if "bias" in part.weights else {}
    weights |= dict(zip(("source_scale", "source_zero"), numbers.weights, strict=True))
    rounded = _only_reader(graph, last)
    if rounded is not None and _is_by_one_scale(graph, rounded, "QuantizeLinear"):
        weights |= dict(zip(("written_scale", "written_zero"), rounded.weights, strict=True))
        last = rounded
        members.append(last.name)
    settings: dict[str, Setting] = {key: value for key, value in part.settings.items() if key not in ("alpha", "beta")}
    found = Part(op.name, kind, members, [numbers.inputs[0]], [last.outputs[0]], weights, settings)
    return ByteStep(found, posts, numbers, last)


def _largest_bytes(graph: Graph, shapes: Mapping[str, Shape], op: Operator) -> ByteStep | None:
    """Return a pool of the largest numbers of bytes, which are those of the largest bytes; fewer are made numbers of then."""
    numbers = graph.producer.get(op.inputs[0]) if op.op_type == "MaxPool" and len(op.outputs) == 1 else None
    if numbers is None or not _is_by_one_scale(graph, numbers, "DequantizeLinear") or _only_reader(graph, numbers) is not op:
        return None
    (part,), (given,) = SPECS[op.op_type].lower(graph, op, dict(shapes)), numbers.inputs
    if len(shapes[given]) != _IMAGE_RANK or graph.tensors[given].dtype not in BYTES:
        return None
    inner = Tensor(f"{op.outputs[0]}{INNER}bytes", shapes[op.outputs[0]], graph.tensors[given].dtype)
    first = Part(op.name, INT8_POOL, [op.name], [given], [inner.name], {}, part.settings)
    operands: list[tuple[Shape, str]] = [(inner.shape, inner.dtype), ((), FLOAT32), ((), inner.dtype)]
    settings: dict[str, Setting] = {
        "kernel": f"dequantised_{inner.dtype}",
        "block": blocks.element_wise(inner.shape, operands, FLOAT32),
    }
    weights = dict(zip(("operand_1", "operand_2"), numbers.weights, strict=True))
    behind = Part(f"{op.name}:numbers", "compiled", [], [inner.name], list(op.outputs), weights, settings)
    return ByteStep(first, [], numbers, op, behind, inner)


def _flattened(graph: Graph, op: Operator) -> Operator | None:
    """Return the reshape that only joins the axes of an image behind its first for a layer, which alone reads that."""
    made = graph.producer.get(op.inputs[0]) if op.inputs and op.op_type != "Conv" else None
    if (
        made is None
        or made.op_type not in ("Flatten", "Reshape")
        or len(made.inputs) != 1
        or _only_reader(graph, made) is not op
    ):
        return None
    before, after = graph.shape(made.inputs[0]), graph.shape(made.outputs[0])
    return made if before and after == (before[0], math.prod(before[1:])) else None


def _is_by_one_scale(graph: Graph, op: Operator, op_type: str) -> bool:
    """Tell whether an operator is between numbers and bytes, by one constant scale and zero point."""
    if op.op_type != op_type or len(op.inputs) != 1 or len(op.weights) != 2:
        return False
    scale, zero = (graph.tensors[name] for name in op.weights)
    return scale.elements == 1 and zero.dtype in BYTES


def _fits(shapes: Mapping[str, Shape], kind: str, part: Part, stored: StoredWeight) -> bool:
    """Tell whether the library computes a layer in eight bits: of images or rows, scales along its channels."""
    if kind == INT8_CONV:
        channels, fits = 0, len(shapes[part.inputs[0]]) == _IMAGE_RANK
    else:
        channels = 0 if part.settings.get("transposed") else 1
        plain = part.settings.get("alpha") == 1 and (part.settings.get("beta") == 1 or "bias" not in part.weights)
        fits = part.kind == "fc" and plain
    return fits and stored.scale is not None and (math.prod(stored.scale.shape) == 1 or stored.axis == channels)


def _only_reader(graph: Graph, op: Operator) -> Operator | None:
    """Return the operator that alone reads what another writes, and reads nothing else that is computed."""
    readers: Sequence[Operator] = graph.consumers.get(op.outputs[0], ())
    if len(readers) != 1 or op.outputs[0] in graph.outputs or readers[0].inputs != (op.outputs[0],):
        return None
    return readers[0]


def _activations(graph: Graph, op: Operator) -> tuple[list[Operator], list[PostOp]]:
    """Return the element-wise operators behind a layer that it can take in, one after the other, and what they do."""
    found, posts, last = list[Operator](), list[PostOp](), op
    while (follower := _only_reader(graph, last)) is not None:
        post = activation(follower) if compiled(graph, follower) is None else None
        if post is None:
            break
        found.append(follower)
        posts.append(post)
        last = follower
    return found, posts
