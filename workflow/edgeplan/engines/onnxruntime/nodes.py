"""Tells which operators of the original graph ONNX Runtime runs in each node of its optimised model.

Its blocked (NCHWc) nodes are named after the last operator fused before blocking (`<output>_nchwc`); sums and activations fused
later show as a fourth input or an attribute only, and its activations become `reorder_token_N`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import onnx

from edgeplan.engines.base import EngineNode
from edgeplan.engines.mapping import complete_members
from edgeplan.graph.ir import Graph, Operator
from edgeplan.graph.kinds import kind
from edgeplan.graph.operators.elementwise import ACTIVATIONS

_BLOCKED_DOMAIN = "com.microsoft.nchwc"
_INPUTS_WITH_SUM = 4
_FUSING_TYPES = ("Conv", "FusedConv", "Gemm", "FusedGemm")
#: Types that hard-swish, which is no kernel of ONNX Runtime, is inlined as.
_INLINED_TYPES = ("HardSigmoid", "Mul")


def _with_names(nodes: Sequence[onnx.NodeProto]) -> dict[str, onnx.NodeProto]:
    """Return nodes by name; those without one (inlined functions) are called `<type>@<n>`."""
    seen: Counter[str] = Counter()
    named: dict[str, onnx.NodeProto] = {}
    for node in nodes:
        name = node.name
        if not name:
            name = f"{node.op_type}@{seen[node.op_type]}"
            seen[node.op_type] += 1
        named[name] = node
    return named


def map_nodes(graph: Graph, nodes: Sequence[onnx.NodeProto]) -> tuple[EngineNode, ...]:
    """Return the nodes of an optimised model, in its order, with the operators of `graph` each one runs."""
    info = _with_names(nodes)
    working = {name: node for name, node in info.items() if not _is_reorder(node)}
    named = {name: _named_members(graph, name, node) for name, node in working.items()}
    for name, ops in named.items():  # the operators before a fused activation: its convolution and batch normalisation
        if working[name].op_type in _FUSING_TYPES and not name.endswith("_bn_nchwc"):
            _add_folded_predecessors(graph, working[name], ops, named)
    members = complete_members(graph, named, lambda name, op: _claims(graph, info[name], op))
    source = _original_tensors(graph, working, members)
    members |= _inlined_hard_swish(graph, working, members, source)
    found = []
    for name, node in info.items():
        if name in working:
            reads, writes = _layout(node.input[0]), _layout(node.output[0])
            implementation = f"{node.op_type.removeprefix('Fused')}.{reads if writes == 'nchw' else writes}"
            found.append(EngineNode(name, node.op_type, implementation, members[name], "", reads, writes))
            continue
        into = node.op_type == "ReorderInput"
        tensor = node.input[0] if into else node.output[0]
        tensor = source.get(tensor, tensor)
        source.setdefault(node.output[0], tensor)
        layouts = ("nchw", "nchwc") if into else ("nchwc", "nchw")
        found.append(EngineNode(name, node.op_type, node.op_type, (), tensor, *layouts))
    return tuple(found)


def _named_members(graph: Graph, name: str, node: onnx.NodeProto) -> list[str]:
    """Return the operators that a node names: its last, by output or name; if its name is an earlier one, all between."""
    stem = name.removesuffix("_nchwc").removesuffix("_bn")
    last = graph.producer.get(node.output[0]) or graph.by_name.get(stem) or graph.producer.get(stem)
    first = graph.by_name.get(name)
    if last is None:  # part of an inlined function: see _inlined_hard_swish
        return []
    if first is None or first is last:
        return [last.name]
    path = [last]
    while path[0] is not first:  # back from the last operator, along the inputs that descend from the first
        before = [p for p in graph.predecessors(path[0]) if p is first or _descends(graph, p, first)]
        if not before:
            return [last.name]
        path.insert(0, before[0])
    return [op.name for op in path]


_FUSION_DEPTH = 4


def _descends(graph: Graph, op: Operator, ancestor: Operator, depth: int = _FUSION_DEPTH) -> bool:
    """Tell whether `op` follows `ancestor` within a few operators that each have one input from there."""
    return depth > 0 and any(p is ancestor or _descends(graph, p, ancestor, depth - 1) for p in graph.predecessors(op))


def _inlined_hard_swish(
    graph: Graph, nodes: Mapping[str, onnx.NodeProto], members: Mapping[str, tuple[str, ...]], source: dict[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return members of nodes that hard-swish was inlined as; `source` learns what they write, for conversions behind them."""
    found: dict[str, tuple[str, ...]] = {}
    for name, node in nodes.items():
        if node.op_type not in _INLINED_TYPES or (members[name] and graph.by_name[members[name][-1]].op_type != "HardSwish"):
            continue
        read = source.get(node.input[0], node.input[0])
        readers = [op for op in graph.consumers.get(read, ()) if op.op_type == "HardSwish"]
        if members[name] or len(readers) == 1:
            op = graph.by_name[members[name][-1]] if members[name] else readers[0]
            found[name] = (op.name,)
            if node.op_type == "Mul":
                source[node.output[0]] = op.outputs[0]
    return found


def _original_tensors(
    graph: Graph, nodes: Mapping[str, onnx.NodeProto], members: Mapping[str, tuple[str, ...]]
) -> dict[str, str]:
    """Map each engine tensor to the original activation that it carries."""
    source: dict[str, str] = {}
    for name, node in nodes.items():
        for output in node.output:
            if output in graph.tensors:
                source[output] = output
            elif members[name]:
                source[output] = graph.by_name[members[name][-1]].outputs[0]
    return source


def _layout(tensor: str) -> str:
    """Return the layout of an engine tensor: blocked activations lose their names."""
    return "nchwc" if tensor.startswith("reorder_token_") else "nchw"


def _is_reorder(node: onnx.NodeProto) -> bool:
    return node.domain == _BLOCKED_DOMAIN and node.op_type in ("ReorderInput", "ReorderOutput")


def _attribute(node: onnx.NodeProto, name: str) -> Any:
    return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == name), None)


def _add_folded_predecessors(graph: Graph, node: onnx.NodeProto, ops: list[str], named: Mapping[str, list[str]]) -> None:
    """Walk back from an activation or batch normalisation to the convolution that absorbed it, unless another node has it."""
    taken = {op for others in named.values() if others is not ops for op in others}
    while ops:
        what = kind(graph, graph.by_name[ops[0]])
        before = [p for p in graph.predecessors(graph.by_name[ops[0]]) if p.name not in taken]
        sums = what == "add" and len(node.input) >= _INPUTS_WITH_SUM
        if len(before) != 1 or not (what in ACTIVATIONS or what == "bn" or sums):
            return
        allowed = {"conv", "dwconv", "fc", "bn"} | ({"add"} if len(node.input) >= _INPUTS_WITH_SUM else set())
        if kind(graph, before[0]) not in allowed:
            return
        ops.insert(0, before[0].name)


def _claims(graph: Graph, node: onnx.NodeProto, op: Operator) -> bool:
    """Tell whether a node that runs a producer of `op` shows, by an attribute or a fourth input, that it runs `op` too."""
    what = kind(graph, op)
    if what in ACTIVATIONS:
        return bool(_attribute(node, "activation"))
    if what == "add":
        return len(node.input) >= _INPUTS_WITH_SUM and node.op_type in ("Conv", "FusedConv") and bool(node.input[3])
    return False
