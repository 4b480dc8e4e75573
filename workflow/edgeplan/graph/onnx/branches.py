"""Branches that depend on data: both are computed, and the condition picks among what they write.

A branch computes and changes nothing, so that to compute both is right; it takes the time of both. Branches that write other
shapes than each other, or hold branches or loops themselves, stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx

from edgeplan.graph.onnx.nodes import Writer, known_tensors
from edgeplan.graph.operators.base import attributes_of


def plain_branches(model: onnx.ModelProto) -> int:
    """Write every `If` as its two branches and a `Where`, if these write the same static shapes.

    Args:
        model: the model, its shapes fixed; it is changed.

    Returns:
        How many were written so.
    """
    if not any(node.op_type == "If" for node in model.graph.node):
        return 0
    both = onnx.ModelProto()
    both.CopyFrom(model)
    outputs = _written_out(both.graph)
    known = {name: shape for name, (_, shape) in known_tensors(both).items()}
    if not all(_same(known.get(one), known.get(other)) for pair in outputs.values() for one, other in pair):
        return 0
    model.graph.CopyFrom(both.graph)
    return len(outputs)


def _same(one: tuple[int, ...] | None, other: tuple[int, ...] | None) -> bool:
    return one is not None and one == other and min(one, default=1) > 0


def _written_out(graph: onnx.GraphProto) -> Mapping[str, list[tuple[str, str]]]:
    """Write branches out in their places; what both write for each output, by the name of the node that chose."""
    write, found = Writer(graph), dict[str, list[tuple[str, str]]]()
    for node in graph.node:
        branches = [attributes_of(node).get(name) for name in ("then_branch", "else_branch")]
        if node.op_type != "If" or not all(map(_is_flat, branches)):
            write.keep(node)
            continue
        write.name = node.name or node.output[0]
        written = [_inlined(branch, write) for branch in branches]
        scalar = write.node("Reshape", [node.input[0], write.constant(np.array([1], np.int64))])
        found[write.name] = list(zip(*written, strict=True))
        for output, (one, other) in zip(node.output, found[write.name], strict=True):
            write.node("Where", [scalar, one, other], output)
    write.finish()
    return found


def _is_flat(branch: onnx.GraphProto | None) -> bool:
    """Tell whether a branch holds no further graphs and no constants of other kinds than tensors."""
    if branch is None or branch.sparse_initializer:
        return False
    return not any(a.HasField("g") or a.graphs for node in branch.node for a in node.attribute)


def _inlined(branch: onnx.GraphProto, write: Writer) -> list[str]:
    """Write a branch's constants and nodes under new names; the names of its outputs."""
    names: dict[str, str] = {}
    for tensor in branch.initializer:
        names[tensor.name] = write.tensor(tensor)
    for node in branch.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        names |= {name: write.new() for name in node.output if name}
        copy.name = write.new()
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
        write.keep(copy)
    return [names.get(output.name, output.name) for output in branch.output]
